"""What the loop of a Python user costs, and how it compares with torch.distributed.

    cargo build --release --workspace
    pip install numpy torch, and the wheel of node/python
    python bench/python.py cost --rounds 3          two processes that compute nothing: the Rust task and the loop in Python, in turns
    python bench/python.py nets --rounds 3          two processes: samples per second of a conv net and a transformer, beside DDP over Gloo

Each line is one run; the last lines are medians and ratios. The processes of the two sides run in turns, on one thread each.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
IDLE = ROOT / "target" / "release" / "idle_task"
LOCAL = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0"]
SIZES = {10_000: 2000, 1_000_000: 200, 8_000_000: 40}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PEERGRAD_INVITE": ""}


# The two processes of one run.


def rust_cost(parameters, steps, folder):
    """The median step of the Rust task, in milliseconds."""
    environment = {**ENVIRONMENT, "PARAMETERS": str(parameters), "STEPS": str(steps)}

    def start(name, *arguments):
        command = [IDLE, *arguments, *LOCAL, "--threads", "1", "--dir", folder / name]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    founder = start("a", "start", "--peers", "2")
    invite = next(event["invite"] for event in map(json.loads, founder.stdout) if event["event"] == "invite")
    joiner = start("b", "join", invite)
    joiner.communicate()
    _, said = founder.communicate()
    return float(re.search(r"median step: ([0-9.]+) ms", said)[1])


def python_pair(role, folder, *arguments):
    """The answers of two processes of this script."""

    def start(name, invite=""):
        command = [sys.executable, __file__, role, *map(str, arguments), "--folder", str(folder / name)]
        environment = {**ENVIRONMENT, "PEERGRAD_INVITE": invite}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    founder = start("a")
    processes = [founder, start("b", founder.stdout.readline().strip())]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]


def swarm_options(folder):
    return {"directory": folder, "mdns": False, "listen": "127.0.0.1", "port": 0, "progress": False, "peers": 2, "threads": 1}


def cost_peer(parameters, steps, folder):
    """One process whose loop computes nothing."""
    import numpy as np

    import peergrad

    shapes = {f"t{index}": (parameters // 8 + (index < parameters % 8),) for index in range(8)}
    vectors = [np.full(shape, 1e-3, np.float32) for shape in shapes.values()]
    into = [np.empty(shape, np.float32) for shape in shapes.values()]
    run = {"epochs": 1, "batch": 2, "optimizer": {"rule": "sgd", "rate": 0.001}}
    times = []
    with peergrad.Swarm("idle", shapes, samples=2 * steps, run=run, **swarm_options(folder)) as swarm:
        print(swarm.invite, flush=True)
        for step in swarm:
            times.append(time.perf_counter())
            step.parameters(into)
            step.finish(vectors, 1.0)
    steps_took = sorted(after - before for before, after in zip(times, times[1:]))
    print(json.dumps({"milliseconds": 1e3 * steps_took[len(steps_took) // 2], "digest": swarm.result.digest}))


def net(name):
    """A module, its batch for one process, and a function from a batch size to inputs and labels."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    if name == "conv":
        layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)]
        return nn.Sequential(*layers), 64, lambda count: (torch.randn(count, 1, 28, 28), torch.randint(10, (count,)))
    width, length = 320, 64

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(256, width)
            layer = nn.TransformerEncoderLayer(width, 5, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
            self.last = nn.Linear(width, 256)

        def forward(self, tokens):
            return self.last(self.layers(self.embedding(tokens)).mean(1))

    return Transformer(), 8, lambda count: (torch.randint(256, (count, length)), torch.randint(256, (count,)))


def net_peer(name, steps, folder):
    """One process that trains a net in a swarm."""
    from torch.nn import functional as F

    import peergrad.torch as pg

    model, batch, draw = net(name)
    inputs, labels = draw(batch)
    run = {"epochs": 1, "batch": 2 * batch, "optimizer": {"rule": "sgd", "rate": 0.01}}
    times = []
    with pg.Swarm(model, name=name, samples=2 * batch * steps, run=run, **swarm_options(folder)) as swarm:
        print(swarm.invite, flush=True)
        for step in swarm:
            times.append(time.perf_counter())
            count = len(step.samples)
            loss = F.cross_entropy(model(inputs[:count]), labels[:count], reduction="sum")
            model.zero_grad()
            loss.backward()
            step.finish(loss)
    report_speed(times, 2 * batch)


def ddp_peer(name, steps, folder):
    """One process that trains a net with torch.distributed over Gloo."""
    import torch.distributed as dist
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    rank = int(Path(folder).name == "b")
    if rank == 0:
        print("ready", flush=True)
    dist.init_process_group("gloo", init_method=f"file://{Path(folder).parent / 'store'}", rank=rank, world_size=2)
    model, batch, draw = net(name)
    inputs, labels = draw(batch)
    model = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), lr=0.01)
    times = []
    for _ in range(steps):
        times.append(time.perf_counter())
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    report_speed(times, 2 * batch)
    dist.destroy_process_group()


def report_speed(times, samples):
    took = sorted(after - before for before, after in zip(times, times[1:]))
    print(json.dumps({"samples_per_second": samples / took[len(took) // 2]}))


# What is compared.


def cost(rounds):
    found = {}
    for _ in range(rounds):
        for parameters, steps in SIZES.items():
            with tempfile.TemporaryDirectory() as folder:
                rust = rust_cost(parameters, steps, Path(folder))
            with tempfile.TemporaryDirectory() as folder:
                python = python_pair("cost-peer", Path(folder), parameters, steps)[0]["milliseconds"]
            print(f"{parameters:>9} parameters: Rust {rust:8.3f} ms, Python {python:8.3f} ms a step", flush=True)
            found.setdefault(parameters, []).append((rust, python))
    for parameters, pairs in found.items():
        rust, python = (statistics.median(side) for side in zip(*pairs))
        print(f"{parameters:>9} parameters, medians: {python - rust:+.3f} ms, {python / rust:.3f} x the Rust task")


def nets(rounds):
    found = {}
    for _ in range(rounds):
        for name, steps in (("conv", 200), ("transformer", 20)):
            speeds = []
            for role in ("net-peer", "ddp-peer"):
                with tempfile.TemporaryDirectory() as folder:
                    answers = python_pair(role, Path(folder), name, steps)
                speeds.append(answers[0]["samples_per_second"])
            print(f"{name:>12}: peergrad {speeds[0]:8.1f}, DDP {speeds[1]:8.1f} samples a second", flush=True)
            found.setdefault(name, []).append(speeds)
    for name, pairs in found.items():
        print(f"{name:>12}, median of ratios: {statistics.median(ours / theirs for ours, theirs in pairs):.2f} x DDP")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "nets", "cost-peer", "net-peer", "ddp-peer"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder")
    options = parser.parse_args()
    match options.what:
        case "cost":
            cost(options.rounds)
        case "nets":
            nets(options.rounds)
        case "cost-peer":
            cost_peer(*map(int, options.arguments), options.folder)
        case "net-peer" | "ddp-peer":
            import torch

            torch.set_num_threads(1)
            name, steps = options.arguments
            {"net-peer": net_peer, "ddp-peer": ddp_peer}[options.what](name, int(steps), options.folder)


if __name__ == "__main__":
    main()
