"""Peers in Python and in Rust: they train one model together, and compute the same bits."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PATIENCE_SECONDS
from programs import PARABOLA_EPOCHS, PARABOLA_SAMPLES

TARGET = Path(__file__).parents[3] / "target"
BUILDS = [TARGET / profile / "custom_task" for profile in ("release", "debug")]
BUILT = next((path for path in BUILDS if path.exists()), None)
pytestmark = pytest.mark.skipif(BUILT is None, reason="`cargo build -p peergrad-examples` has not been run")


@contextlib.contextmanager
def rust_peer(folder: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    local = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir", str(folder)]
    process = subprocess.Popen([str(BUILT), *arguments, *local], stdout=subprocess.PIPE, text=True)
    # A test that fails must not wait for it.
    limit = threading.Timer(PATIENCE_SECONDS, process.kill)
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        process.kill()
        process.wait()


def event(process: subprocess.Popen, name: str) -> dict:
    for line in process.stdout:
        if (found := json.loads(line))["event"] == name:
            return found
    pytest.fail(f"the Rust peer ended without {name}")


def test_a_python_peer_computes_the_bits_of_a_rust_peer(start, tmp_path):
    alone = start("parabola", peers=1).result()
    with rust_peer(tmp_path / "rust", "start", "--peers", "1") as process:
        summary = event(process, "summary")
    assert alone["samples"] == PARABOLA_SAMPLES * PARABOLA_EPOCHS
    assert alone["digest"] == summary["digest"]


@pytest.mark.parametrize("founder", ["rust", "python"])
def test_python_and_rust_train_together(start, tmp_path, founder):
    if founder == "rust":
        with rust_peer(tmp_path / "rust", "start", "--peers", "2") as process:
            python = start("parabola", invite=event(process, "invite")["invite"])
            summary, result = event(process, "summary"), python.result()
    else:
        python = start("parabola", peers=2)
        with rust_peer(tmp_path / "rust", "join", python.wait_for("invite")["invite"]) as process:
            summary, result = event(process, "summary"), python.result()
    assert result["digest"] == summary["digest"]
    assert (result["outcome"], result["samples"], result["left_out"]) == ("done", PARABOLA_SAMPLES * PARABOLA_EPOCHS, 0)
    assert 0 < result["own_samples"] < result["samples"]


def test_the_peer_binary_says_what_to_install(start, tmp_path):
    peer = BUILT.with_name("peer")
    if not peer.exists():
        pytest.skip("`cargo build` has not been run")
    python = start("parabola", peers=2)
    arguments = ["join", python.wait_for("invite")["invite"], "--no-mdns", "--port", "0", "--dir", str(tmp_path / "peer")]
    ended = subprocess.run([str(peer), *arguments], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "install the package `peergrad`" in ended.stderr, ended.stderr
