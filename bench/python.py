"""What the loop of a Python user costs, and how it compares with torch.distributed, torchft and hivemind.

    cargo build --release --workspace
    pip install numpy torch hivemind torchft, and the wheel of node/python
    python bench/python.py cost --rounds 3          two processes that compute nothing: the Rust task and the loop in Python, in turns
    python bench/python.py nets --rounds 3          two processes: samples per second of a conv net and a transformer, beside DDP and
                                                    torchft, both over Gloo, and beside hivemind

Each line is one run; the last lines are medians and ratios. The processes of all sides run in turns, on one thread each. A rival
that cannot be imported is left out, with a sentence.
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
# torchft writes several lines a step unless it is told otherwise.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PEERGRAD_INVITE": "", "RUST_LOG": "error"}
# How long a peer of hivemind waits for the other one before it asks again. Between 0.3 and 3 seconds, a step takes equally long.
MATCHMAKING_SECONDS = 1.0


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
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    rank = int(Path(folder).name == "b")
    if rank == 0:
        print("ready", flush=True)
    dist.init_process_group("gloo", init_method=f"file://{Path(folder).parent / 'store'}", rank=rank, world_size=2)
    model, batch, draw = net(name)
    model = DistributedDataParallel(model)
    report_speed(step_times(model, SGD(model.parameters(), lr=0.01), draw(batch), steps), 2 * batch)
    dist.destroy_process_group()


def torchft_peer(name, steps, folder):
    """One process that trains a net with torchft: a group of one process, which commits each step with the other group."""
    import torchft
    from torch.distributed import TCPStore
    from torch.optim import SGD
    from torchft.coordination import LighthouseServer

    address = os.environ["PEERGRAD_INVITE"]
    if not address:
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2)
        address = lighthouse.address()
        print(address, flush=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, batch, draw = net(name)
    # Both groups draw the same first parameters, so they need not copy them.
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(), load_state_dict=model.load_state_dict, state_dict=model.state_dict, min_replica_size=2,
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1", lighthouse_addr=address,
        replica_id=Path(folder).name, init_sync=False,
    )
    optimizer = torchft.Optimizer(manager, SGD(model.parameters(), lr=0.01))
    times = step_times(torchft.DistributedDataParallel(manager, model), optimizer, draw(batch), steps)
    assert manager.batches_committed() == 2 * steps, "a step was not committed by both"
    report_speed(times, 2 * batch)
    manager.shutdown()


def hivemind_peer(name, steps, folder):
    """One process that trains a net with hivemind's GradientAverager. It looks for the other one while it computes its gradient.

    hivemind.Optimizer starts a step when the samples of all peers are enough, and may count more than one batch of each. This loop averages
    exactly one batch of each process, like the other sides.
    """
    import hivemind
    from hivemind.optim.grad_averager import GradientAverager
    from torch.nn import functional as F
    from torch.optim import SGD

    invite = os.environ["PEERGRAD_INVITE"]
    table = hivemind.DHT(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=invite.split(), nat_port_map=False, auto_nat=False, use_relay=False, start=True
    )
    if not invite:
        print(table.get_visible_maddrs()[0], flush=True)
    model, batch, draw = net(name)
    inputs, labels = draw(batch)
    averager = GradientAverager(
        model.parameters(), dht=table, prefix=name, reuse_grad_buffers=True, target_group_size=2, min_group_size=2,
        min_matchmaking_time=MATCHMAKING_SECONDS, request_timeout=MATCHMAKING_SECONDS * 0.6, allow_state_sharing=False, start=True,
    )
    optimizer = SGD(model.parameters(), lr=0.01)
    times = []
    for _ in range(steps):
        times.append(time.perf_counter())
        search = averager.schedule_step(timeout=60)
        F.cross_entropy(model(inputs), labels).backward()
        averager.accumulate_grads_(batch)
        assert len(averager.step(control=search, timeout=60)) == 2, "a step was not averaged by both"
        with averager.use_averaged_gradients():
            optimizer.step()
    report_speed(times, 2 * batch)
    averager.shutdown()
    table.shutdown()


def step_times(model, optimizer, samples, steps):
    """When each step of a usual loop of PyTorch began."""
    from torch.nn import functional as F

    inputs, labels = samples
    times = []
    for _ in range(steps):
        times.append(time.perf_counter())
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return times


def report_speed(times, samples):
    took = sorted(after - before for before, after in zip(times, times[1:]))
    print(json.dumps({"samples_per_second": samples / took[len(took) // 2]}))


PEERS = {"peergrad": net_peer, "DDP": ddp_peer, "torchft": torchft_peer, "hivemind": hivemind_peer}


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
    rivals = list(filter(is_there, ["DDP", "torchft", "hivemind"]))
    for _ in range(rounds):
        for name, steps in (("conv", 200), ("transformer", 20)):
            speeds = {}
            for role in ["peergrad", *rivals]:
                with tempfile.TemporaryDirectory() as folder:
                    speeds[role] = python_pair(role, Path(folder), name, steps)[0]["samples_per_second"]
            print(f"{name:>12}:", ", ".join(f"{role} {speed:.1f}" for role, speed in speeds.items()), "samples a second", flush=True)
            found.setdefault(name, []).append(speeds)
    for name, runs in found.items():
        ratios = {role: statistics.median(speeds["peergrad"] / speeds[role] for speeds in runs) for role in rivals}
        print(f"{name:>12}, medians of ratios:", ", ".join(f"{ratio:.2f} x {role}" for role, ratio in ratios.items()))


def is_there(role):
    """Whether the library of a rival can be imported, in a process of its own. If not, a sentence says why."""
    library = "torch.distributed" if role == "DDP" else role
    tried = subprocess.run([sys.executable, "-W", "ignore", "-c", f"import {library}"], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        print(f"{role} is left out, since it cannot be imported: {tried.stderr.splitlines()[-1]}", flush=True)
    return not tried.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "nets", "cost-peer", *PEERS])
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
        case role:
            import torch

            torch.set_num_threads(1)
            name, steps = options.arguments
            PEERS[role](name, int(steps), options.folder)


if __name__ == "__main__":
    main()
