"""`peer bench` beside Gloo, in rounds that take turns, so that a machine that is slow for a while is so for both.

    cargo build --release && python bench/side_by_side.py [ROUNDS]      needs `pip install torch numpy`

Times are those of a step: with Gloo an all-reduce alone; with peergrad an all-reduce, the owners' update and the commit, between
peers that watch each other, encrypted. Ratios are medians of each round's.
"""
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEER = HERE.parent / "target" / "release" / "peer"
CASES = [(peers, mebibytes) for peers in (2, 4) for mebibytes in (1, 16, 64)]
VARIANTS = {
    "ring, f32": ["--topology", "ring"],
    "direct, f32": ["--topology", "direct"],
    "direct, bf16": ["--topology", "direct", "--codec", "bf16"],
    "direct, int8": ["--topology", "direct", "--codec", "int8"],
}


def last_object(command):
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def gloo(peers, mebibytes):
    return last_object([sys.executable, str(HERE / "gloo.py"), str(peers), str(mebibytes)])


def peergrad(peers, mebibytes, options):
    sizes = ["--peers", str(peers), "--mebibytes", str(mebibytes)]
    return last_object([str(PEER), "bench", "--json", "--rounds", "1", *sizes, *options])


def main(rounds):
    print("| peers | MiB | what | ms | CPU-s per GiB and peer | time / Gloo's |")
    print("|---|---|---|---|---|---|")
    for peers, mebibytes in CASES:
        found = {name: [] for name in ("Gloo", *VARIANTS)}
        for _ in range(rounds):
            found["Gloo"].append(gloo(peers, mebibytes))
            for name, options in VARIANTS.items():
                found[name].append(peergrad(peers, mebibytes, options))
        for name, results in found.items():
            middle = lambda key: statistics.median(result[key] for result in results)
            pairs = zip(results, found["Gloo"])
            ratio = statistics.median(own["step_seconds"] / gloo["step_seconds"] for own, gloo in pairs)
            cpu = middle("cpu_seconds_per_gib_and_peer")
            print(f"| {peers} | {mebibytes} | {name} | {middle('step_seconds') * 1e3:.1f} | {cpu:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
