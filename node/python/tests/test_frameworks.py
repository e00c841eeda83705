"""JAX, and frameworks that keep their own loop."""

import pytest
from conftest import agree
from programs import EPOCHS, SAMPLES


def test_a_tree_of_jax_trains(swarm):
    pytest.importorskip("jax", reason="JAX is not installed")
    processes = swarm("tree", 2)
    learned = [process.wait_for("learned")["w"] for process in processes]
    agree(processes, EPOCHS * SAMPLES)
    assert learned[0] == learned[1] == pytest.approx([1, -2, 3], abs=0.01)


def test_the_trainer_of_transformers_sends_adapters_only(swarm):
    pytest.importorskip("peft", reason="peft is not installed")
    processes = swarm("trainer", 2, batch=64, run={"sync": {"kind": "diloco", "local_steps": 1}})
    sizes = processes[0].wait_for("sizes")
    assert sizes["travels"] < sizes["all"] / 5
    agree(processes, EPOCHS * SAMPLES)


def test_the_trainer_of_lightning_takes_rounds(swarm):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    processes = swarm("module", 2, batch=80, run={"sync": {"kind": "local", "local_steps": 1}}, epochs=8)
    learned = [process.wait_for("learned")["w"] for process in processes]
    agree(processes, 8 * SAMPLES)
    assert learned[0] == learned[1] == pytest.approx([1, -2, 3], abs=0.1)
