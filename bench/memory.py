"""How much memory a peer has that trains on a file larger than it should need: 4 GB of pictures, 1 GB of text; and over 2,000 steps.

    cargo build --release --features deep
    python bench/memory.py                       needs 5 GB in the folder for temporary files, on Linux
    python bench/memory.py --gigabytes 0.1 --text-gigabytes 0.1 --long-steps 400

The files are noise, which is written first. A small network trains on each for some steps, and then the peer is interrupted, as by Ctrl-C. Memory
is what the kernel counts for the process: VmHWM is the highest resident size, with pages of the program and of mapped files; RssAnon is what the
process has asked for itself, the highest of twenty values a second. What the kernel caches of files that are read is in neither.
"""
import argparse
import os
import signal
import statistics
import struct
import tempfile
import time
from pathlib import Path

from peers import Peer

PICTURE, CLASSES = (3, 64, 64), 4
BLOCK_BYTES = 1 << 24
PICTURES = """
epochs = 1
batch = 256
[data]
file = "pictures.idx"
[model]
kind = "cnn"
layers = ["average-pool 8"]
"""
TEXT = """
epochs = 1
batch = 64
[data]
file = "text.txt"
[model]
kind = "gpt"
layers = 1
width = 32
heads = 2
context = 64
"""
LONG = """
epochs = 1000
batch = 64
[data]
file = "few.idx"
[model]
kind = "cnn"
layers = ["conv 8 3 stride 2", "relu", "pool 2", "conv 16 3", "relu", "pool 2", "dense 32", "relu"]
"""


def write_noise(file, count):
    """So many random bytes, of which blocks repeat."""
    block = os.urandom(min(count, BLOCK_BYTES))
    while count:
        count -= file.write(block[:count])


def array(file, *shape):
    """The header of an array of bytes in the IDX format."""
    file.write(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape))


def pictures(path, gigabytes):
    """Pictures, their labels, and the names of the classes, as `peer init --data FOLDER` packs them."""
    values = PICTURE[0] * PICTURE[1] * PICTURE[2]
    count = max(1000, round(gigabytes * 1e9) // values)
    with open(path, "wb") as file:
        array(file, count, *PICTURE)
        write_noise(file, count * values)
        array(file, count)
        file.write(bytes(index % CLASSES for index in range(count)))
        names = [f"class {index}".encode() for index in range(CLASSES)]
        array(file, CLASSES, len(names[0]))
        file.write(b"".join(names))


def text(path, gigabytes):
    with open(path, "wb") as file:
        write_noise(file, round(gigabytes * 1e9))


def memory(pid):
    """VmHWM, VmRSS and RssAnon of a process, in MB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmHWM", "VmRSS", "RssAnon")]


def trained(folder, settings, steps):
    """What a peer needs until it has taken so many steps: rows of the step, VmHWM, VmRSS and RssAnon; and the seconds to its first step."""
    (folder / "run.toml").write_text(settings)
    began, rows, first = time.monotonic(), [], None
    peer = Peer(folder, f"peer-{began}", "start", folder / "run.toml", "--peers", 1, "--listen", "127.0.0.1", "--port", 0)
    while len(peer.steps) < steps:
        try:
            rows.append((len(peer.steps), *memory(peer.process.pid)))
        except KeyError:  # A process that has ended has no memory.
            raise SystemExit(f"the peer has ended: {peer.others}") from None
        first = first or (time.monotonic() - began if peer.steps else None)
        time.sleep(0.05)
    peer.process.send_signal(signal.SIGINT)
    peer.wait_for_end()
    return rows, first


def highest(rows):
    _, peak, _, own = map(max, zip(*rows))
    return f"VmHWM {peak:.0f} MB, RssAnon {own:.0f} MB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of pictures")
    parser.add_argument("--text-gigabytes", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=100, help="on each of the two files")
    parser.add_argument("--long-steps", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [("pictures.idx", PICTURES, pictures, options.gigabytes), ("text.txt", TEXT, text, options.text_gigabytes)]
        for file, settings, write, gigabytes in cases:
            write(folder / file, gigabytes)
            size = (folder / file).stat().st_size / 1e6
            rows, first = trained(folder, settings, options.steps)
            (folder / file).unlink()
            print(f"{file}, {size:.0f} MB: {highest(rows)}; first step after {first:.0f} s", flush=True)
        pictures(folder / "few.idx", 0.02)
        rows, _ = trained(folder, LONG, options.long_steps)
        print(f"a small network, {options.long_steps} steps: {highest(rows)}. VmRSS and RssAnon, medians of each tenth:")
        for tenth in range(10):
            bounds = range(tenth * options.long_steps // 10, (tenth + 1) * options.long_steps // 10)
            part = [row for row in rows if row[0] in bounds]
            print(f"  steps {bounds.start} to {bounds.stop}:", ", ".join(f"{statistics.median(column):.1f} MB" for column in list(zip(*part))[2:]))


if __name__ == "__main__":
    main()
