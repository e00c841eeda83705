"""All-reduce between hosts with long lines: what each host sends while it communicates, in Mbit/s.

    cargo build --release --workspace
    python bench/wan.py [--hosts 2,4] [--round-trips 20,100] [--rate 200] [--loss 0] [--size 14] [--rounds 1]
                        [--lines equal | slow | home] [--topology auto] [--congestion cubic] [--foreign]
    python bench/wan.py --compare [long,ring,slow,lossy] [--rounds 1]
    python bench/wan.py --overlap book.txt [--hosts 2,4] [--round-trips 20] [--rounds 3]

`wan/wan.c` gives each host a network namespace and a line with a delay, a rate and losses, so that real programs meet real TCP on one
machine. It needs root or user namespaces, and a C compiler. Bare TCP (one connection from each host to the next, all at once), Gloo (if
PyTorch is installed) and peergrad take turns. Each number is the smallest of all hosts. A round trip of 0.1 s delays each half of an
all-reduce by 0.05 s, which counts as communicating. The last column is from the simulator, with the same lines, computing times and numbers
of connections.

`--lines slow`: the first host has a line of 20 Mbit/s. `--lines home`: 10 Mbit/s up and 50 down. No host of a ring can send faster than
the slowest line carries. `--congestion` sets what the system uses for TCP in each host. With `--foreign`, a bare TCP connection from the
first host to the second one sends beside peergrad, and what it carries is printed.

`--compare` runs peergrad and the simulator over four kinds of lines, and prints the times of their steps.

`--overlap` trains a GPT of 3.3 million parameters on a text, with 8 windows of 128 bytes for each host in a step. Peers sum the gradients of
its last layers while they compute those of the first ones. A dense network of as many parameters, which has its whole gradient at once, shows
how long the all-reduce takes by itself. What a step of the GPT takes beside its gradient is less: the rest was hidden. It needs
`cargo build --release --features deep`.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from peers import PEER, Peer, noise

HERE = Path(__file__).resolve()
WAN = HERE.parent.parent / "target" / "wan"
# The widths of an MLP with about so many million bytes of parameters.
WIDTHS = {5: [784, 1024, 512, 10], 14: [784, 1800, 1200, 10], 20: [784, 2400, 1240, 10], 64: [784, 4096, 3072, 10]}
PORT, FOREIGN_PORT, STEPS = 7400, 7900, int(os.environ.get("WAN_STEPS", 20))
# These do not count: connections grow, and become more.
FIRST_STEPS = STEPS // 4 if STEPS < 40 else STEPS // 2
# Seconds of bare TCP: before and while it is measured.
WARM, MEASURED = 4, 4
# Small, so that computing takes little of a step.
BATCH = 16
HOST = int(os.environ.get("WAN_HOST", 0))
HOSTS = int(os.environ.get("WAN_HOSTS", 1))
# What `--compare` runs. With losses, it takes two minutes to find how many connections a lane needs: of so many steps half count.
COMPARED = {
    "long": {"hosts": 2, "round_trip": 100},
    "ring": {"hosts": 4, "round_trip": 100, "topology": "ring"},
    "slow": {"hosts": 2, "round_trip": 50, "lines": "slow", "size": 5},
    "lossy": {"hosts": 2, "round_trip": 100, "loss": 0.1, "congestion": "cubic", "size": 5, "steps": 140, "seconds": 540},
}


# Layers, width, heads and context of the GPT, its parameters, and the widths of a dense network of about as many.
GPT = (4, 256, 4, 128)
GPT_ELEMENTS, GPT_WIDTHS, GPT_BATCH = 3_257_856, [784, 1800, 1010, 10], 8


def elements(widths):
    return sum(inputs * outputs + outputs for inputs, outputs in zip(widths, widths[1:]))


def rate(size, seconds, hosts=HOSTS):
    """Mbit/s of a host in a ring, or in an exchange with all others."""
    return 2 * (hosts - 1) / hosts * elements(WIDTHS[size]) * 32 / 1e6 / seconds


class Receiver:
    """Takes one connection, and counts what it carries."""

    def __init__(self, port):
        self.server = socket.create_server((os.environ["WAN_ADDRESS"], port))
        self.count = 0
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self):
        connection = self.server.accept()[0]
        while block := connection.recv(1 << 20):
            self.count += len(block)

    def rate_until(self, end):
        """Mbit/s from now on."""
        begun, before = time.monotonic(), self.count
        end()
        return (self.count - before) * 8 / 1e6 / (time.monotonic() - begun)


def send_to(host, port):
    """Sends to a host in the background until this process ends."""

    def send():
        connection = connect(host, port)
        block = bytes(1 << 20)
        try:
            while True:
                connection.sendall(block)
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()


def host_tcp(_folder, _size):
    """One connection to the next host, for some seconds after its start."""
    receiver = Receiver(PORT)
    send_to((HOST + 1) % HOSTS, PORT)
    time.sleep(WARM)
    found = receiver.rate_until(lambda: time.sleep(MEASURED))
    time.sleep(2)
    return {"rate": found}


def connect(host, port):
    for _ in range(100):
        try:
            return socket.create_connection((f"10.77.0.{host + 1}", port))
        except OSError:
            time.sleep(0.1)
    print(f"host {host} does not listen", file=sys.stderr, flush=True)
    os._exit(1)


def host_gloo(_folder, size):
    import torch
    import torch.distributed as distributed

    os.environ.update(GLOO_SOCKET_IFNAME="wan0", MASTER_ADDR="10.77.0.1", MASTER_PORT=str(PORT))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=HOST, world_size=HOSTS)
    tensor = torch.ones(elements(WIDTHS[size]))
    seconds = []
    for _ in range(STEPS):
        begun = time.monotonic()
        distributed.all_reduce(tensor)
        seconds.append(time.monotonic() - begun)
    return {"rate": rate(size, statistics.median(seconds[4:]))}


def lane_connections():
    """The number of connections that this host has opened to send to one other, beside the one of libp2p."""
    rows = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    split = [(int(local.split(":")[1], 16), *remote.split(":"), state) for local, remote, state in rows]
    listening = {port for port, *_, state in split if state == "0A"}
    opened = [there for port, there, to, state in split if state == "01" and port not in listening and int(to, 16) not in (PORT, FOREIGN_PORT)]
    return max(Counter(opened).values(), default=1)


def host_peergrad(folder, size):
    run_file = folder / "run.toml"
    listen = ["--listen", os.environ["WAN_ADDRESS"], "--port", str(PORT), "--secret-file", folder / "secret"]
    if HOST == 0:
        peer = Peer(folder, "0", "start", run_file, "--peers", HOSTS, *listen)
    else:
        time.sleep(1)
        peer = Peer(folder, str(HOST), "join", f"10.77.0.1:{PORT}", *listen)
    beside = {}
    if os.environ.get("FOREIGN") and HOST == 0:
        send_to(1, FOREIGN_PORT)
    if os.environ.get("FOREIGN") and HOST == 1:
        receiver = Receiver(FOREIGN_PORT)
        peer.wait_for(lambda peer: len(peer.steps) > FIRST_STEPS)
        beside = {"foreign": receiver.rate_until(peer.wait_for_end)}
    peer.wait_for(lambda peer: len(peer.steps) > FIRST_STEPS)
    connections = []
    while peer.process.poll() is None:
        connections.append(lane_connections())
        time.sleep(0.5)
    peer.wait_for_end()
    if peer.process.returncode:
        sys.exit(f"a peer has failed: {peer.others[-3:]}")
    medians = {key: statistics.median(differences([step[key] for step in peer.steps])) for key in ("wall_seconds", "computing_seconds")}
    communicating = differences([step["wall_seconds"] - step["computing_seconds"] for step in peer.steps])
    found = {"rate": rate(size, statistics.median(communicating)), "connections": statistics.fmean(connections or [1])}
    return found | medians | {"communicating_seconds": statistics.median(communicating)} | beside


def differences(sums):
    """What was added at each step, without the first steps."""
    return [later - earlier for earlier, later in zip(sums, sums[1:])][FIRST_STEPS:]


def prepare_text(folder, text, topology, steps, hosts):
    layers, width, heads, context = GPT
    # A tenth of the windows is held out.
    (folder / "book.txt").write_bytes(text.read_bytes()[: steps * hosts * GPT_BATCH * context * 10 // 9 + context])
    (folder / "secret").write_text("5a" * 32)
    (folder / "run.toml").write_text(
        f'epochs = 1\nbatch = {GPT_BATCH * hosts}\n[data]\nfile = "book.txt"\nheld_out = 0.1\n[model]\nkind = "gpt"\nlayers = {layers}\n'
        f'width = {width}\nheads = {heads}\ncontext = {context}\n[optimizer]\nrule = "adamw"\nrate = 0.001\n'
        f'[shards]\nreplicas = 1\n[sync]\nkind = "sync"\ntopology = "{topology}"\n'
    )


def prepare(folder, widths, topology, steps):
    # A fifth of the rows is held out.
    noise(folder / "noise.csv", widths[0], widths[-1], steps * BATCH * 5 // 4)
    (folder / "secret").write_text("5a" * 32)
    (folder / "run.toml").write_text(
        f'epochs = 1\nbatch = {BATCH}\n[data]\nfile = "noise.csv"\n[model]\nkind = "mlp"\nhidden = {widths[1:-1]}\n'
        f'[shards]\nreplicas = 1\n[sync]\nkind = "sync"\ntopology = "{topology}"\n'
    )


def lines(options, hosts):
    """The rates of each host's line: Mbit/s up and down."""
    equal = [(options.rate, options.rate)] * hosts
    return {"equal": equal, "slow": [(20, 20), *equal[1:]], "home": [(10, 50)] * hosts}[options.lines]


def measure(program, hosts, round_trip, options):
    """What the slowest host found, and the rate of the foreign connection if there is one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if program == "gpt":
            prepare_text(folder, options.overlap, options.topology, options.steps, hosts)
        else:
            prepare(folder, GPT_WIDTHS if options.overlap else WIDTHS[options.size], options.topology, options.steps)
        (folder / "rates").write_text("".join(f"{up} {down}\n" for up, down in lines(options, hosts)))
        line = ["-n", hosts, "-d", round_trip / 2, "-R", folder / "rates", "-l", options.loss, "-t", options.seconds]
        command = [WAN, *line, "--", sys.executable, HERE, "--as-host", program.replace("gpt", "peergrad"), "--folder", folder, "--size", options.size]
        environment = os.environ | {"CONGESTION": options.congestion, "WAN_STEPS": str(options.steps)} | ({"FOREIGN": "1"} if options.foreign else {})
        result = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        if result.returncode:
            sys.exit(f"{program} has failed: {result.stderr[-2000:]}")
        found = [json.loads(line) for line in result.stdout.splitlines()]
        foreign = [host for host in found if "foreign" in host]
        return {key: value for host in foreign for key, value in host.items()} | min(found, key=lambda host: host["rate"])


def simulated(hosts, round_trip, options, measured, whole=1448 / 1500):
    """The seconds of a step in virtual time, with the computing time and the connections that were measured. `whole` is the part of a line that
    carries a program's bytes: 1,448 of 1,500 without what the machine adds."""
    sample_time = measured["computing_seconds"] * hosts / 32
    slow = [(host, line) for host, line in enumerate(lines(options, hosts)) if line != lines(options, hosts)[-1]]
    up, down = lines(options, hosts)[-1]
    throttle = "".join(
        f'[[faults]]\nat = "0s"\nkind = "throttle"\npeers = [{host}]\nup_mbit = {up * whole}\ndown_mbit = {down * whole}\n'
        for host, (up, down) in slow
    )
    with tempfile.TemporaryDirectory() as name:
        scenario = Path(name) / "wan.toml"
        scenario.write_text(
            f'about = "wan"\npeers = {hosts}\n[links]\nlatency = "{round_trip / 2}ms"\njitter = "0ms"\n'
            f"loss = {options.loss / 100}\nconnections = {round(measured['connections'])}\n"
            f"up_mbit = {up * whole}\ndown_mbit = {down * whole}\n"
            f'[task]\nkind = "integers"\nparameters = {elements(WIDTHS[options.size])}\nsample_time = "{1e6 * sample_time:.0f}us"\n'
            f"[run]\nepochs = 1\nbatch = 32\n[run.optimizer]\nrate = 0.01\n[run.shards]\nreplicas = 1\n"
            f'[run.sync]\ntopology = "{options.topology}"\n[expect]\npatience = "1h"\n{throttle}'
        )
        result = subprocess.run([PEER.parent / "simulate", "run", scenario, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    at = [event["at"] for event in events if event["event"] == "step"]
    return statistics.median([later - earlier for earlier, later in zip(at, at[1:])][len(at) // 4 :])


def compare(options):
    """Times of steps, measured and simulated. Without losses, a simulated line carries what bare TCP carries in the same namespaces: this
    machine may not keep so many lines full."""
    print("| lines | connections | bare TCP, Mbit/s | measured, s | simulated, s | simulated / measured |\n|---|---|---|---|---|---|")
    for name in options.compare:
        settings = argparse.Namespace(**vars(options) | COMPARED[name])
        bare, rounds = [], []
        for _ in range(options.rounds):
            bare.append(measure("tcp", settings.hosts, settings.round_trip, settings)["rate"])
            rounds.append(measure("peergrad", settings.hosts, settings.round_trip, settings))
        found = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        tcp, slowest = statistics.median(bare), min(min(line) for line in lines(settings, settings.hosts))
        whole = {"whole": min(1448 / 1500, tcp / slowest)} if settings.loss == 0 else {}
        step = simulated(settings.hosts, settings.round_trip, settings, found, **whole)
        wall = found["wall_seconds"]
        print(f"| {name} | {found['connections']:.1f} | {tcp:.0f} | {wall:.3f} | {step:.3f} | {step / wall:.2f} |", flush=True)


def overlap(options):
    """How much of the all-reduce a gradient hides that is known from the last layer on."""
    print(f"lines of {options.rate:g} Mbit/s, a GPT of {GPT_ELEMENTS:,} parameters; seconds")
    print("| hosts | round trip, ms | all-reduce alone | gradient | step | step without gradient | hidden |\n|---|---|---|---|---|---|---|")
    for hosts in options.hosts:
        for round_trip in options.round_trips:
            alone, steps = [], []
            for _ in range(options.rounds):
                found = measure("peergrad", hosts, round_trip, options)
                alone.append(found["communicating_seconds"] * GPT_ELEMENTS / elements(GPT_WIDTHS))
                steps.append(measure("gpt", hosts, round_trip, options))
            median = lambda key: statistics.median(step[key] for step in steps)
            rest, alone = median("communicating_seconds"), statistics.median(alone)
            row = [f"{seconds:.3f}" for seconds in (alone, median("computing_seconds"), median("wall_seconds"), rest)]
            print(f"| {hosts} | {round_trip} |", " | ".join(row), f"| {1 - rest / alone:.2f} |", flush=True)


def tabulate(options):
    columns = {"bare TCP": "tcp", "peergrad": "peergrad"}
    try:
        import torch.distributed  # noqa: F401

        columns["Gloo"] = "gloo"
    except ImportError:
        print("PyTorch is not installed: without Gloo")
    slowest = lambda hosts: min(min(line) for line in lines(options, hosts))
    kind = f"{options.lines} lines of {options.rate:g}" if options.lines != "home" else "home lines of 10 up and 50 down,"
    print(f"{kind} Mbit/s, {options.loss:g} % lost, {options.size} MB of parameters; Mbit/s that a host sends")
    foreign = ["foreign connection"] if options.foreign else []
    print("| hosts | round trip, ms | slowest line |", " | ".join([*columns, *foreign]), "| simulated |\n|---|---|---|" + "---|" * len([*columns, *foreign, 1]))
    for hosts in options.hosts:
        for round_trip in options.round_trips:
            found = {name: [] for name in [*columns, *foreign]}
            for _ in range(options.rounds):
                for name, program in columns.items():
                    last = measure(program, hosts, round_trip, options)
                    found[name].append(last["rate"])
                    if program == "peergrad":
                        peergrad = last
                        found |= {beside: [*found[beside], last["foreign"]] for beside in foreign}
            step = simulated(hosts, round_trip, options, peergrad)
            found["simulated"] = [rate(options.size, step - peergrad["computing_seconds"], hosts)]
            cells = [f"{statistics.median(values):.{0 if min(values) > 20 else 1}f}" for values in found.values()]
            print(f"| {hosts} | {round_trip} | {slowest(hosts):g} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=numbers, default=[2, 4])
    parser.add_argument("--round-trips", type=numbers, default=[20, 100])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--size", type=int, choices=WIDTHS, default=14)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="of 40 or more only the second half counts, of fewer all but a quarter")
    parser.add_argument("--lines", choices=["equal", "slow", "home"], default="equal")
    parser.add_argument("--congestion", default="", help="for example cubic; by default that of this machine")
    parser.add_argument("--topology", choices=["auto", "ring", "direct"], default="auto")
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--compare", nargs="?", const=list(COMPARED), type=lambda text: text.split(","), metavar="NAMES", help="default: all")
    parser.add_argument("--overlap", type=Path, metavar="TEXT", help="a text of a megabyte or so")
    parser.add_argument("--seconds", type=int, default=300, help="the longest time of one measurement")
    parser.add_argument("--as-host", choices=["tcp", "gloo", "peergrad"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_host:
        if os.environ.get("CONGESTION"):
            Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text(os.environ["CONGESTION"])
        result = globals()[f"host_{arguments.as_host}"](arguments.folder, arguments.size)
        # In one piece: all hosts write to the same pipe.
        sys.stdout.write(f"{json.dumps(result)}\n")
    else:
        subprocess.run(["cc", "-O2", "-o", WAN, HERE.parent / "wan" / "wan.c"], check=True)
        (compare if arguments.compare else overlap if arguments.overlap else tabulate)(arguments)
