"""Step time of four peers on two cores, compared with the sum of its parts: computing, shared by the cores, and the all-reduce.

    cargo build --release && python bench/sharing.py [ROUNDS]

The time of computing is that of a peer that trains alone with a fourth of the batch; the time of the all-reduce is that of `peer bench`
with a model of this size. Neither includes replicas of optimizer state: with two of each, the peers send a sixth more bytes, and each
peer updates twice as many elements.
"""
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import PEER, train

PEERS, CORES = 4, 2
WIDTHS, STEPS = [784, 1024, 1024, 10], 60
BATCHES = [128, 512, 1024]


def differences(steps, key):
    values = [step[key] for step in steps]
    return [later - earlier for earlier, later in zip(values, values[1:])]


def seconds(steps, key):
    # The first steps allocate memory and open TCP windows.
    return statistics.median(differences(steps, key)[5:])


def all_reduce():
    parameters = sum(inputs * outputs + outputs for inputs, outputs in zip(WIDTHS, WIDTHS[1:]))
    size = ["--mebibytes", str(round(parameters * 4 / 2**20))]
    command = [PEER, "bench", "--peers", str(PEERS), *size, "--json"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return json.loads(lines[-1])["reduce_seconds"]


def main(rounds):
    print("| batch | computing of one | all-reduce | ideal, ms a step | one replica, ms a step | / ideal | two replicas, ms a step | / ideal |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for batch in BATCHES:
            found = []
            for _ in range(rounds):
                computing = seconds(train(Path(folder), 1, batch // PEERS, WIDTHS, STEPS)[0].steps, "computing_seconds")
                reducing = all_reduce()
                ideal = computing * PEERS / CORES + reducing
                row = [computing * 1e3, reducing * 1e3, ideal * 1e3]
                for replicas in (1, 2):
                    peers = train(Path(folder), PEERS, batch, WIDTHS, STEPS, replicas)
                    step = seconds(peers[0].steps, "wall_seconds")
                    row += [step * 1e3, step / ideal]
                found.append(row)
            columns = [statistics.median(column) for column in zip(*found)]
            digits = [1, 1, 1, 1, 2, 1, 2]
            print(f"| {batch} |", " | ".join(f"{column:.{count}f}" for column, count in zip(columns, digits)), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
