"""Tables: one peer in this process, and several real processes."""

import json
import os
import signal

import numpy as np
import pytest
from conftest import agree, kill
from programs import BATCH, EPOCHS, SAMPLES

import peergrad
from peergrad import Table

ALL = EPOCHS * SAMPLES


def one_peer(directory, tables, *, samples=12, **options):
    run = {"epochs": 1, "batch": 4, **options.pop("run", {})}
    quiet = {"mdns": False, "listen": "127.0.0.1", "port": 0, "progress": False, "peers": 1}
    return peergrad.Tables("test", tables, samples=samples, directory=directory / "peer", run=run, **{**quiet, **options})


def ones(*shape):
    return np.ones(shape, np.float32)


def test_each_row_is_counted_once_an_epoch(tmp_path):
    seen = []
    with one_peer(tmp_path, {"counts": Table(12, 1)}, run={"epochs": 3}) as swarm:
        for clock in swarm:
            assert (clock.rank, clock.members, clock.number, clock.epoch) == (0, 1, len(seen), len(seen) // 3)
            assert clock.samples.dtype == np.uint32 and clock.is_wanted
            seen.append(clock.samples.tolist())
            clock.add("counts", clock.samples, ones(4, 1))
            assert clock.end(1.0)
    assert [sorted(sum(seen[at : at + 3], [])) for at in (0, 3, 6)] == [list(range(12))] * 3
    assert swarm.last_table("counts").tolist() == [[3]] * 12
    result = swarm.result
    assert (result.outcome, result.samples, result.left_out, result.own_samples) == ("done", 36, 0, 36)
    assert swarm.loss == 0.25
    assert swarm.status() == {}


def test_rows_are_named_in_any_order_and_more_than_once(tmp_path):
    first = np.arange(20, dtype=np.float32).reshape(10, 2)
    with one_peer(tmp_path, {"other": Table(3, 1), "first": Table(10, 2, initial=first)}) as swarm:
        clock = next(swarm)
        for rows in ([7, 2, 7], np.array([[9, 0], [0, 9]], np.uint8), 4, [], np.zeros((0, 3), int), range(10), np.arange(10)[::-2]):
            got = clock.get("first", rows)
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, first[np.asarray(rows, int)])
        added = np.arange(8, dtype=np.float32).reshape(4, 2)
        clock.add("first", [5, 1, 5, 5], added)
        clock.add("first", 1, added[3])
        clock.add("first", [], np.zeros((0, 2), np.float32))
        np.add.at(first, [5, 1, 5, 5, 1], added[[0, 1, 2, 3, 3]])
        np.testing.assert_array_equal(clock.get("first", np.arange(10)), first)
        assert clock.push()
        clock.add("other", [2, 0], np.array([[8], [4]], np.float32))
        clock.end()
        for clock in swarm:
            np.testing.assert_array_equal(clock.get("first", np.arange(10)), first)
            clock.end()
    np.testing.assert_array_equal(swarm.last_table("first"), first)
    rows, values = swarm.last_rows("other")
    assert (rows.tolist(), values.tolist()) == ([0, 2], [[4], [8]])
    assert swarm.last_rows("first")[0].tolist() == list(range(10))


def test_several_tables_start_with_values_and_are_the_saved_model(tmp_path):
    tables = {
        "wide": Table(3, 4, initial=np.arange(12).reshape(3, 4)),
        "zero": Table(1000, 3),
        "one": Table(5, 1, initial=1),
        "row": Table(2, 3, initial=[1, 2, 3]),
    }
    with one_peer(tmp_path, tables) as swarm:
        for clock in swarm:
            assert clock.get("row", [0, 1]).tolist() == [[1, 2, 3]] * 2
            clock.add("one", [4], ones(1, 1))
            clock.add("wide", [1], ones(1, 4))
            clock.add("zero", [999], ones(1, 3))
            clock.end()
    assert swarm.last_table("one").tolist() == [[1]] * 4 + [[4]]
    assert swarm.last_table("wide").tolist() == [[0, 1, 2, 3], [7, 8, 9, 10], [8, 9, 10, 11]]
    assert swarm.last_table("row").tolist() == [[1, 2, 3]] * 2
    assert swarm.last_rows("zero")[1].tolist() == [[3, 3, 3]]
    for name, saved in tensors_of(swarm.result.model).items():
        np.testing.assert_array_equal(saved, swarm.last_table(name).ravel())
    assert tensors_of(swarm.result.model).keys() == {"wide", "one", "row"}


def tensors_of(model):
    """The flat tensors of a safetensors file: a length, a header of JSON, and the numbers."""
    data = model.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = {name: entry for name, entry in json.loads(data[8:end]).items() if name != "__metadata__"}
    return {name: np.frombuffer(data[end:][slice(*entry["data_offsets"])], np.float32) for name, entry in header.items()}


def test_a_large_table_takes_the_memory_of_its_rows(tmp_path):
    with one_peer(tmp_path, {"large": Table(200_000_000, 64), "larger": Table(2**30, 8, read_at_end=False)}) as swarm:
        for clock in swarm:
            rows = np.array([199_999_999, 5])
            clock.add("large", rows, ones(2, 64))
            clock.add("larger", 2**30 - 1, ones(8))
            assert clock.get("larger", 2**30 - 1).tolist() == [clock.number + 1] * 8
            clock.end()
    rows, values = swarm.last_rows("large")
    assert (rows.tolist(), values[:, 0].tolist()) == ([5, 199_999_999], [3, 3])
    with pytest.raises(RuntimeError, match="was not read at the end"):
        swarm.last_rows("larger")


def sgd(row, gradient, state, rate):
    return row - rate * gradient


def momentum(row, gradient, state, rate):
    state["m"] = 0.9 * state.get("m", 0) + gradient
    return row - rate * state["m"]


def adagrad(row, gradient, state, rate):
    state["s"] = state.get("s", 0) + gradient**2
    return row - rate * gradient / (np.sqrt(state["s"]) + 1e-10)


def adam(row, gradient, state, rate, beta1=0.5):
    state["t"] = state.get("t", 0) + 1
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * gradient
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
    mean, square = state["m"] / (1 - beta1 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
    return row - rate * mean / (np.sqrt(square) + 1e-8)


RULES = {
    "sgd": (sgd, "sgd"),
    "momentum": (momentum, "momentum"),
    "adagrad": (adagrad, "adagrad"),
    "adam": (adam, {"rule": "adam", "beta1": 0.5}),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("rate", [0.1, None], ids=["own rate", "the run's rate"])
def test_the_rule_of_the_owners_is_that_of_a_plain_loop(tmp_path, name, rate):
    update, rule = RULES[name]
    rng = np.random.default_rng(1)
    plain = rng.normal(size=(6, 3))
    states = [{} for _ in plain]
    tables = {"w": Table(6, 3, rule=rule, rate=rate, initial=plain)}
    with one_peer(tmp_path, tables, samples=200, run={"optimizer": {"rate": 0.1}}) as swarm:
        for clock in swarm:
            np.testing.assert_allclose(clock.get("w", np.arange(6)), plain, rtol=1e-4, atol=1e-5)
            rows = clock.samples % 6
            gradients = rng.normal(size=(4, 3)).astype(np.float32)
            clock.add("w", rows, gradients)
            # What a clock adds to a row is one gradient.
            for row in set(rows.tolist()):
                plain[row] = update(plain[row], gradients[rows == row].astype(np.float64).sum(0), states[row], 0.1)
            clock.end()
    np.testing.assert_allclose(swarm.last_table("w"), plain, rtol=1e-4, atol=1e-5)


BAD_ROWS = {
    "after the last": ("w", [0, 4], IndexError, "no row 4 in table `w`, which has the rows 0 to 3"),
    "negative": ("w", [-1], IndexError, "no row -1"),
    "fraction": ("w", [0.5], TypeError, "the row numbers are float64"),
    "mask": ("w", [True, False], TypeError, "the row numbers are bool"),
    "no table": ("v", [0], ValueError, "no table 'v': this run has 'w'"),
}
BAD_VALUES = {
    "width": ([0], ones(1, 3), ValueError, r"have the shape \(1, 3\): for these rows it must be \(1, 2\)"),
    "count": ([0, 1], ones(1, 2), ValueError, r"must be \(2, 2\)"),
    "type": ([0], np.ones((1, 2)), TypeError, "are float64: convert them"),
    "not finite": ([2, 1], np.array([[0, 0], [np.nan, 0]], np.float32), ValueError, "row 1 of table `w` .*`clock.skip"),
    "too large a sum": ([1, 1], np.full((2, 2), 3e38, np.float32), ValueError, "row 1 of table `w`"),
}


def test_bad_rows_are_refused_and_the_clock_stays_open(tmp_path):
    with one_peer(tmp_path, {"w": Table(4, 2)}) as swarm:
        clock = next(swarm)
        for table, rows, kind, words in BAD_ROWS.values():
            with pytest.raises(kind, match=words):
                clock.get(table, rows)
            with pytest.raises(kind, match=words):
                clock.add(table, rows, ones(len(rows), 2))
        for rows, values, kind, words in BAD_VALUES.values():
            with pytest.raises(kind, match=words):
                clock.add("w", rows, values)
        with pytest.raises(ValueError, match="the loss of clock 0 is nan"):
            clock.end(np.nan)
        clock.add("w", [3], ones(1, 2))
        clock.end()
        for clock in swarm:
            clock.end()
    assert swarm.last_table("w").tolist() == [[0, 0]] * 3 + [[1, 1]]


def test_a_clock_ends_once_and_before_the_next(tmp_path):
    with one_peer(tmp_path, {"w": Table(4, 2)}) as swarm:
        clock = next(swarm)
        with pytest.raises(RuntimeError, match="clock 0 is not ended: call `clock.end"):
            next(swarm)
        with pytest.raises(RuntimeError, match="not over here"):
            swarm.last_table("w")
        clock.end()
        for use in (clock.end, clock.push, clock.skip, lambda: clock.get("w", 0), lambda: clock.add("w", 0, ones(2))):
            with pytest.raises(RuntimeError, match="clock 0 is finished already"):
                use()


def test_a_skipped_clock_leaves_its_samples_out(tmp_path):
    with one_peer(tmp_path, {"w": Table(4, 2)}) as swarm:
        for clock in swarm:
            clock.skip() if clock.number else clock.end()
    assert (swarm.result.outcome, swarm.result.samples, swarm.result.left_out) == ("done", 4, 8)
    rows, values = swarm.last_rows("w")
    assert (rows.shape, values.shape) == ((0,), (0, 2))


def test_nothing_works_after_leaving(tmp_path):
    with one_peer(tmp_path, {"w": Table(4, 2)}) as swarm:
        clock = next(swarm)
        swarm.leave()
        assert swarm.result.outcome in ("left", "gave_up")
        with pytest.raises(peergrad.Left, match="has left the swarm"):
            clock.get("w", 0)
        with pytest.raises(RuntimeError, match="has not seen the end of the run"):
            swarm.last_table("w")
    assert list(swarm) == []


def test_an_exception_passes_through(tmp_path):
    with pytest.raises(ZeroDivisionError), one_peer(tmp_path, {"w": Table(4, 2)}) as swarm:
        for _ in swarm:
            raise ZeroDivisionError
    assert swarm.result.outcome == "gave_up"


def test_a_forked_child_may_not_use_the_tables(tmp_path):
    with one_peer(tmp_path, {"w": Table(4, 2)}) as swarm:
        clock = next(swarm)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for use in (swarm.status, lambda: clock.get("w", 0), lambda: clock.add("w", 0, ones(2)), clock.push, clock.end, swarm.leave):
                try:
                    use()
                except RuntimeError as error:
                    said.append("forked" in str(error))
            os.write(write, repr(said).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 1000).decode() == repr([True] * 6)
        clock.end()


@pytest.mark.parametrize(
    ("tables", "options", "words"),
    [
        ({}, {}, "`tables` has no table"),
        ({"w": Table(0, 2)}, {}, "`rows` is 0"),
        ({"w": Table(2, 0)}, {}, "`width` is 0"),
        ({"w": Table(2**33, 1)}, {}, "`rows` is 8589934592: give a whole number from 1 to 4294967295"),
        ({"w": Table(2, 2**23)}, {}, "table `w` is too large"),
        ({"w": Table(2, 2, rule="best")}, {}, "best"),
        ({"w": Table(2, 2, rule={"rule": "sgd", "beta1": 0.5})}, {}, "beta1"),
        ({"w": Table(2, 2, rule={"rule": "sgd", "groups": []})}, {}, "the key `groups`"),
        ({"w": Table(2, 2, rate=0.1)}, {}, "the rule \"sum\" has none"),
        ({"w": Table(2, 2, rule="sgd", rate=-1)}, {}, "`rate` of table 'w' is -1"),
        ({"w": Table(2, 2, initial=np.zeros(3))}, {}, r"`initial` of table 'w' has the shape \(3,\), but the table has \(2, 2\)"),
        ({"w": Table(2, 2, initial=np.nan)}, {}, "`initial` has an element in `w`"),
        ({"w": Table(2, 2)}, {"staleness": -1}, "`staleness` is -1"),
        ({"w": Table(2, 2)}, {"run": {"sync": {"kind": "local"}}}, "kind"),
        ({"w": Table(2, 2)}, {"run": {"optimizer": {"clip_norm": 1.0}}}, "clip_norm"),
        ({"w": Table(2, 2)}, {"samples": 0}, "`samples` is 0"),
    ],
)
def test_bad_settings_are_refused_in_words(tmp_path, tables, options, words):
    with pytest.raises(ValueError, match=words):
        one_peer(tmp_path, tables, **options)


def test_an_unknown_argument_is_refused(tmp_path):
    with pytest.raises(TypeError, match="'stale'"):
        one_peer(tmp_path, {"w": Table(2, 2)}, stale=1)
    with pytest.raises(TypeError, match="`atomic` is 'no': give True or False"):
        one_peer(tmp_path, {"w": Table(2, 2)}, atomic="no")


# Several processes.


def sums(process):
    return process.wait_for("sums")


def exact(processes):
    """All of them end, and every row was counted once an epoch."""
    for process in processes:
        counted = sums(process)
        assert counted["counts"] == [[EPOCHS, EPOCHS * row] for row in range(SAMPLES)]
        assert counted["total"] == ALL
    return agree(processes, ALL)


def at_least(processes):
    """All of them end with the same tables, and no row was counted less than once an epoch.

    If a worker is lost after its additions are safe and before its clock is done, another worker counts the same rows again.
    """
    counted = [sums(process) for process in processes]
    assert all(other == counted[0] for other in counted)
    for row, (count, numbers) in enumerate(counted[0]["counts"]):
        assert count >= EPOCHS and numbers == count * row
    assert counted[0]["total"] >= ALL
    return agree(processes, ALL)


@pytest.mark.parametrize(("count", "staleness"), [(2, None), (2, 0), (3, None), (3, 1)])
def test_peers_count_every_row_exactly(swarm, count, staleness):
    results = exact(swarm("counting", count, staleness=staleness))
    assert sum(result["own_samples"] for result in results) == ALL


def test_a_killed_peer_costs_no_row(swarm, tmp_path):
    """It is killed in a clock, while the others wait in one of theirs."""
    killed = tmp_path / "killed"
    processes = swarm("counting", 3, hold_at=10, hold_until=killed)
    for process in processes:
        process.wait_for_step(9)
    processes[2].send(signal.SIGKILL)
    assert processes[2].code() == -signal.SIGKILL
    killed.touch()
    exact(processes[:2])


def test_all_killed_peers_continue_with_the_rows_of_a_checkpoint(swarm, start):
    # Without a port of its own, a peer listens again where the others look for it.
    processes = swarm("counting", 3, pause=0.2, port=None, run={"checkpoints": {"seconds": 1}})
    processes[0].wait_for_step(14)
    kill(processes)
    again = [start("counting", directory=process.folder, pause=0.02, port=None, resume=True) for process in processes]
    exact(again)
    assert again[0].seen[0]["event"] == "invite"
    first = next(line for line in again[0].seen if line["event"] == "step")
    assert first["number"] > 2, "it continues from a checkpoint"


def test_a_late_joiner_takes_part(swarm, start, tmp_path):
    joined = tmp_path / "joined"
    processes = swarm("counting", 2, hold_at=10, hold_until=joined)
    processes[0].wait_for_step(9)
    processes.append(start("counting", invite=processes[0].seen[0]["invite"]))
    processes[2].wait_for("step")
    joined.touch()
    results = exact(processes)
    assert all(result["own_samples"] > 0 for result in results)


def test_an_exception_ends_one_peer_only(start, tmp_path):
    founder, other, failing = three(start, tmp_path, at=5, what="fail")
    assert failing.code() == 1
    assert "ZeroDivisionError: the user's own code failed" in failing.say()
    (tmp_path / "go on").touch()
    exact([founder, other])


def test_a_peer_that_leaves_between_two_clocks_costs_nothing(start, tmp_path):
    founder, other, leaver = three(start, tmp_path, at=5, what="leave")
    result = leaver.result()
    assert (result["outcome"], result["has_handed_over"]) == ("left", True)
    (tmp_path / "go on").touch()
    exact([founder, other])


def test_a_peer_that_leaves_within_a_clock_costs_no_row(start, tmp_path):
    founder, other, leaver = three(start, tmp_path, at=5, what="leave within")
    assert leaver.code() == 1
    assert "Left" in leaver.say()
    (tmp_path / "go on").touch()
    exact([founder, other])


def test_all_peers_know_how_many_samples_were_left_out(start, tmp_path):
    founder, other, skipping = three(start, tmp_path, at=3, what="skip")
    skipping.wait_for_step(4)
    (tmp_path / "go on").touch()
    for result in (founder.result(), other.result(), skipping.result()):
        assert (result["outcome"], result["samples"], result["left_out"]) == ("done", ALL - BATCH, BATCH)


def test_a_clock_that_others_do_not_wait_for_counts_for_nothing(start, tmp_path):
    """One peer stays in a clock until the others have gone on. It comes back, and what it does in that clock is void."""
    common = {"staleness": 0, "run": {"sync": {"patience_seconds": 1}}, "hold_until": tmp_path / "back"}
    founder = start("counting", peers=3, hold_at=20, **common)
    invite = founder.wait_for("invite")["invite"]
    other = start("counting", invite=invite, hold_at=20, **common)
    late = start("counting", invite=invite, at=3, what="linger", **common)
    lingered = late.wait_for("lingered")
    assert (lingered["pushed"], lingered["is_wanted"]) == (False, False)
    at_least([founder, other, late])


def test_ctrl_c_ends_a_wait_for_other_workers(start, tmp_path):
    founder = start("counting", peers=2, staleness=0, hold_at=5, hold_until=tmp_path / "never")
    waiting = start("counting", invite=founder.wait_for("invite")["invite"], staleness=0)
    waiting.wait_for_step(4)
    waiting.send(signal.SIGINT)
    assert waiting.code() in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in waiting.say()


def test_other_tables_are_refused(start):
    founder = start("counting", peers=2)
    stranger = start("counting", invite=founder.wait_for("invite")["invite"], staleness=3)
    assert stranger.code() == 1
    assert "Refused" in stranger.say() and "counts: 600 x 2" in stranger.say() and "staleness 3" in stranger.say()


def three(start, folder, **of_last):
    """Three peers of one run. The last one is different, and the others wait at their fifth clock until the file `go on` exists."""
    waiting = {"hold_at": 5, "hold_until": folder / "go on"}
    founder = start("counting", peers=3, **waiting)
    invite = founder.wait_for("invite")["invite"]
    return founder, start("counting", invite=invite, **waiting), start("counting", invite=invite, **of_last)
