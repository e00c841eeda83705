"""Four peers fill in a table, and all of them are killed at once, again and again: does each epoch fill in each row exactly once?

    cargo build --release -p peergrad-examples
    python bench/power_cuts.py [CUTS [SECONDS]]

The program is the example `custom_table`: its rows count how often they were filled in. So many seconds after all peers train, all are killed
with one blow (kill -9) and started again with `resume`. Checkpoints are written each second. The default is 20 cuts, 3 seconds apart.
"""
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The example takes the place of `peer`, and has the same commands.
os.environ.setdefault("PEER", str(Path(__file__).parent.parent / "target" / "release" / "custom_table"))

from peers import PEER, Peer

PEERS = 4
# More than the peers get done: the last ones are asked to end the run.
EPOCHS = 1_000_000
SETTINGS = f"epochs = {EPOCHS}\nbatch = 64\n[shards]\nreplicas = 3\n[checkpoints]\nseconds = 1\n"


def local():
    """Options of a peer that returns under the same address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return "--listen", "127.0.0.1", "--port", free.getsockname()[1]


def events(peer, name):
    return [event for event in peer.others if event["event"] == name]


def main(cuts, seconds):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "run.toml").write_text(SETTINGS)
        founder = Peer(folder, "0", "start", "run.toml", "--peers", PEERS, *local())
        founder.wait_for(lambda peer: peer.invite)
        peers = [founder] + [Peer(folder, str(n), "join", founder.invite, *local()) for n in range(1, PEERS)]
        restored = []
        try:
            for _ in range(cuts):
                for peer in peers:
                    peer.wait_for(lambda peer: len(peer.steps) > 3)
                time.sleep(seconds)
                newest = max(peer.steps[-1]["step"] for peer in peers)
                for peer in peers:
                    peer.process.kill()
                for peer in peers:
                    peer.wait_for_end()
                peers = [Peer(folder, str(n), "resume") for n in range(PEERS)]
                for peer in peers:
                    peer.wait_for(lambda peer: events(peer, "restored") and peer.steps)
                restored.append((newest, max(peer.steps[0]["step"] for peer in peers)))
            for peer in peers:
                peer.wait_for(lambda peer: len(peer.steps) > 3)
            subprocess.run([PEER, "end-run", "--dir", peers[0].directory], check=True, stdout=subprocess.DEVNULL)
            for peer in peers:
                peer.wait_for_end()
        finally:
            for peer in peers:
                peer.process.kill()
        ends = [events(peer, "summary")[0] for peer in peers]
    for newest, steps in restored:
        print(f"killed at step {newest}, continued from {steps}")
    end, samples = ends[0], ends[0]["samples"]
    # 2,000 rows; the run may end within an epoch, in which some rows were filled in and others not.
    filled = end["test_loss"] * 2000
    alike = len({peer["digest"] for peer in ends}) == 1
    print(f"{cuts} power cuts: {samples} samples trained, and rows filled in {filled:.0f} times; all peers have the same rows: {alike}")
    return 0 if alike and round(filled) == samples and end["test_accuracy"] == 1 else 1


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]]
    sys.exit(main(int(arguments[0]) if arguments else 20, arguments[1] if len(arguments) > 1 else 3))
