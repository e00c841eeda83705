"""Starts real peers and reads their events: shared by the scripts in this folder."""
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

# Another binary can be named, to compare two versions.
PEER = Path(os.environ.get("PEER", Path(__file__).parent.parent / "target" / "release" / "peer")).resolve()
ROWS = 2560


class Peer:
    """A `peer` command and its events. `before` are words to start it with, such as those that enter a network namespace."""

    def __init__(self, folder, name, *arguments, before=()):
        command = [*before, PEER, *arguments, "--json", "--no-mdns", "--dir", folder / name]
        self.directory = folder / name
        self.process = subprocess.Popen([*map(str, command)], cwd=folder, stdout=subprocess.PIPE, text=True)
        self.invite, self.steps, self.others = None, [], []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "step":
                self.steps.append(event)
            elif event["event"] == "invite":
                self.invite = event["invite"]
            else:
                self.others.append(event)

    def wait_for(self, what):
        while not what(self):
            if self.process.poll() is not None:
                sys.exit(f"a peer has ended: {self.others}")
            time.sleep(0.05)

    def wait_for_end(self, seconds=None):
        self.process.wait(seconds)
        self.reader.join(seconds)


def noise(path, columns, classes, rows=ROWS):
    """Rows with a label: what they are does not matter here."""
    draw = random.Random(1)
    with open(path, "w") as file:
        for _ in range(rows):
            features = ",".join(str(draw.randrange(256)) for _ in range(columns))
            file.write(f"{features},{draw.randrange(classes)}\n")


def train(folder, count, batch, widths, steps, replicas=2, threads=1):
    """So many peers of this machine that train an MLP on noise, each on so many threads, once they have ended."""
    name = f"{widths[0]}.csv"
    if not (folder / name).exists():
        noise(folder / name, widths[0], widths[-1])
    # A fifth of the rows is held out.
    epochs = -(-steps * batch // (ROWS * 4 // 5))
    settings = f'epochs = {epochs}\nbatch = {batch}\n[data]\nfile = "{name}"\n[model]\nkind = "mlp"\nhidden = {widths[1:-1]}\n'
    return train_with(folder, count, settings + f"[shards]\nreplicas = {replicas}\n", threads)


def train_with(folder, count, settings, threads=1):
    """So many peers of this machine that train with the settings of a run file, each on so many threads, once they have ended."""
    run_file = folder / "run.toml"
    run_file.write_text(settings)
    state = f"{count}-{time.monotonic_ns()}"
    local = ["--listen", "127.0.0.1", "--port", 0, "--threads", threads]
    peers = [Peer(folder, f"{state}-0", "start", run_file, "--peers", count, *local)]
    if count > 1:
        peers[0].wait_for(lambda peer: peer.invite)
        peers += [Peer(folder, f"{state}-{n}", "join", peers[0].invite, *local) for n in range(1, count)]
    for peer in peers:
        peer.wait_for_end()
        if peer.process.returncode:
            sys.exit(f"a peer has failed: {peer.others}")
    return peers
