"""Swarms of real processes on this machine, for the tests."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs.py")
PATIENCE_SECONDS = int(os.environ.get("PEERGRAD_TEST_SECONDS", "240"))


class Process:
    """A process of `programs.py`. What it prints is lines of JSON, by event."""

    def __init__(self, program: str, **options) -> None:
        self.name = program
        self.folder = Path(options["directory"])
        self.errors = self.folder.with_suffix(".stderr")
        self._lines: queue.SimpleQueue = queue.SimpleQueue()
        self.seen: list[dict] = []
        command = [sys.executable, str(PROGRAMS), program, json.dumps(options, default=str)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PEERGRAD_INVITE", None)
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            # Frameworks print lines of their own.
            if line.startswith('{"event"'):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for(self, event: str, **fields) -> dict:
        """The next line of this event with these fields."""
        while True:
            line = self._lines.get(timeout=PATIENCE_SECONDS)
            if line is None:
                pytest.fail(f"{self.name} ended without {event} {fields}:\n{self.errors.read_text()}\n{self.seen[-5:]}")
            self.seen.append(line)
            if line["event"] == event and all(line[key] == value for key, value in fields.items()):
                return line

    def wait_for_step(self, number: int) -> None:
        while self.wait_for("step")["number"] < number:
            pass

    def result(self) -> dict:
        """The last line, of the run's end at this peer."""
        return self.wait_for("result")

    def code(self) -> int:
        """The exit code, once the process has ended."""
        return self.process.wait(PATIENCE_SECONDS)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def say(self) -> str:
        """What it has written for people."""
        return self.errors.read_text()


@pytest.fixture
def start(tmp_path):
    """Starts processes; those that are left are killed at the end."""
    started = []

    def start_one(program: str, **options) -> Process:
        options.setdefault("directory", tmp_path / f"peer-{len(started)}")
        started.append(Process(program, **options))
        return started[-1]

    yield start_one
    for process in started:
        process.process.kill()
        process.process.wait()


@pytest.fixture
def swarm(start):
    """Starts a founder and the peers that join it."""

    def start_all(program: str, count: int, **options) -> list[Process]:
        founder = start(program, peers=count, **options)
        invite = founder.wait_for("invite")["invite"]
        return [founder] + [start(program, invite=invite, **options) for _ in range(count - 1)]

    return start_all


def kill(processes: list[Process]) -> None:
    """Kills all at once: of two, one alone may be a majority and go on without the other."""
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.code()


def agree(processes: list[Process], samples: int) -> list[dict]:
    """All processes end with the same parameters, and every sample was trained in every epoch."""
    results = [process.result() for process in processes]
    for result in results:
        assert result["outcome"] == "done", result
        assert (result["samples"], result["left_out"]) == (samples, 0), result
        assert result["digest"] == results[0]["digest"]
    for process in processes:
        assert process.code() == 0, process.say()
    return results
