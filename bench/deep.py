"""How long a gradient of a deep network takes, beside PyTorch; and a step of several peers on this machine, beside the sum of its parts.

    cargo build --release --features deep
    pip install torch
    python bench/deep.py --rounds 5

A peer that trains alone and PyTorch compute the same networks on 64 pictures or 16 texts, on one thread and on two, in turns. A line is one
run: the median of its gradients, without the first ones. The last lines are medians, and the median ratio of a round.

    python bench/deep.py --peers 4 --rounds 3

Four real peers train the same networks, each on one thread, with 64 pictures or 16 texts of each batch for each. Their median step is compared
with a sum of two parts, which are measured in the same round:

- computing: the gradient of the whole batch, in one peer that trains alone on two threads, as its step events report it;
- the all-reduce: `peer bench` with as many peers and a model of this size, in whole MiB. It is a step without its gradient, so the owners'
  update and the commit are in it.

The sum holds no time for waiting, and none for the second holder of optimizer state that the peers have.
"""
import argparse
import json
import statistics
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import PEER, noise, train_with


def network(name):
    """A module and its inputs and targets, with the sizes of `NETWORKS`."""
    import torch
    from torch import nn
    from torch.nn import functional

    if name == "cnn":
        layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(*layers), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    width, heads, context = 128, 4, 128

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            texts, length, _ = x.shape
            parts = self.attention(self.ln_1(x)).view(texts, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.projection(seen.transpose(1, 2).reshape(texts, length, width))
            return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(4)))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens):
            x = self.blocks(self.tokens(tokens) + self.places.weight)
            return (self.norm(x) @ self.tokens.weight.T).flatten(0, 1)

    return Transformer(), torch.randint(256, (16, context)), torch.randint(256, (16 * context,))


def torch_peer(name, threads, seconds):
    """One run of PyTorch, in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    module, inputs, targets = network(name)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 3:
        started = time.perf_counter()
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        times.append(1e3 * (time.perf_counter() - started))
    print(json.dumps({"milliseconds": statistics.median(times)}))


PICTURES = """
[data]
file = "pictures.csv"
held_out = 0.0
[model]
kind = "cnn"
layers = ["conv 32 3", "relu", "pool 2", "conv 64 3", "relu", "pool 2", "dense 128", "relu"]
"""
TEXT = """
[data]
file = "text.txt"
held_out = 0.0
[model]
kind = "gpt"
layers = 4
width = 128
heads = 4
context = 128
"""
# Settings, samples of a batch for each peer, and parameters.
NETWORKS = {"cnn": (PICTURES, 64, 421_642), "gpt": (TEXT, 16, 842_496)}


def median_difference(steps, key):
    values = [step[key] for step in steps]
    # The first steps allocate memory and open TCP windows.
    return 1e3 * statistics.median(later - earlier for earlier, later in list(zip(values, values[1:]))[5:])


def run_file(folder, name, peers, steps):
    """A run file for so many steps, and its data, which are noise."""
    settings, samples, _ = NETWORKS[name]
    batch = samples * peers
    if name == "cnn":
        rows = min(steps, 10) * batch
        noise(folder / "pictures.csv", 784, 10, rows)
        return f"epochs = {-(-steps * batch // rows)}\nbatch = {batch}\n{settings}"
    (folder / "text.txt").write_bytes(random.Random(1).randbytes(steps * batch * 128 + 1))
    return f"epochs = 1\nbatch = {batch}\n{settings}"


def all_reduce(peers, mebibytes):
    command = [PEER, "bench", "--peers", peers, "--mebibytes", mebibytes, "--json"]
    lines = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return 1e3 * json.loads(lines[-1])["reduce_seconds"]


def gradient(name, threads, steps):
    """The median gradient of a peer that trains alone, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        settings = run_file(Path(folder), name, 1, steps)
        return median_difference(train_with(Path(folder), 1, settings, threads)[0].steps, "computing_seconds")


def torch_gradient(name, threads, seconds):
    command = [sys.executable, __file__, "--torch", name, threads, "--seconds", seconds]
    return json.loads(subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout)["milliseconds"]


def beside_pytorch(options):
    found = {}
    for _ in range(options.rounds):
        for name in NETWORKS:
            for threads in (1, 2):
                own, torch = gradient(name, threads, options.steps), torch_gradient(name, threads, options.seconds)
                print(f"{name}, {threads} threads: peergrad {own:7.1f} ms, PyTorch {torch:7.1f} ms a gradient", flush=True)
                found.setdefault((name, threads), []).append((own, torch, own / torch))
    for (name, threads), rows in found.items():
        own, torch, ratio = (statistics.median(column) for column in zip(*rows))
        print(f"{name}, {threads} threads, medians: peergrad {own:.1f} ms, PyTorch {torch:.1f} ms, {ratio:.2f} x")


def swarm(peers, rounds, steps):
    for name, (_, _, parameters) in NETWORKS.items():
        found = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                settings = run_file(Path(folder), name, peers, steps)
                computing = median_difference(train_with(Path(folder), 1, settings, threads=2)[0].steps, "computing_seconds")
                reducing = all_reduce(peers, max(1, round(4 * parameters / 2**20)))
                step = median_difference(train_with(Path(folder), peers, settings)[0].steps, "wall_seconds")
            found.append((computing, reducing, step, step / (computing + reducing)))
            print(f"{name}: computing {computing:.1f} ms, all-reduce {reducing:.1f}, step of {peers} peers {step:.1f}", flush=True)
        computing, reducing, step, ratio = (statistics.median(column) for column in zip(*found))
        print(
            f"{name}, medians: computing {computing:.1f} ms, all-reduce {reducing:.1f}, step of {peers} peers {step:.1f}, {ratio:.2f} x the sum",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run of PyTorch")
    parser.add_argument("--peers", type=int, help="measure steps of so many peers instead")
    parser.add_argument("--steps", type=int, default=60, help="steps of a peer")
    parser.add_argument("--torch", nargs=2, metavar=("NETWORK", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        name, threads = options.torch
        return torch_peer(name, int(threads), options.seconds)
    if options.peers:
        return swarm(options.peers, options.rounds, options.steps)
    beside_pytorch(options)


if __name__ == "__main__":
    main()
