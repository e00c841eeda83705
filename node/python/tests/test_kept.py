"""State of the user that is saved with the checkpoints: a resumed run is the same run."""

import logging
import signal

import numpy as np
import pytest
from conftest import agree, kill
from programs import EPOCHS, SAMPLES

import peergrad

ALL = EPOCHS * SAMPLES


def test_a_run_whose_peers_were_all_killed_ends_with_the_same_bits(swarm, start, tmp_path):
    undisturbed = agree(swarm("momentum", 2), ALL)[0]["digest"]
    killed = swarm("momentum", 2, port=None, pause=0.05)
    for process in killed:
        process.wait_for_step(40)
    kill(killed)
    assert all(list(process.folder.glob("kept/*/*.pickle")) for process in killed)
    again = [start("momentum", directory=process.folder, pause=0.02, port=None, resume=True) for process in killed]
    steps = [process.wait_for("step") for process in again]
    assert 0 < steps[0]["number"] == steps[1]["number"]
    assert all(any(step["velocity"]) for step in steps)
    assert agree(again, ALL)[0]["digest"] == undisturbed
    for process in again:
        assert f"the state of velocity is that of step {steps[0]['number']}" in process.say()
        assert not (process.folder / "kept").exists(), "a complete run keeps nothing"


def test_without_the_state_it_would_not_be_the_same(swarm, start):
    undisturbed = agree(swarm("momentum", 1), ALL)[0]["digest"]
    killed = swarm("momentum", 1, port=None, pause=0.05, kept=False)[0]
    killed.wait_for_step(40)
    killed.send(signal.SIGKILL)
    killed.code()
    again = start("momentum", directory=killed.folder, port=None, resume=True, kept=False)
    assert agree([again], ALL)[0]["digest"] != undisturbed


def one_peer(directory, **options):
    run = {"epochs": 1, "batch": 4, "optimizer": {"rule": "sgd", "rate": 1.0}}
    quiet = {"mdns": False, "listen": "127.0.0.1", "progress": False, "peers": 1}
    return peergrad.Swarm("test", {"w": (1,)}, samples=40, directory=directory / "peer", run=run, **quiet, **options)


def take(swarm, kept, count):
    """Some steps, each of which counts."""
    numbers = []
    for step in swarm:
        numbers.append(step.number)
        step.finish([np.ones(1, np.float32)], 1.0)
        kept.value += 1
        if len(numbers) == count:
            break
    return numbers


def test_a_peer_that_left_between_steps_goes_on_with_its_state(tmp_path):
    with one_peer(tmp_path) as swarm:
        kept = peergrad.Kept(0)
        swarm.keep(count=kept)
        take(swarm, kept, 6)
    assert swarm.result.outcome == "left"
    with one_peer(tmp_path, resume=True) as swarm:
        kept = peergrad.Kept(0)
        swarm.keep(count=kept)
        numbers = take(swarm, kept, 100)
    assert kept.value == numbers[-1] + 1 == 10


def test_a_damaged_file_is_named_and_the_state_restarts(tmp_path, caplog):
    with one_peer(tmp_path) as swarm:
        swarm.keep(count=peergrad.Kept(0))
        take(swarm, peergrad.Kept(0), 6)
    file = next(tmp_path.glob("peer/kept/*/*.pickle"))
    file.write_bytes(file.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING), one_peer(tmp_path, resume=True) as swarm:
        kept = peergrad.Kept(7)
        swarm.keep(count=kept)
        step = next(swarm)
        assert kept.value == 7
        step.skip()
    assert str(file) in caplog.text and "restarts" in caplog.text


def test_other_objects_than_before_are_refused(tmp_path):
    with one_peer(tmp_path) as swarm:
        swarm.keep(count=peergrad.Kept(0))
        take(swarm, peergrad.Kept(0), 6)
    with one_peer(tmp_path, resume=True) as swarm:
        swarm.keep(other=peergrad.Kept(0))
        with pytest.raises(ValueError, match="has count, but the swarm keeps other"):
            next(swarm)


def test_what_has_no_state_and_what_comes_late_is_refused(tmp_path):
    with one_peer(tmp_path) as swarm:
        with pytest.raises(TypeError, match="`values` is a list.*peergrad.Kept"):
            swarm.keep(values=[1, 2])
        swarm.keep(count=peergrad.Kept(0))
        with pytest.raises(ValueError, match="kept already"):
            swarm.keep(count=peergrad.Kept(0))
        for step in swarm:
            with pytest.raises(RuntimeError, match="before it"):
                swarm.keep(more=peergrad.Kept(0))
            step.finish([np.ones(1, np.float32)], 1.0)


def test_a_state_that_cannot_be_saved_is_logged_and_training_goes_on(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), one_peer(tmp_path) as swarm:
        kept = peergrad.Kept(lambda: None)
        swarm.keep(function=kept)
        for step in swarm:
            step.finish([np.ones(1, np.float32)], 1.0)
            if step.number == 4:
                break
    assert swarm.result.outcome == "left"
    assert "cannot save the state of function" in caplog.text


def test_a_peer_says_that_there_is_nothing_to_resume(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), one_peer(tmp_path, resume=True):
        pass
    assert "there is nothing to resume: this is a new run" in caplog.text
