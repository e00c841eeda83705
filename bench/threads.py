"""One peer that trains alone on 1, 2 and 4 threads, and PyTorch on as many: samples a second, in rounds that alternate.

    cargo build --release && python bench/threads.py [ROUNDS]      with `pip install torch numpy`, PyTorch as well

Both have the same widths, batch size and optimizer, as in training.py. A ratio is the median of the ratios of each round. The script fails if
the peers' parameters differ in any bit between numbers of threads.
"""
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from peers import train
from training import pytorch, samples_per_second

CASES = [(64, [64, 128, 10], 2000), (64, [784, 256, 10], 500), (512, [784, 1024, 1024, 10], 60)]
THREADS = [1, 2, 4]
HAS_PYTORCH = bool(importlib.util.find_spec("torch"))


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def peergrad(folder, batch, widths, steps, threads):
    peer = train(folder, 1, batch, widths, steps, threads=threads)[0]
    [summary] = [event for event in peer.others if event["event"] == "summary"]
    return samples_per_second(peer), summary["digest"]


def measured(folder, batch, widths, steps, rounds):
    """Samples a second of each program for each number of threads, round by round, and the peers' digest."""
    ours, theirs, digests = ({threads: [] for threads in THREADS}, {threads: [] for threads in THREADS}, set())
    for _ in range(rounds):
        for threads in THREADS:
            speed, digest = peergrad(folder, batch, widths, steps, threads)
            ours[threads].append(speed)
            digests.add(digest)
            if HAS_PYTORCH:
                theirs[threads].append(pytorch(batch, widths, steps, threads))
    if len(digests) > 1:
        sys.exit(f"the parameters depend on the number of threads: {digests}")
    return ours, theirs, digests.pop()


def ratio(speeds, others):
    return f"{statistics.median(own / other for own, other in zip(speeds, others)):.2f}" if others else "-"


def speed(speeds):
    return f"{statistics.median(speeds):,.0f}" if speeds else "-"


def main(rounds):
    print(f"{processor()}, {len(os.sched_getaffinity(0))} cores; median of {rounds} rounds")
    if not HAS_PYTORCH:
        print("PyTorch is not installed here, so its columns are empty")
    print("| widths | batch | threads | peergrad, samples/s | / one thread | PyTorch, samples/s | / one thread | peergrad / PyTorch | digest |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for batch, widths, steps in CASES:
            ours, theirs, digest = measured(Path(folder), batch, widths, steps, rounds)
            for threads in THREADS:
                own, other = ours[threads], theirs[threads]
                cells = ["-".join(map(str, widths)), batch, threads, speed(own), ratio(own, ours[1])]
                cells += [speed(other), ratio(other, theirs[1]), ratio(own, other), digest[:8]]
                print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
