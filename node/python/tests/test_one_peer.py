"""One peer in this process: its steps, its end, and bad input."""

import math
import os
import time

import numpy as np
import pytest

import peergrad


def one_peer(directory, shapes=None, *, samples=12, **options):
    run = {"epochs": 1, "batch": 4, "optimizer": {"rule": "sgd", "rate": 1.0}, **options.pop("run", {})}
    quiet = {"mdns": False, "listen": "127.0.0.1", "port": 0, "progress": False, "peers": 1}
    shapes = {"w": (2,), "b": ()} if shapes is None else shapes
    return peergrad.Swarm("test", shapes, samples=samples, directory=directory / "peer", run=run, **{**quiet, **options})


def zeros():
    return {"w": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}


def test_a_run_deals_every_sample_once_and_ends(tmp_path):
    seen = []
    with one_peer(tmp_path) as swarm:
        for step in swarm:
            assert (step.rank, step.members, step.epoch, step.is_wanted) == (0, 1, 0, True)
            assert step.samples.dtype == np.uint32
            seen += step.samples.tolist()
            step.finish({"w": np.ones(2, np.float32) * len(step.samples), "b": np.zeros((), np.float32)}, 1.0)
    assert sorted(seen) == list(range(12))
    result = swarm.result
    assert (result.outcome, result.steps, result.samples, result.left_out) == ("done", 3, 12, 0)
    assert swarm.last_parameters()["w"].tolist() == [-3, -3]
    assert result.model.exists()
    assert swarm.loss == 0.25
    assert swarm.status() == {}


def test_training_starts_from_the_founders_parameters(tmp_path):
    first = {"w": np.array([1, 2], np.float32), "b": np.array(3, np.float32)}
    with one_peer(tmp_path, initial=first) as swarm:
        step = next(swarm)
        assert {name: array.tolist() for name, array in step.parameters().items()} == {"w": [1, 2], "b": 3}
        flat = np.empty(3, np.float32)
        step.parameters([flat])
        assert flat.tolist() == [1, 2, 3]
        step.finish([np.ones(3, np.float32) * 4])
        assert next(swarm).parameters()["w"].tolist() == [0, 1]


BAD = {
    "shape": ({"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}, 0.0, ValueError, r"shape \(3,\), but the model has \(2,\)"),
    "type": ({"w": np.zeros(2), "b": np.zeros((), np.float32)}, 0.0, TypeError, "not an array of float32"),
    "none": ({"w": None, "b": np.zeros((), np.float32)}, 0.0, TypeError, "the array of `w`"),
    "missing": ({"w": np.zeros(2, np.float32)}, 0.0, ValueError, "b missing"),
    "unknown": ({**zeros(), "c": np.zeros(1, np.float32)}, 0.0, ValueError, "c unknown"),
    "count": ([np.zeros(2, np.float32)] * 3, 0.0, ValueError, "3 arrays were given for 2 tensors"),
    "not finite": ({**zeros(), "w": np.array([1, np.nan], np.float32)}, 0.0, ValueError, "computed for `w` .*`step.skip"),
    "infinite": ({**zeros(), "b": np.array(np.inf, np.float32)}, 0.0, ValueError, "computed for `b`"),
    "loss": (zeros(), math.nan, ValueError, "the loss of step 0 is nan"),
    "transposed": ({"w": np.zeros((1, 2), np.float32), "b": np.zeros((), np.float32)}, 0.0, ValueError, r"shape \(1, 2\), but the model has \(2,\)"),
    "byte order": ({"w": np.full(2, 4, ">f4"), "b": np.zeros((), np.float32)}, 0.0, TypeError, "bytes in another order"),
    "strides": ({"w": np.zeros(4, np.float32)[::2], "b": np.zeros((), np.float32)}, 0.0, ValueError, "not contiguous"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_result_is_refused_and_the_step_stays_open(tmp_path, case):
    vectors, loss, kind, words = BAD[case]
    with one_peer(tmp_path) as swarm:
        step = next(swarm)
        with pytest.raises(kind, match=words):
            step.finish(vectors, loss)
        assert step.finish(zeros(), 0.0)
        step = next(swarm)
        step.finish(zeros())
    assert swarm.result.left_out == 0


def test_a_step_is_finished_once_and_before_the_next(tmp_path):
    with one_peer(tmp_path) as swarm:
        step = next(swarm)
        with pytest.raises(RuntimeError, match="step 0 is not finished"):
            next(swarm)
        step.finish(zeros())
        with pytest.raises(RuntimeError, match="step 0 is finished already"):
            step.finish(zeros())
        with pytest.raises(RuntimeError, match="step 0 is finished already"):
            step.parameters()


def test_a_skipped_step_leaves_its_samples_out(tmp_path):
    with one_peer(tmp_path) as swarm:
        for step in swarm:
            step.skip() if step.number == 1 else step.finish(zeros())
    assert (swarm.result.samples, swarm.result.left_out) == (8, 4)


def test_nothing_works_after_leaving(tmp_path):
    with one_peer(tmp_path) as swarm:
        step = next(swarm)
        swarm.leave()
        assert swarm.result.outcome in ("left", "gave_up")
        with pytest.raises(peergrad.Left, match="has left the swarm"):
            step.finish(zeros())
    assert list(swarm) == []


def test_an_exception_passes_through(tmp_path):
    with pytest.raises(ZeroDivisionError), one_peer(tmp_path) as swarm:
        for _ in swarm:
            raise ZeroDivisionError
    assert swarm.result.outcome == "gave_up"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"run": {"batch": 0}}, "batch"),
        ({"run": "epochs = 'many'"}, "epochs"),
        ({"run": "no-such-file.toml"}, "cannot read the run file no-such-file.toml"),
        ({"run": {"epoch": 1}}, "epoch"),
        ({"samples": 0}, "samples"),
        ({"shapes": {}}, "needs a tensor"),
        ({"shapes": {"w": (0,)}}, "no tensor may be empty"),
        ({"invite": "pg1nonsense"}, "invite"),
        ({"listen": "here"}, "`listen` is `here`"),
        ({"external": ["here"]}, "`here` in `external`"),
        ({"threads": 0}, "thread"),
        ({"initial": {"w": np.array([np.nan, 0], np.float32), "b": np.zeros((), np.float32)}}, "`initial` has an element in `w`"),
        ({"samples": 2**32}, "`samples` is 4294967296: give a whole number from 1 to 4294967295"),
        ({"samples": 1.5}, "`samples` is 1.5"),
        ({"port": 70000}, "`port` is 70000"),
        ({"capacity": 17}, "`capacity` is 17"),
        ({"peers": 0}, "`peers` is 0"),
        ({"kind": "sync", "run": {"sync": {"kind": "local"}}}, "kind is 'sync', but the run says 'local' for `sync.kind`"),
        ({"run": {"epochs": float("nan")}}, "epochs"),
    ],
)
def test_bad_settings_are_refused_in_words(tmp_path, options, words):
    run = options.pop("run", {})
    defaults = {"directory": tmp_path, "mdns": False, "listen": "127.0.0.1", "port": 0, "progress": False, "peers": 1}
    arguments = {"shapes": {"w": (2,), "b": ()}, "samples": 10, **defaults, **options}
    with pytest.raises(ValueError, match=words):
        peergrad.Swarm("test", arguments.pop("shapes"), run=run, **arguments)


def test_an_argument_adds_to_the_sections_of_a_run(tmp_path):
    with one_peer(tmp_path, kind="local", run={"sync": {"local_steps": 2}, "network": {"mdns": False}}) as swarm:
        step = next(swarm)
        assert (step.wants_parameters, step.local_steps, len(step.samples)) == (True, 2, 8)
        step.finish(step.parameters())
        next(swarm).skip()


def test_a_run_can_be_a_path_a_text_or_a_mapping(tmp_path):
    path = tmp_path / "a=b.toml"
    path.write_text("epochs = 2\nbatch = 6\n")
    for run in (path, str(path), path.read_text(), {"epochs": np.int64(2), "batch": 6, "optimizer": {"rate": np.float64(0.5)}}):
        quiet = {"mdns": False, "listen": "127.0.0.1", "port": 0, "progress": False, "peers": 1}
        with peergrad.Swarm("test", {"w": (1,)}, samples=12, directory=tmp_path / "peer", run=run, **quiet) as swarm:
            numbers = [step.finish([np.zeros(1, np.float32)]) for step in swarm]
        assert numbers == [True] * 4


def test_a_step_outlives_an_exception_of_a_log_handler(tmp_path, caplog):
    with one_peer(tmp_path) as swarm:
        handle, swarm._handle_events = swarm._handle_events, lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            while True:
                next(swarm)
        swarm._handle_events = handle
        for step in swarm:
            step.finish(zeros())
    assert (swarm.result.samples, swarm.result.left_out) == (12, 0)


def test_a_dropped_swarm_frees_its_directory(tmp_path):
    for _ in range(3):
        swarm = one_peer(tmp_path)
        next(swarm)
        del swarm
        # What it was writing is written first.
        for _ in range(200):
            try:
                swarm = one_peer(tmp_path)
                break
            except OSError:
                time.sleep(0.01)
        del swarm
        time.sleep(0.2)


def test_a_directory_serves_one_peer_at_a_time(tmp_path):
    with one_peer(tmp_path):
        with pytest.raises(OSError, match="in use|uses"):
            one_peer(tmp_path)


def test_a_forked_child_may_not_use_the_swarm(tmp_path):
    with one_peer(tmp_path) as swarm:
        step = next(swarm)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for use in (swarm.status, step.parameters, lambda: step.finish(zeros()), step.skip, swarm.leave, lambda: swarm.invite):
                try:
                    use()
                except RuntimeError as error:
                    said.append("forked" in str(error))
            os.write(write, repr(said).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 1000).decode() == repr([True] * 6)
        assert swarm.status()["phase"] == "training"
        step.finish(zeros())


def test_the_status_is_that_of_the_peer_command(tmp_path):
    with one_peer(tmp_path) as swarm:
        status = swarm.status()
        assert status["peer"] == swarm.peer
        assert swarm.invite.startswith("pg1")
        next(swarm)
