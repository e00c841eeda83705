"""All-reduce between hosts with long lines: what each host sends while it communicates, in Mbit/s.

    cargo build --release && python bench/wan.py [--hosts 2,4] [--round-trips 20,100] [--rate 200] [--loss 0] [--size 14] [--rounds 1]

`wan/wan.c` gives each host a network namespace and a line with a delay, a rate and losses, so that real programs meet real TCP on one
machine. It needs root or user namespaces, and a C compiler. One bare TCP connection, Gloo (if PyTorch is installed) and peergrad take
turns. A round trip of 0.1 s delays each half of an all-reduce by 0.05 s, which counts as communicating.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import Peer, noise

HERE = Path(__file__).resolve()
WAN = HERE.parent.parent / "target" / "wan"
# The widths of an MLP with about so many million bytes of parameters.
WIDTHS = {5: [784, 1024, 512, 10], 14: [784, 1800, 1200, 10], 64: [784, 4096, 3072, 10]}
PORT, STEPS = 7400, 20
# Small, so that computing takes little of a step.
BATCH = 16
HOST = int(os.environ.get("WAN_HOST", 0))
HOSTS = int(os.environ.get("WAN_HOSTS", 1))


def elements(widths):
    return sum(inputs * outputs + outputs for inputs, outputs in zip(widths, widths[1:]))


def rate(size, seconds):
    """Mbit/s of a host in a ring, or in an exchange with all others."""
    return 2 * (HOSTS - 1) / HOSTS * elements(WIDTHS[size]) * 32 / 1e6 / seconds


def host_tcp(_folder, _size):
    """One connection from the second host to the first one, for some seconds after its start."""
    warm, measured = 4, 4
    if HOST == 0:
        server = socket.create_server(("10.77.0.1", PORT))
        connection = server.accept()[0]
        begun, count = time.monotonic(), 0
        while (passed := time.monotonic() - begun) < warm + measured:
            bytes_now = len(connection.recv(1 << 20))
            count += bytes_now if passed > warm else 0
        return count * 8 / 1e6 / measured
    if HOST == 1:
        connection = connect()
        end = time.monotonic() + warm + measured + 1
        block = bytes(1 << 20)
        try:
            while time.monotonic() < end:
                connection.sendall(block)
        except OSError:
            pass
    return None


def connect():
    for _ in range(100):
        try:
            return socket.create_connection(("10.77.0.1", PORT))
        except OSError:
            time.sleep(0.1)
    sys.exit("the first host does not listen")


def host_gloo(_folder, size):
    import torch
    import torch.distributed as distributed

    os.environ.update(GLOO_SOCKET_IFNAME="wan0", MASTER_ADDR="10.77.0.1", MASTER_PORT=str(PORT))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=HOST, world_size=HOSTS)
    tensor = torch.ones(elements(WIDTHS[size]))
    seconds = []
    for _ in range(STEPS):
        begun = time.monotonic()
        distributed.all_reduce(tensor)
        seconds.append(time.monotonic() - begun)
    return rate(size, statistics.median(seconds[4:]))


def host_peergrad(folder, size):
    run_file = folder / "run.toml"
    listen = ["--listen", os.environ["WAN_ADDRESS"], "--port", str(PORT), "--secret-file", folder / "secret"]
    if HOST == 0:
        peer = Peer(folder, "0", "start", run_file, "--peers", HOSTS, *listen)
    else:
        time.sleep(1)
        peer = Peer(folder, str(HOST), "join", f"10.77.0.1:{PORT}", *listen)
    peer.wait_for_end()
    if peer.process.returncode:
        sys.exit(f"a peer has failed: {peer.others[-3:]}")
    passed = [step["wall_seconds"] - step["computing_seconds"] for step in peer.steps]
    return rate(size, statistics.median([later - earlier for earlier, later in zip(passed, passed[1:])][5:]))


def prepare(folder, size, topology):
    widths = WIDTHS[size]
    # A fifth of the rows is held out.
    noise(folder / "noise.csv", widths[0], widths[-1], STEPS * BATCH * 5 // 4)
    (folder / "secret").write_text("5a" * 32)
    (folder / "run.toml").write_text(
        f'epochs = 1\nbatch = {BATCH}\n[data]\nfile = "noise.csv"\n[model]\nkind = "mlp"\nhidden = {widths[1:-1]}\n'
        f'[shards]\nreplicas = 1\n[sync]\nkind = "sync"\n{topology}'
    )


def measure(program, hosts, round_trip, options, topology):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.size, topology)
        line = ["-n", hosts, "-d", round_trip / 2, "-r", options.rate, "-l", options.loss, "-t", 300]
        command = [WAN, *line, "--", sys.executable, HERE, "--as-host", program, "--folder", folder, "--size", options.size]
        result = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if result.returncode:
            sys.exit(f"{program} has failed: {result.stderr[-2000:]}")
        return min(float(text) for text in result.stdout.split())


def main(options):
    subprocess.run(["cc", "-O2", "-o", WAN, HERE.parent / "wan" / "wan.c"], check=True)
    columns = {"one TCP connection": ("tcp", ""), "peergrad": ("peergrad", "")}
    try:
        import torch.distributed  # noqa: F401

        columns["Gloo"] = ("gloo", "")
    except ImportError:
        print("PyTorch is not installed: without Gloo")
    print(f"lines of {options.rate} Mbit/s, {options.loss} % lost, {options.size} MB of parameters; Mbit/s that a host sends")
    print("| hosts | round trip, ms |", " | ".join(columns), "|\n|---|---|" + "---|" * len(columns))
    for hosts in options.hosts:
        for round_trip in options.round_trips:
            found = {name: [] for name in columns}
            for _ in range(options.rounds):
                for name, (program, topology) in columns.items():
                    found[name].append(measure(program, hosts, round_trip, options, topology))
            cells = [f"{statistics.median(values):.0f}" for values in found.values()]
            print(f"| {hosts} | {round_trip} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=numbers, default=[2, 4])
    parser.add_argument("--round-trips", type=numbers, default=[20, 100])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--size", type=int, choices=WIDTHS, default=14)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--as-host", choices=["tcp", "gloo", "peergrad"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_host:
        result = globals()[f"host_{arguments.as_host}"](arguments.folder, arguments.size)
        if result is not None:
            print(result, flush=True)
    else:
        main(arguments)
