"""One averaging round of hivemind's DecentralizedAverager, between peers on this machine; the group is formed before.

    unshare -rn sh -c 'ip link set lo up; python bench/hivemind_averaging.py PEERS MEBIBYTES'      needs `pip install hivemind`

The command runs it in a network namespace with nothing but loopback, so that hivemind's daemons reach no other host. One JSON object:
the median time from the signal to all peers until the last one has the mean, and CPU seconds of all processes per GiB and peer. CPU
time is measured in ticks of 10 ms, too coarse for small vectors. The mean is checked.
"""
import json
import os
import statistics
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import hivemind
import torch
from hivemind.averaging.control import AveragingStage

ROUNDS = 4
MATCHMAKING_SECONDS = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds():
    """Of this process and of all that it has started, and those have."""
    parents, seconds = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        seconds[int(name)] = (int(fields[11]) + int(fields[12])) / TICKS

    def is_ours(process):
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    return sum(used for process, used in seconds.items() if is_ours(process))


def main(peers, mebibytes):
    places = dict(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"], nat_port_map=False, auto_nat=False, use_relay=False, start=True
    )
    tables = [hivemind.DHT(**places)]
    while len(tables) < peers:
        tables.append(hivemind.DHT(initial_peers=tables[0].get_visible_maddrs(), **places))
    averagers = [
        hivemind.DecentralizedAverager(
            [torch.full((mebibytes << 18,), float(rank))], dht=table, prefix="bench", start=True,
            target_group_size=peers, min_group_size=peers, min_matchmaking_time=MATCHMAKING_SECONDS,
            request_timeout=MATCHMAKING_SECONDS * 0.6, allow_state_sharing=False,
        )
        for rank, table in enumerate(tables)
    ]
    times, used = [], []
    for round_number in range(ROUNDS + 1):
        steps = [averager.step(wait=False, require_trigger=True, timeout=60) for averager in averagers]
        give_up = time.monotonic() + 40
        while any(step.stage != AveragingStage.AWAITING_TRIGGER for step in steps):
            assert time.monotonic() < give_up, "no group"
            time.sleep(0.01)
        cpu, start = cpu_seconds(), time.perf_counter()
        for step in steps:
            step.allow_allreduce()
        assert all(len(step.result(timeout=90)) == peers for step in steps)
        if round_number:
            times.append(time.perf_counter() - start)
            used.append(cpu_seconds() - cpu)
    with averagers[0].get_tensors() as tensors:
        assert abs(tensors[0][0].item() - (peers - 1) / 2) < 1e-2
    per_gib = statistics.mean(used) / peers / (mebibytes / 1024)
    print(json.dumps({"reduce_seconds": statistics.median(times), "cpu_seconds_per_gib_and_peer": per_gib}))
    for process in averagers + tables:
        process.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
