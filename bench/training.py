"""One peer that trains alone, compared with PyTorch, both on one thread: samples a second, in rounds that alternate.

    cargo build --release && python bench/training.py [ROUNDS]      needs `pip install torch numpy`

Both have the same widths, batch size and optimizer. PyTorch computes on one batch repeatedly; the peer trains a data set with the same
number of columns, with shuffling, commits, and all code for fault tolerance. The time to start is not counted for either.
"""
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import train

HERE = Path(__file__).parent
CASES = [(64, [64, 128, 10], 2000), (64, [784, 256, 10], 500), (128, [784, 1024, 1024, 10], 60)]


def samples_per_second(peer):
    samples = sum(event["samples"] for event in peer.steps[1:])
    return samples / (peer.steps[-1]["wall_seconds"] - peer.steps[0]["wall_seconds"])


def peergrad(folder, batch, widths, steps):
    return samples_per_second(train(folder, 1, batch, widths, steps)[0])


def pytorch(batch, widths, steps, threads=1):
    command = [sys.executable, str(HERE / "torch_mlp.py"), *map(str, [threads, batch, steps, *widths])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["samples_per_second"]


def main(rounds):
    print("| widths | batch | PyTorch, samples/s | peergrad, samples/s | peergrad / PyTorch |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for batch, widths, steps in CASES:
            pairs = []
            for _ in range(rounds):
                pairs.append((pytorch(batch, widths, steps), peergrad(Path(folder), batch, widths, steps)))
            theirs, ours = (statistics.median(side) for side in zip(*pairs))
            ratio = statistics.median(own / other for other, own in pairs)
            print(f"| {'-'.join(map(str, widths))} | {batch} | {theirs:,.0f} | {ours:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
