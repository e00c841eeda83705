"""One peer that trains alone beside PyTorch on one thread: samples a second, in rounds that take turns.

    cargo build --release && python bench/training.py [ROUNDS]      needs `pip install torch numpy`

The same widths, batch and optimizer. PyTorch computes on the same batch again and again; the peer trains a data set of as many
columns, with its shuffling, its commits and all that faults need in place. What it takes to start is not counted on either side.
"""
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PEER = (HERE.parent / "target" / "release" / "peer").resolve()
CASES = [(64, [64, 128, 10], 2000), (64, [784, 256, 10], 500), (128, [784, 1024, 1024, 10], 60)]
ROWS = 2560


def data(path, columns, classes):
    """Noise with a label: what it is does not matter here."""
    draw = random.Random(1)
    with open(path, "w") as file:
        for _ in range(ROWS):
            features = ",".join(str(draw.randrange(256)) for _ in range(columns))
            file.write(f"{features},{draw.randrange(classes)}\n")


def peergrad(folder, batch, widths, steps):
    name = f"{widths[0]}.csv"
    if not (folder / name).exists():
        data(folder / name, widths[0], widths[-1])
    # A fifth of the rows is held out.
    passes = -(-steps * batch // (ROWS * 4 // 5))
    (folder / "run.toml").write_text(
        f'passes = {passes}\nbatch = {batch}\n[data]\nfile = "{name}"\n[model]\nkind = "mlp"\nhidden = {widths[1:-1]}\n'
    )
    with tempfile.TemporaryDirectory(dir=folder) as state:
        command = [PEER, "start", "run.toml", "--peers", "1", "--json", "--no-mdns", "--listen", "127.0.0.1", "--dir", state]
        output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    events = [json.loads(line) for line in output.splitlines()]
    told = [event for event in events if event["event"] == "step"]
    samples = sum(event["samples"] for event in told[1:])
    return samples / (told[-1]["wall_seconds"] - told[0]["wall_seconds"])


def pytorch(batch, widths, steps):
    command = [sys.executable, str(HERE / "torch_mlp.py"), *map(str, [batch, steps, *widths])]
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
