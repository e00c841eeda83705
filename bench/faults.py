#!/usr/bin/env python3
"""Eight peers, each on a separate host (a network namespace), with a fault every few seconds.

    sudo bench/faults.py [MINUTES [SEED [FOLDER]]]

Peers are killed and started again, are suspended, lose their network for a while, leave and rejoin, and new peers join. All the time a
stranger without the secret opens 100 connections a second to their ports, and leaves them idle, sends noise or hangs up. The first
peer has no faults: the script checks its reports (each epoch trains each sample once), and measures its memory. At the end all peers
leave, `simulate report` combines their logs, and the script compares all digests in the logs. Needs root, Linux and `ip`; build first:
cargo build --release --workspace
"""

import collections
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEER, SIMULATE = ROOT / "target/release/peer", ROOT / "target/release/simulate"
PEERS, EXTRA = 8, 2
# Connections of the stranger, a second.
CONNECTIONS = 100
# Time between two faults, in seconds.
EVERY = 5
RUN = """epochs = 1000000
batch = 64
[data]
file = "digits"
[model]
hidden = [256]
[sync]
gradients = "bf16"
parameters = "bf16"
digest_every = 16
"""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """Hosts on one bridge."""

    def __init__(self, count):
        self.names = [f"pgfault{os.getpid()}x{index}" for index in range(count)]
        self.bridge = f"pgf{os.getpid()}"
        ip("netns", "add", self.bridge)
        self.inside(self.bridge, "link", "add", "bridge0", "type", "bridge")
        self.inside(self.bridge, "link", "set", "bridge0", "up")
        for index, name in enumerate(self.names):
            ip("netns", "add", name)
            self.inside(self.bridge, "link", "add", f"port{index}", "type", "veth", "peer", "name", "wire", "netns", name)
            self.inside(self.bridge, "link", "set", f"port{index}", "master", "bridge0", "up")
            self.inside(name, "link", "set", "lo", "up")
            self.inside(name, "address", "add", f"10.78.0.{index + 1}/24", "dev", "wire")
            self.inside(name, "link", "set", "wire", "up")

    def inside(self, name, *arguments):
        ip("-n", name, *arguments)

    def cut(self, index, is_cut):
        self.inside(self.bridge, "link", "set", f"port{index}", "nomaster" if is_cut else "up", *([] if is_cut else ["master", "bridge0"]))

    def close(self):
        for name in [*self.names, self.bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def knock(targets):
    """The stranger: connects to these hosts again and again, until it is ended. Prints how many connections it opened."""
    opened, idle = 0, collections.deque()
    signal.signal(signal.SIGTERM, lambda *_: (print(opened, flush=True), os._exit(0)))
    generator, due = random.Random(1), time.monotonic()
    while True:
        due += 1 / CONNECTIONS
        time.sleep(max(0, due - time.monotonic()))
        try:
            stranger = socket.socket()
            stranger.settimeout(0.05)
            stranger.connect((generator.choice(targets), generator.choice([4747, 5747])))
            opened += 1
            manner = generator.choice(["idle", "noise", "gone"])
            if manner == "noise":
                stranger.send(generator.randbytes(generator.randint(1, 2000)))
            if manner != "gone":
                idle.append((due + 20, stranger))
        except OSError:
            pass
        while idle and (idle[0][0] < due or len(idle) > 500):
            idle.popleft()


class Peer:
    """A peer on a host, over all its processes."""

    def __init__(self, network, index, folder):
        self.network, self.index, self.folder = network, index, folder
        self.process, self.busy_until, self.epochs = None, 0, collections.OrderedDict()
        self.step, self.events, self.problems = -1, collections.Counter(), []
        # The peer's id, when each fault of it began and ended, and when which members were lost to it.
        self.id, self.faults, self.losses = None, [], []

    def start(self, arguments):
        command = ["ip", "netns", "exec", self.network.names[self.index], PEER, *arguments,
                   "--dir", f"peer-{self.index}", "--json", "--no-mdns"]
        words = open(self.folder / f"words-{self.index}", "ab")
        self.process = subprocess.Popen([str(part) for part in command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=words, text=True)
        threading.Thread(target=self.read, args=(self.process,), daemon=True).start()

    def read(self, process):
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                # The process was killed while it wrote the line.
                continue
            self.events[event["event"]] += 1
            if event["event"] == "step":
                if event["step"] != self.step + 1 and self.index == 0:
                    self.problems.append(f"step {event['step']} after {self.step}")
                self.step = event["step"]
                self.epochs[event["epoch"]] = self.epochs.get(event["epoch"], 0) + event["samples"]
            if event["event"] == "listening":
                self.id = event["peer"]
            if event["event"] == "view":
                self.losses += [(time.monotonic(), lost) for lost in (event.get("change") or {}).get("left", [])]
            if event["event"] in ("failed", "violation"):
                self.problems.append(json.dumps(event))

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.is_running():
            self.process.send_signal(number)

    def resident(self):
        """MiB of its own; pages of the program itself come as it gets to them, and the system takes them back when it likes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024


def invite(folder):
    words = subprocess.run([PEER, "invite", "--dir", "peer-0"], cwd=folder, capture_output=True, text=True, check=True)
    return words.stdout.strip()


class FaultInjector:
    """What goes wrong, and what is done about it later."""

    def __init__(self, network, peers, generator, invitation):
        self.network, self.peers, self.generator, self.invitation = network, peers, generator, invitation
        self.later, self.count = [], collections.Counter()

    def plan(self, seconds, action):
        self.later.append((time.monotonic() + seconds, action))

    def do_due(self):
        now = time.monotonic()
        due, self.later = [it for it in self.later if it[0] <= now], [it for it in self.later if it[0] > now]
        for _, action in due:
            action()

    def join(self, peer):
        if not peer.is_running():
            peer.start(["join", self.invitation])

    def one(self):
        now = time.monotonic()
        free = [peer for peer in self.peers[1:] if peer.busy_until < now]
        # More than half of the peers are always without a fault.
        if sum(peer.busy_until >= now for peer in self.peers) >= 3 or not free:
            self.count["none: enough is wrong already"] += 1
            return
        peer, seconds = self.generator.choice(free), self.generator.uniform(1, 8)
        peer.busy_until = now + seconds + 6
        peer.faults.append((now, peer.busy_until + 10))
        if not peer.is_running():
            self.count["join"] += 1
            return self.join(peer)
        kind = self.generator.choice(["kill", "stop", "cut", "leave"])
        self.count[kind] += 1
        if kind == "kill":
            peer.signal(signal.SIGKILL)
            self.plan(seconds, lambda: self.join(peer))
        elif kind == "stop":
            peer.signal(signal.SIGSTOP)
            self.plan(seconds, lambda: peer.signal(signal.SIGCONT))
        elif kind == "cut":
            self.network.cut(peer.index, True)
            self.plan(seconds, lambda: self.network.cut(peer.index, False))
        else:
            peer.signal(signal.SIGINT)
            self.plan(seconds + 3, lambda: self.join(peer))


def watch(first, injector, minutes):
    """Memory of the first peer, by time; the longest time without a step."""
    resident, longest, step, stepped = [], 0, first.step, time.monotonic()
    began = time.monotonic()
    due = began + EVERY
    while time.monotonic() < began + 60 * minutes:
        time.sleep(0.2)
        now = time.monotonic()
        injector.do_due()
        if now >= due:
            due += EVERY
            injector.one()
            resident.append((now - began, first.resident()))
        if first.step != step:
            longest, step, stepped = max(longest, now - stepped), first.step, now
        if now - stepped > 60:
            sys.exit(f"no step for a minute, after step {step}; see {first.folder}")
        if not first.is_running():
            sys.exit(f"the first peer has ended; see {first.folder}")
    while injector.later:
        time.sleep(0.2)
        injector.do_due()
    return resident, longest


def digests(folder):
    """Every digest in the event logs, by branch and step."""
    known, wrong = {}, 0
    compared = 0
    for path in sorted(folder.glob("peer-*/events*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "step" and event.get("digest"):
                first_digest = known.setdefault(event["step"], event["digest"])
                compared += 1
                wrong += first_digest != event["digest"]
    return len(known), compared, wrong


def main(minutes, seed, folder):
    network = Network(PEERS + EXTRA + 1)
    peers = [Peer(network, index, folder) for index in range(PEERS + EXTRA)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.toml").write_text(RUN)
        peers[0].start(["start", "run.toml", "--peers", PEERS])
        while peers[0].events["invite"] == 0 and not (folder / "peer-0/run.json").exists():
            time.sleep(0.1)
        invitation = invite(folder)
        for peer in peers[1:PEERS]:
            peer.start(["join", invitation])
        while peers[0].step < 20:
            time.sleep(0.1)
        injector = FaultInjector(network, peers, random.Random(seed), invitation)
        targets = [f"10.78.0.{index + 1}" for index in range(len(peers))]
        stranger = subprocess.Popen(["ip", "netns", "exec", network.names[-1], sys.executable, __file__, "knock", *targets],
                                    stdout=subprocess.PIPE, text=True)
        resident, longest = watch(peers[0], injector, minutes)
        stranger.terminate()
        opened = int(stranger.communicate()[0])
        time.sleep(15)
        losses = list(peers[0].losses)
        ends = [peer for peer in peers if peer.is_running()]
        for peer in reversed(ends):
            peer.signal(signal.SIGINT)
            peer.process.wait(60)
    finally:
        for peer in peers:
            peer.signal(signal.SIGCONT)
            peer.signal(signal.SIGKILL)
        network.close()
    print_report(folder, peers, injector, resident, longest, len(ends), (opened, losses))


def print_report(folder, peers, injector, resident, longest, left, strangers):
    first, (opened, losses) = peers[0], strangers
    whole = list(first.epochs.values())[:-1]
    sizes = collections.Counter(whole)
    early = [mib for seconds, mib in resident if seconds < max(120, resident[-1][0] / 4)]
    late = [mib for seconds, mib in resident if seconds > resident[-1][0] * 3 / 4]
    middle = lambda values: sorted(values)[len(values) // 2]
    print(f"faults: {dict(injector.count)}")
    has_fault = lambda peer, at: any(begun <= at <= over for begun, over in peer.faults)
    blameless = [lost for at, lost in losses if not any(peer.id == lost and has_fault(peer, at) for peer in peers)]
    print(f"a stranger opened {opened:,} connections; members lost without a fault of theirs: {len(blameless)} {blameless}")
    print(f"steps: {first.step + 1:,}, longest time without one {longest:.1f} s; views: {first.events['view']}")
    print(f"epochs: {len(whole):,} whole ones, of so many samples each: {dict(sizes)}")
    known, compared, wrong = digests(folder)
    print(f"digests: {compared:,} of {known:,} steps, {wrong} of them unlike another one of the same step")
    tenth = resident[-1][0] / 10
    tenths = [middle([mib for seconds, mib in resident if tenth * part <= seconds <= tenth * (part + 1)]) for part in range(10)]
    print("memory of the first peer by tenths of the time, MiB:", " ".join(f"{mib:.1f}" for mib in tenths))
    print(f"memory of the first peer: {middle(early):.1f} MiB early, {middle(late):.1f} MiB late ({middle(late) / middle(early):.3f} x), at most {max(mib for _, mib in resident):.1f}")
    print(f"at the end {left} peers left in order")
    for peer in peers:
        for problem in peer.problems[:3]:
            print(f"peer {peer.index}: {problem}")
    logs = sorted(str(path) for path in folder.glob("peer-*"))
    report = subprocess.run([SIMULATE, "report", *logs, "-o", folder / "report.html"], capture_output=True, text=True)
    print(report.stdout + report.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["knock"]:
        knock(sys.argv[2:])
    where = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp(prefix="faults-"))
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60, int(sys.argv[2]) if len(sys.argv) > 2 else 1, where)
