"""Two peers that send 64 MiB in both directions at once, for minutes, over each kind of lane: do they stall, does their memory grow?

    cargo build --release && python bench/soak.py [MINUTES [LANE...]]      as root, with `ip`; lanes: direct, substream, quic

Each peer is in a separate network namespace, with a virtual cable between them. Lanes that must not be used are blocked by port or
protocol. libp2p's pings use the same connection every two seconds. Every step sends each peer's half of the model to the other and back.
"""
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import Peer

MEBIBYTES = 64
# What a firewall rule for outgoing packets blocks, by lane.
KEPT_OUT = {
    "direct": [],
    "substream": ["ipproto tcp dport 5747", "ipproto tcp sport 5747"],
    "quic": ["ipproto tcp"],
}


def ip(*words):
    subprocess.run(["ip", *" ".join(words).split()], check=True)


def start(namespace, folder, *arguments):
    return Peer(folder, namespace, "bench-peer", MEBIBYTES, 1 << 14, *arguments, before=["ip", "netns", "exec", namespace])


def resident_mebibytes(peer):
    # `ip netns exec` is replaced by the peer, so the process id is the peer's.
    pages = int(Path(f"/proc/{peer.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(lane, minutes, folder):
    names = [f"soak-{os.getpid()}-{side}" for side in "ab"]
    peers = []
    try:
        for name in names:
            ip("netns add", name)
        ip("link add wire netns", names[0], "type veth peer name wire netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, f"address add 10.78.0.{number}/24 dev wire")
            ip("-n", name, "link set wire up")
            ip("-n", name, "link set lo up")
            for what in KEPT_OUT[lane]:
                ip("-n", name, "rule add pref 1", what, "prohibit")
        (folder / "run.toml").write_text('epochs = 1000000\nbatch = 2\n[optimizer]\nrule = "sgd"\nrate = 0.001\n')
        peers.append(start(names[0], folder, "start", "run.toml", "--listen", "10.78.0.1"))
        peers[0].wait_for(lambda peer: peer.invite)
        peers.append(start(names[1], folder, "join", peers[0].invite, "--listen", "10.78.0.2"))
        peers[1].wait_for(lambda peer: peer.steps)
        resident = []
        for _ in range(max(1, round(minutes * 2))):
            time.sleep(30)
            resident.append([resident_mebibytes(peer) for peer in peers])
        for peer in peers:
            peer.process.send_signal(signal.SIGINT)
        for peer in peers:
            peer.wait_for_end(30)
        return result(lane, peers, resident)
    finally:
        for peer in peers:
            peer.process.kill()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name])


def result(lane, peers, resident):
    times = [step["wall_seconds"] for step in peers[0].steps]
    gaps = [later - at for at, later in zip(times, times[1:])]
    half = len(gaps) // 2
    halves = [statistics.median(part) * 1e3 for part in (gaps[:half], gaps[half:])]
    gibibytes = peers[0].steps[-1]["bytes_sent"] / 2**30
    ways = {event["event"] for peer in peers for event in peer.others} & {"paused", "excluded"}
    memory = f"{max(resident[0]):.0f}, {max(resident[len(resident) // 2]):.0f}, {max(resident[-1]):.0f}"
    return (
        f"| {lane} | {times[-1] - times[0]:.0f} | {len(times):,} | {gibibytes:.0f} | {halves[0]:.0f}, {halves[1]:.0f} "
        f"| {max(gaps):.2f} | {memory} | {', '.join(sorted(ways)) or 'nothing'} |"
    )


def main(minutes, lanes):
    if not set(lanes) <= set(KEPT_OUT):
        sys.exit(f"lanes are {', '.join(KEPT_OUT)}")
    print("| lane | s | steps | GiB each way | ms a step, first and second half | longest gap, s | MiB resident after 30 s, half, all | trouble |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for lane in lanes:
        with tempfile.TemporaryDirectory() as folder:
            print(soak(lane, minutes, Path(folder)), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2:] or list(KEPT_OUT))
