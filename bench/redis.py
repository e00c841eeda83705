"""`peer bench-table` compared with Redis, in rounds that alternate, so that a machine that is slow for a while is slow for all of them.

    cargo build --release -p peergrad
    apt-get install redis-server                the server, and redis-benchmark (Debian's redis-tools)
    python bench/redis.py [ROUNDS]

Redis is one server without persistence, with one process of `redis-benchmark` for each peer. Each process has as many operations in
progress as a worker: 64 random keys, whose values are the 4-byte numbers of a row. MGET reads all of them with one command, GET each
with a command of its own. Redis cannot add vectors: MSET overwrites them, without regard to what others have written, which is less work
than adding; INCRBYFLOAT adds to one number with each command, and stores it as text. With a replica, Redis answers before the replica has
the value; a peer's additions are at two peers when they are acknowledged. Clients of Redis discard what they read; a worker stores it.
Redis encrypts nothing.

CPU microseconds are those of all processes, clients and servers. Bytes a row are the growth of the memory of all peers together, or of the
server (`used_memory`), with each row, without its replica. Ratios are medians over the rounds.
"""
import atexit
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEER = Path(__file__).parent.parent / "target" / "release" / "peer"
ROWS, BATCH, IN_FLIGHT = 100_000, 64, 4
CASES = [(peers, width) for peers in (2, 4, 8) for width in (1, 16, 256)]
# How many rows are read or written in each round, so that rounds take about the same time.
WORK, REDIS_WORK = 500_000, 4_000_000


class Server:
    """A Redis server with all rows in it; `replicas` of them follow it."""

    def __init__(self, folder, width, replicas=0):
        self.ports = [free_port() for _ in range(1 + replicas)]
        first = ["--replicaof", "127.0.0.1", str(self.ports[0])]
        self.processes = [serve(folder, port, first if place else []) for place, port in enumerate(self.ports)]
        self.socket = connect(self.ports[0])
        self.answers = self.socket.makefile("rb")
        before = self.used_memory()
        for start in range(0, ROWS, BATCH):
            keys = range(start, min(start + BATCH, ROWS))
            self.ask(b"MSET", *(word for key in keys for word in (b"%012d" % key, value(width))))
        self.bytes_per_row = (self.used_memory() - before) / ROWS
        while replicas and not all(b"master_link_status:up" in info(port) for port in self.ports[1:]):
            time.sleep(0.1)

    def ask(self, *words):
        self.socket.sendall(command(words))
        return self.answers.readline()

    def used_memory(self):
        lines = info(self.ports[0]).decode().splitlines()
        return next(int(line.split(":")[1]) for line in lines if line.startswith("used_memory:"))

    def cpu_seconds(self):
        return sum(cpu_seconds(process.pid) for process in self.processes)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.wait()


def serve(folder, port, options):
    alone = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen(["redis-server", *alone, *options], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            connect(port).close()
            # Also if something fails.
            atexit.register(process.kill)
            return process
        except ConnectionRefusedError:
            time.sleep(0.02)
    sys.exit("redis-server has ended")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def connect(port):
    return socket.create_connection(("127.0.0.1", port))


def command(words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def info(port):
    with connect(port) as line, line.makefile("rb") as answers:
        line.sendall(command([b"INFO"]))
        return answers.read(int(answers.readline()[1:]))


def value(width):
    # A row of width 1 is a number, as INCRBYFLOAT requires.
    return b"1.25" if width == 1 else b"x" * (4 * width)


def cpu_seconds(process):
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def redis(words, commands_per_batch=1, replicas=0):
    """Runs a command of a batch's keys; `words` makes it of the width."""

    def run(peers, width):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(folder, width, replicas)
            # The number of commands must fill each pipeline.
            work = REDIS_WORK // (4 if width > 64 else 1)
            commands = work // BATCH // peers // IN_FLIGHT * IN_FLIGHT * commands_per_batch
            options = ["-c", 1, "-P", IN_FLIGHT * commands_per_batch, "-r", ROWS, "-n", commands, "-q"]
            client = ["redis-benchmark", "-p", server.ports[0], *options, *words(width)]
            before, start = server.cpu_seconds() + children_cpu_seconds(), time.monotonic()
            clients = [subprocess.Popen(list(map(str, client)), stdout=subprocess.DEVNULL) for _ in range(peers)]
            if any([client.wait() for client in clients]):
                sys.exit("redis-benchmark failed")
            seconds = time.monotonic() - start
            cpu = server.cpu_seconds() + children_cpu_seconds() - before
            rows = commands * peers * BATCH / commands_per_batch
            server.stop()
            return {"rows": rows / seconds, "cpu": cpu / rows, "bytes": server.bytes_per_row}

    return run


def peergrad(work):
    options = ["--work", work, "--rows", ROWS, "--batch", BATCH, "--in-flight", IN_FLIGHT, "--rounds", 1, "--json"]
    options += ["--epochs", WORK // ROWS]

    def run(peers, width):
        start = [PEER, "bench-table", "--peers", peers, "--width", width, *options]
        done = subprocess.run(list(map(str, start)), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit("the bench failed")
        found = json.loads(done.stdout.splitlines()[-1])
        rows = found["gets_per_second"] or found["adds_per_second"]
        return {"rows": rows, "cpu": found["cpu_seconds_per_row"], "bytes": found["resident_bytes_per_row"]}

    return run


KEY = "__rand_int__"
READS = {
    "Redis, MGET": redis(lambda width: ["MGET", *[KEY] * BATCH]),
    "Redis, GET": redis(lambda width: ["GET", KEY], commands_per_batch=BATCH),
    "peergrad, get": peergrad("get"),
}
ADDS = {
    "Redis, MSET: overwrites": redis(lambda width: ["MSET", *[KEY, value(width).decode()] * BATCH]),
    "Redis, MSET, a replica": redis(lambda width: ["MSET", *[KEY, value(width).decode()] * BATCH], replicas=1),
    "Redis, INCRBYFLOAT": redis(lambda width: ["INCRBYFLOAT", KEY, "1"], commands_per_batch=BATCH),
    "peergrad, add, two replicas": peergrad("add"),
}


def main(rounds):
    print("| peers | numbers a row | what | rows/s | MB/s | CPU-us a row | bytes a row | rows/s / the first's |")
    print("|---|---|---|---|---|---|---|---|")
    for peers, width in CASES:
        for group in (READS, ADDS):
            contenders = {name: run for name, run in group.items() if width == 1 or "INCRBYFLOAT" not in name}
            found = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, run in contenders.items():
                    found[name].append(run(peers, width))
            first = next(iter(found.values()))
            for name, results in found.items():
                middle = lambda key: statistics.median(result[key] for result in results)
                ratio = statistics.median(own["rows"] / other["rows"] for own, other in zip(results, first))
                rows, cpu, kept = middle("rows"), middle("cpu") * 1e6, middle("bytes")
                megabytes = rows * width * 4 / 1e6
                print(
                    f"| {peers} | {width} | {name} | {rows:,.0f} | {megabytes:.1f} | {cpu:.2f} | {kept:.0f} | {ratio:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
