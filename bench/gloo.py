"""All-reduce (sum, f32, in place) of torch.distributed with Gloo, between processes on loopback.

    python bench/gloo.py PEERS MEBIBYTES      needs `pip install torch numpy`

One JSON object: the median time of the slowest process, and CPU seconds per GiB and process. The sum is checked.
"""
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

CALLS = 12
WARM_UP = 2


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process(rank, peers, mebibytes, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=peers)
    count = mebibytes << 18
    own = (torch.arange(count) % 7).float() + rank
    vector = torch.empty(count)
    times, used = [], 0.0
    for call in range(WARM_UP + CALLS):
        vector.copy_(own)
        dist.barrier()
        cpu, start = cpu_seconds(), time.perf_counter()
        dist.all_reduce(vector)
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        cpu = cpu_seconds() - cpu
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        middle = count // 2
        assert vector[middle].item() == peers * (peers - 1) // 2 + peers * (middle % 7)
        if call >= WARM_UP:
            times.append(slowest.item())
            used += cpu
    used = torch.tensor([used / CALLS], dtype=torch.float64)
    dist.all_reduce(used)
    if rank == 0:
        per_gib = used.item() / peers / (mebibytes / 1024)
        print(json.dumps({"reduce_seconds": statistics.median(times), "cpu_seconds_per_gib_and_peer": per_gib}))
    dist.destroy_process_group()


def main(peers, mebibytes):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, __file__, str(peers), str(mebibytes)]
    processes = [subprocess.Popen(command + [str(rank), str(port)]) for rank in range(peers)]
    sys.exit(max(process.wait(180) for process in processes))


if __name__ == "__main__":
    peers, mebibytes, *rest = map(int, sys.argv[1:])
    if rest:
        process(rest[0], peers, mebibytes, rest[1])
    else:
        main(peers, mebibytes)
