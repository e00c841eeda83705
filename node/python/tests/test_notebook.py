"""A notebook: cells share a swarm, the interrupt button stops a loop, and a restarted kernel starts again."""

import asyncio
import threading

import pytest

nbformat = pytest.importorskip("nbformat", reason="Jupyter is not installed")
pytest.importorskip("ipykernel", reason="Jupyter is not installed")
nbclient = pytest.importorskip("nbclient", reason="Jupyter is not installed")

BEGIN = """
import time
import numpy as np
import peergrad

def swarm(epochs):
    run = {{"epochs": epochs, "batch": 10, "optimizer": {{"rule": "sgd", "rate": 0.1}}}}
    local = {{"mdns": False, "listen": "127.0.0.1", "port": 0, "peers": 1}}
    return peergrad.Swarm("notebook", {{"w": (1,)}}, samples=100, run=run, directory={directory!r}, **local)

def train(swarm, steps=None):
    for step in swarm:
        time.sleep(0.01)
        step.finish([np.ones(1, np.float32)], 1.0)
        if step.number + 1 == steps:
            break
"""


def notebook(directory, *cells):
    sources = [BEGIN.format(directory=str(directory / "peer")), *cells]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def texts(cell) -> str:
    """What a cell shows, in words."""
    shown = [output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs]
    return "".join(shown)


def test_cells_share_a_swarm_and_show_progress(tmp_path):
    cells = ["s = swarm(2)", "train(s, steps=5)", "s.status()['phase']", "train(s)", "s.result.outcome"]
    done = nbclient.NotebookClient(notebook(tmp_path, *cells), timeout=120).execute()
    assert "others join with PEERGRAD_INVITE=pg1" in texts(done.cells[1])
    assert "notebook" in texts(done.cells[2])
    assert "training" in texts(done.cells[3])
    assert "done" in texts(done.cells[5])


def test_an_interrupt_stops_the_loop_and_a_restart_begins_again(tmp_path):
    loop = "with swarm(100000) as s:\n    train(s)"
    client = nbclient.NotebookClient(notebook(tmp_path, loop, "print(s.result.outcome)"), timeout=120, allow_errors=True)
    with client.setup_kernel():
        client.execute_cell(client.nb.cells[0], 0)
        threading.Timer(3, lambda: asyncio.run(client.km.interrupt_kernel())).start()
        interrupted = client.execute_cell(client.nb.cells[1], 1)
        assert any(output.get("ename") == "KeyboardInterrupt" for output in interrupted.outputs), interrupted.outputs
        after = client.execute_cell(client.nb.cells[2], 2)
        assert texts(after).strip() in ("left", "gave_up")
    again = nbclient.NotebookClient(notebook(tmp_path, "s = swarm(1)", "train(s)", "s.result.outcome"), timeout=120).execute()
    assert "done" in texts(again.cells[3])

