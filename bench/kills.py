"""Eight peers fill in a table, and one of them is killed every two seconds: does each epoch fill in each row exactly once?

    cargo build --release -p peergrad-examples
    python bench/kills.py [EPOCHS [SECONDS]]

The program is the example `custom_table`: its rows count how often they were filled in. Whoever is killed is replaced by a new peer. The first
peer is spared, since it reports the end. The default, 1,500 epochs, takes some minutes.
"""
import os
import random
import sys
import tempfile
import time
from pathlib import Path

# The example takes the place of `peer`, and has the same commands.
os.environ.setdefault("PEER", str(Path(__file__).parent.parent / "target" / "release" / "custom_table"))

from peers import Peer

PEERS = 8
LOCAL = ["--listen", "127.0.0.1", "--port", 0]


def main(epochs, seconds):
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "run.toml").write_text(f"epochs = {epochs}\nbatch = 64\n[shards]\nreplicas = 3\n")
        founder = Peer(folder, "0", "start", "run.toml", "--peers", PEERS, *LOCAL)
        peers = [founder]
        try:
            founder.wait_for(lambda peer: peer.invite)
            join = lambda: Peer(folder, str(len(peers)), "join", founder.invite, *LOCAL)
            for _ in range(PEERS - 1):
                peers.append(join())
            founder.wait_for(lambda peer: len(peer.steps) > 3)
            others, kills, begun = peers[1:], 0, time.monotonic()
            while founder.process.poll() is None and founder.steps[-1]["epoch"] < epochs - 2:
                time.sleep(seconds)
                victim = draw.randrange(len(others))
                others[victim].process.kill()
                others[victim] = join()
                peers.append(others[victim])
                kills += 1
            founder.wait_for_end()
        finally:
            for peer in peers:
                peer.process.kill()
        end = next(event for event in founder.others if event["event"] == "summary")
    print(f"{kills} kills in {time.monotonic() - begun:.0f} s, {epochs} epochs; each row was filled in {end['test_loss']} times on average,")
    print(f"and {end['test_accuracy']:.1%} of the rows hold that many equal numbers: {'exact' if end['test_loss'] == epochs else 'NOT EXACT'}")
    return end["test_loss"] != epochs or end["test_accuracy"] != 1


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]]
    sys.exit(main(int(arguments[0]) if arguments else 1500, arguments[1] if len(arguments) > 1 else 2))
