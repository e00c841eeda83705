"""A slow, long line that tensors fill: are members still heard, is a kill noticed, and does a newcomer get in?

    cargo build --release --workspace
    python bench/busy_line.py [--rate 20] [--round-trip 200] [--size 64] [--seconds 170]

Four hosts with lines of 20 Mbit/s and a round trip of 200 ms train, once a small model, so that the lines are idle, and once 64 MB of
parameters, so that they are full. In each run one peer is killed, and later another one joins. Printed are how many members were suspected
without a fault, how long the others took to agree on a view without the killed one, and how long the newcomer took to be in a view, since it
was started and since it was connected and asked. It also needs its bytes: all parameters, at the rate of its line. `bench/wan.py` says what this needs.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import PEER, Peer, noise
from wan import PORT, WAN, WIDTHS, elements

HERE = Path(__file__).resolve()
MEMBERS = 4
HOST = int(os.environ.get("WAN_HOST", 0))
SMALL = [784, 10]
BATCH = 16


class Watched(Peer):
    """A peer whose other events have the time at which they were read."""

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            (self.steps if event["event"] == "step" else self.others).append(event | {"read_at": time.monotonic()})


def as_host(folder, begin, seconds):
    """Prints what this host saw, as one line of JSON."""
    time.sleep(max(0, begin + (0 if HOST == 0 else 1 if HOST < MEMBERS else seconds * 0.6) - time.monotonic()))
    listen = ["--listen", os.environ["WAN_ADDRESS"], "--port", PORT, "--secret-file", folder / "secret", "--threads", 1]
    founds = ["start", folder / "run.toml", "--peers", MEMBERS]
    started_at = time.monotonic()
    peer = Watched(folder, str(HOST), *(founds if HOST == 0 else ["join", f"10.77.0.1:{PORT}"]), *listen)
    killed_at = None
    if HOST == MEMBERS - 1:
        time.sleep(max(0, begin + seconds * 0.35 - time.monotonic()))
        peer.process.kill()
        killed_at = time.monotonic()
    else:
        time.sleep(max(0, begin + seconds - time.monotonic()))
        peer.process.kill()
    peer.wait_for_end()
    events = [event for event in peer.others if event["event"] in ("view", "member_suspected", "join_requested")]
    seen = {"host": HOST, "started_at": started_at, "killed_at": killed_at, "events": events, "steps": len(peer.steps)}
    sys.stdout.write(json.dumps(seen) + "\n")


def measure(widths, options):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        noise(folder / "noise.csv", widths[0], widths[-1], 100 * BATCH * 5 // 4)
        (folder / "secret").write_text("5a" * 32)
        (folder / "run.toml").write_text(
            f'epochs = 100000\nbatch = {BATCH}\n[data]\nfile = "noise.csv"\n[model]\n'
            + (f'kind = "mlp"\nhidden = {widths[1:-1]}\n' if widths[1:-1] else 'kind = "softmax"\n')
            + "[shards]\nreplicas = 1\n"
        )
        line = ["-n", MEMBERS + 1, "-d", options.round_trip / 2, "-r", options.rate, "-t", options.seconds + 60]
        host = [sys.executable, HERE, "--as-host", folder, "--begin", time.monotonic(), "--seconds", options.seconds]
        result = subprocess.run([*map(str, [WAN, *line, "--", *host])], stdout=subprocess.PIPE, text=True)
        hosts = sorted((json.loads(text) for text in result.stdout.splitlines()), key=lambda host: host["host"])
    if len(hosts) != MEMBERS + 1:
        sys.exit("a host has failed")
    *others, victim, newcomer = hosts
    killed_at = victim["killed_at"]
    suspected = [event for host in hosts for event in host["events"] if event["event"] == "member_suspected" and event["read_at"] < killed_at]
    views = lambda host: [event for event in host["events"] if event["event"] == "view"]
    noticed = [next((view["read_at"] - killed_at for view in views(host) if view["read_at"] > killed_at and len(view["members"]) < MEMBERS), float("nan")) for host in others]
    asked_at = [event["read_at"] for event in newcomer["events"] if event["event"] == "join_requested"] or [float("nan")]
    joined = [next((view["read_at"] - since for view in views(newcomer)), float("nan")) for since in (newcomer["started_at"], asked_at[0])]
    bytes_take = elements(widths) * 32 / 1e6 / options.rate
    print(f"| {elements(widths) * 4 / 1e6:.1f} | {min(host['steps'] for host in others)} | {len(suspected)} | {max(noticed):.1f} | {joined[0]:.1f} | {joined[1]:.1f} | {bytes_take:.1f} |", flush=True)


def main(options):
    subprocess.run(["cc", "-O2", "-o", WAN, HERE.parent / "wan" / "wan.c"], check=True)
    print(f"lines of {options.rate:g} Mbit/s, round trips of {options.round_trip} ms; {PEER.name}")
    print("| parameters, MB | steps | suspected without a fault | a kill is noticed after, s | a newcomer is in after, s | after it asked, s | its bytes take, s |")
    print("|---|---|---|---|---|---|---|")
    measure(SMALL, options)
    measure(WIDTHS[options.size], options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--round-trip", type=int, default=200)
    parser.add_argument("--size", type=int, choices=WIDTHS, default=64)
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--as-host", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_host:
        as_host(arguments.as_host, arguments.begin, arguments.seconds)
    else:
        main(arguments)
