"""Two and three real processes: what one does is noticed by the others, and no sample is lost."""

import signal

import pytest
from conftest import agree, kill
from programs import EPOCHS, SAMPLES

ALL = EPOCHS * SAMPLES


@pytest.mark.parametrize("count", [2, 3])
def test_peers_train_together(swarm, count):
    results = agree(swarm("line", count), ALL)
    assert sum(result["own_samples"] for result in results) == ALL


@pytest.mark.parametrize("kind", ["backup-workers", "ssp", "async"])
def test_every_kind_serves_the_same_loop(swarm, kind):
    processes = swarm("line", 2, kind=kind)
    results = [process.result() for process in processes]
    assert all(result["outcome"] == "done" for result in results), results
    assert results[0]["samples"] + results[0]["left_out"] == ALL


def test_a_killed_peer_costs_no_sample(swarm):
    processes = swarm("line", 3, pause=0.02)
    processes[2].wait_for_step(10)
    processes[2].send(signal.SIGKILL)
    agree(processes[:2], ALL)


def test_an_exception_ends_one_peer_only(start):
    founder, other, failing = three(start, at=5, what="fail")
    assert failing.code() == 1
    assert "ZeroDivisionError: the user's own code failed" in failing.say()
    agree([founder, other], ALL)


def test_ctrl_c_is_an_exception_like_others(swarm):
    processes = swarm("line", 3, pause=0.02)
    processes[2].wait_for_step(10)
    processes[2].send(signal.SIGINT)
    assert processes[2].code() in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in processes[2].say()
    agree(processes[:2], ALL)


@pytest.mark.parametrize("what", ["leave", "leave within"])
def test_a_peer_that_leaves_costs_no_sample(start, what):
    founder, other, leaver = three(start, at=5, what=what)
    if what == "leave":
        assert leaver.result()["outcome"] == "left"
        assert leaver.code() == 0
    else:
        assert leaver.code() == 1
        assert "Left" in leaver.say()
    agree([founder, other], ALL)


def test_a_late_joiner_gets_the_parameters(swarm, start):
    processes = swarm("line", 2, pause=0.02)
    processes[0].wait_for_step(10)
    processes.append(start("line", invite=invite_of(processes[0]), pause=0.02))
    agree(processes, ALL)


def test_a_frozen_process_is_waited_for_or_left_out(swarm):
    processes = swarm("line", 3, pause=0.02)
    processes[2].wait_for_step(10)
    processes[2].send(signal.SIGSTOP)
    results = [process.result() for process in processes[:2]]
    processes[2].send(signal.SIGCONT)
    for result in results:
        assert (result["outcome"], result["samples"], result["left_out"]) == ("done", ALL, 0)


def test_a_busy_peer_is_waited_for(swarm):
    """Longer than the run's patience, in the first step and, with a word, in a later one."""
    patient = {"sync": {"patience_seconds": 1}}
    processes = swarm("line", 2, run=patient, slow={"0": 3, "20": 3})
    agree(processes, ALL)
    for process in processes:
        assert "excluded" not in process.say() and "without" not in process.say(), process.say()


def test_all_killed_peers_continue(swarm, start):
    # Without a port of its own, a peer listens again where the others look for it.
    processes = swarm("line", 2, pause=0.05, port=None, run={"checkpoints": {"seconds": 1}})
    processes[0].wait_for_step(30)
    kill(processes)
    again = [start("line", directory=process.folder, pause=0.02, port=None, resume=True) for process in processes]
    agree(again, ALL)


def test_local_steps_in_groups(swarm):
    agree(swarm("momentum", 3, kind="ds-sync", kept=False), ALL)


def test_a_joiner_knows_the_settings_of_the_founder(start):
    founder = start("founders_settings", peers=2, run={"settings": {"words": ["a", "b"], "deep": {"heads": 4}}})
    other = start("founders_settings", invite=founder.wait_for("invite")["invite"])
    for process in (founder, other):
        assert process.wait_for("settings")["settings"] == {"words": ["a", "b"], "deep": {"heads": 4}}
    agree([founder, other], ALL)


def test_a_loop_ends_the_run_for_all(start):
    founder = start("line", peers=3, pause=0.02, epochs=400)
    invite = founder.wait_for("invite")["invite"]
    others = [start("line", invite=invite, pause=0.02), start("line", invite=invite, pause=0.02, at=10, what="end")]
    results = [process.result() for process in (founder, *others)]
    for result in results:
        assert result["outcome"] == "done", result
        assert 0 < result["samples"] < 400 * SAMPLES and result["left_out"] == 0
        assert (result["digest"], result["samples"]) == (results[0]["digest"], results[0]["samples"])


def test_a_stranger_is_refused(start):
    founder = start("line", peers=2)
    stranger = start("momentum", invite=founder.wait_for("invite")["invite"])
    assert stranger.code() == 1
    assert "Refused" in stranger.say() and "trains the task `line`" in stranger.say()


def invite_of(process):
    return process.seen[0]["invite"]


def three(start, **of_last):
    """Three peers of one run, of which the last one is different. (Of two, one alone may have to wait for the other.)"""
    founder = start("line", peers=3, pause=0.02)
    invite = founder.wait_for("invite")["invite"]
    return founder, start("line", invite=invite, pause=0.02), start("line", invite=invite, **of_last)
