"""One peer that trains alone on 1, 2 and 4 threads, or others, and PyTorch on as many, in rounds that alternate.

    cargo build --release && python bench/threads.py [ROUNDS] [THREADS,...]      with `pip install torch numpy`, PyTorch as well

Both have the same widths, batch size and optimizer, as in training.py. `gradient` is the time of a step's gradient alone; samples a second
count the update and the commit as well, which have one thread. A ratio is to the first number of threads, and is the median of the ratios of
each round. The script fails if the peers' parameters differ in any bit between numbers of threads.

On a machine that others use, `chrt -r 1` before `python` gives the script the cores that it needs, as root. Do not use more threads than
cores then.
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

CASES = [(64, [64, 128, 10], 1000), (64, [784, 256, 10], 200), (512, [784, 1024, 1024, 10], 32)]
HAS_PYTORCH = bool(importlib.util.find_spec("torch"))
TITLES = ["widths", "batch", "threads", "gradient, ms", "speedup", "peergrad, samples/s", "speedup", "PyTorch, samples/s", "speedup"]
TITLES += ["peergrad / PyTorch", "digest"]


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def gradient_seconds(peer):
    # The first steps allocate memory.
    told = [step["computing_seconds"] for step in peer.steps[3:]]
    return (told[-1] - told[0]) / (len(told) - 1)


def measured(folder, batch, widths, steps, counts, rounds):
    """For each number of threads, by rounds: how many gradients and samples a second, and PyTorch's samples. Also the peers' digest."""
    found, digests = {threads: ([], [], []) for threads in counts}, set()
    for _ in range(rounds):
        for threads, (gradients, own, other) in found.items():
            peer = train(folder, 1, batch, widths, steps, threads=threads)[0]
            gradients.append(1 / gradient_seconds(peer))
            own.append(samples_per_second(peer))
            digests |= {event["digest"] for event in peer.others if event["event"] == "summary"}
            if HAS_PYTORCH:
                other.append(pytorch(batch, widths, steps, threads))
    if len(digests) > 1:
        sys.exit(f"the parameters depend on the number of threads: {digests}")
    return found, digests.pop()


def ratio(speeds, others):
    return f"{statistics.median(own / other for own, other in zip(speeds, others)):.2f}" if speeds and others else "-"


def speed(speeds):
    return f"{statistics.median(speeds):,.0f}" if speeds else "-"


def main(rounds, counts):
    print(f"{processor()}, {os.cpu_count()} cores; medians of {rounds} rounds")
    if not HAS_PYTORCH:
        print("PyTorch is not installed here, so its columns are empty")
    print("|", " | ".join(TITLES), "|")
    print("|" + "---|" * len(TITLES))
    with tempfile.TemporaryDirectory() as folder:
        for batch, widths, steps in CASES:
            found, digest = measured(Path(folder), batch, widths, steps, counts, rounds)
            first = found[counts[0]]
            for threads, (gradients, own, other) in found.items():
                cells = ["-".join(map(str, widths)), batch, threads, f"{1e3 / statistics.median(gradients):.2f}", ratio(gradients, first[0])]
                cells += [speed(own), ratio(own, first[1]), speed(other), ratio(other, first[2]), ratio(own, other), digest[:8]]
                print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else 3, list(map(int, arguments[1].split(","))) if arguments[1:] else [1, 2, 4])
