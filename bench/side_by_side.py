"""`peer bench` compared with other systems, in rounds that alternate, so that a machine that is slow for a while is slow for all.

    cargo build --release
    (cd bench/ring && cargo build --release)
    pip install torch numpy                     for Gloo
    mpicc -O3 bench/mpi.c -o bench/ring/target/mpi      for OpenMPI; skipped if it is missing
    pip install hivemind                        for hivemind; likewise
    python bench/side_by_side.py [ROUNDS]

Times are those of an all-reduce. For peergrad they are those of a step without its gradient: an all-reduce, the owners' update and the
commit, encrypted, between peers that monitor each other. CPU seconds are those of the whole process. Ratios are medians over the rounds.
"""
import importlib.util
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEER = HERE.parent / "target" / "release" / "peer"
RING = HERE / "ring" / "target" / "release" / "bare-ring"
MPI = HERE / "ring" / "target" / "mpi"
CASES = [(peers, mebibytes) for peers in (2, 4) for mebibytes in (1, 16, 64)]


def last_object(*command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed")
    return json.loads(done.stdout.splitlines()[-1])


def gloo(peers, mebibytes):
    return last_object(sys.executable, HERE / "gloo.py", peers, mebibytes)


def mpi(peers, mebibytes):
    over_tcp = "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo".split()
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *over_tcp]
    return last_object(*start, "-np", peers, MPI, mebibytes)


def hivemind(peers, mebibytes):
    script = shlex.join([sys.executable, str(HERE / "hivemind_averaging.py"), str(peers), str(mebibytes)])
    return last_object("unshare", "-rn", "sh", "-c", f"ip link set lo up; {script}")


def bare_ring(cipher):
    return lambda peers, mebibytes: last_object(RING, peers, mebibytes, cipher)


def peergrad(topology, codec="f32"):
    options = ["--topology", topology, "--codec", codec, "--json", "--rounds", 1]
    return lambda peers, mebibytes: last_object(PEER, "bench", "--peers", peers, "--mebibytes", mebibytes, *options)


CONTENDERS = {
    "Gloo, plain TCP": gloo,
    **({"OpenMPI, plain TCP": mpi} if MPI.exists() else {}),
    **({"hivemind, encrypted": hivemind} if importlib.util.find_spec("hivemind") else {}),
    "bare ring, plain TCP": bare_ring("none"),
    "bare ring, AES-128-GCM": bare_ring("aes128"),
    "bare ring, ChaCha20": bare_ring("chacha20"),
    "peergrad, ring": peergrad("ring"),
    "peergrad, direct": peergrad("direct"),
    "peergrad, direct, bf16": peergrad("direct", "bf16"),
    "peergrad, direct, int8": peergrad("direct", "int8"),
}


def main(rounds):
    print("| peers | MiB | what | ms | CPU-s per GiB and peer | time / Gloo's | time / AES ring's |")
    print("|---|---|---|---|---|---|---|")
    for peers, mebibytes in CASES:
        found = {name: [] for name in CONTENDERS}
        for _ in range(rounds):
            for name, run in CONTENDERS.items():
                found[name].append(run(peers, mebibytes))
        for name, results in found.items():
            middle = lambda key: statistics.median(result[key] for result in results)
            time, cpu = middle("reduce_seconds") * 1e3, middle("cpu_seconds_per_gib_and_peer")
            to_gloo, to_ring = (ratio(results, found[other]) for other in ("Gloo, plain TCP", "bare ring, AES-128-GCM"))
            print(f"| {peers} | {mebibytes} | {name} | {time:.1f} | {cpu:.2f} | {to_gloo:.2f} | {to_ring:.2f} |", flush=True)


def ratio(results, others):
    pairs = zip(results, others)
    return statistics.median(own["reduce_seconds"] / other["reduce_seconds"] for own, other in pairs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
