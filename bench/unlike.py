#!/usr/bin/env python3
"""Peers on one machine, one of which gets a third of the processor time of each other one.

    cargo build --release && sudo bench/unlike.py [ROUNDS [PEERS]]

Control groups limit the processor time of each peer (version 1 or 2 of them, as root on Linux). The times of a step in seconds, in rounds that
alternate: with equal peers that have, together, as much time as the unlike ones; with unlike peers; and with unlike peers and
`dealing = "even"`. Ratios are to the equal peers, medians of the rounds.
"""
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from peers import Peer, noise
from threads import processor

ROOTS = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]
PERIOD = 20_000
# Of all cores: what the peers get together. The rest is for the kernel and this script.
SHARE = 0.75
SLOWNESS = 3
# Steps that are measured, after those in which members measure their speeds.
SETTLE, MEASURED = 80, 50
COLUMNS, CLASSES, ROWS, HIDDEN = 64, 10, 12800, [512, 512]


class Limit:
    """A control group with so much processor time, as a part of one core."""

    def __init__(self, name, cores):
        root = next(root for root in ROOTS if root.is_dir())
        self.path = root / f"peergrad-{os.getpid()}-{name}"
        self.path.mkdir()
        quota = max(1000, int(PERIOD * cores))
        if (self.path / "cpu.cfs_quota_us").exists():
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.path / "cpu.max").write_text(f"{quota} {PERIOD}")
        self.before = ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def remove(self):
        self.path.rmdir()


def step_seconds(folder, cores, dealing):
    """The time of a late step of peers with so many cores each."""
    run_file = folder / "run.toml"
    # A batch is an epoch: the held-out fifth is not trained.
    run_file.write_text(
        f'epochs = {SETTLE + MEASURED}\nbatch = {ROWS * 4 // 5}\n[data]\nfile = "noise.csv"\n[model]\nkind = "mlp"\nhidden = {HIDDEN}\n'
        f'[sync]\ndealing = "{dealing}"\n'
    )
    limits = [Limit(index, part) for index, part in enumerate(cores)]
    state, local = str(time.monotonic_ns()), ["--listen", "127.0.0.1", "--threads", 1]
    first = Peer(folder, f"{state}-0", "start", run_file, "--peers", len(cores), *local, before=limits[0].before)
    first.wait_for(lambda peer: peer.invite)
    rest = [Peer(folder, f"{state}-{n}", "join", first.invite, *local, before=limits[n].before) for n in range(1, len(cores))]
    for peer in [first, *rest]:
        peer.wait_for_end()
        if peer.process.returncode:
            sys.exit(f"a peer has failed: {peer.others}")
    for limit in limits:
        limit.remove()
    late = [step for step in first.steps if step["step"] >= SETTLE]
    return (late[-1]["wall_seconds"] - late[0]["wall_seconds"]) / (late[-1]["step"] - late[0]["step"])


def main(rounds, count):
    each = SHARE * os.cpu_count() / (count - 1 + 1 / SLOWNESS)
    unlike = [each] * count
    # The founder is as fast as most.
    unlike[count // 2] /= SLOWNESS
    equal = [sum(unlike) / count] * count
    cases = {"equal": (equal, "speed"), "unlike": (unlike, "speed"), "unlike, even parts": (unlike, "even")}
    found = {name: [] for name in cases}
    print(f"{processor()}, {os.cpu_count()} cores; {count} peers, medians of {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        noise(Path(folder) / "noise.csv", COLUMNS, CLASSES, ROWS)
        for _ in range(rounds):
            for name, case in cases.items():
                found[name].append(step_seconds(Path(folder), *case))
    for name, times in found.items():
        ratios = [own / other for own, other in zip(times, found["equal"])]
        print(f"{name}: {statistics.median(times):.3f} s a step, {statistics.median(ratios):.2f} x")


if __name__ == "__main__":
    main(int((sys.argv[1:] or [3])[0]), int((sys.argv[2:] or [8])[0]))
