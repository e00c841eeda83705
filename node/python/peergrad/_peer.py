"""What all kinds of peers have in common: their events, their end, and the batches that they compute."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import time
import tomllib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from peergrad._native import NativeClock, NativePeer, NativeStep, Refused
from peergrad._progress import Progress
from peergrad._result import Failed, Left, Result
from peergrad._settings import Options

logger = logging.getLogger("peergrad")

_POLL_SECONDS = 0.05
"""How long a wait lasts before Python may handle signals."""
_FIRST_STEP_SECONDS = 600.0
"""How long the first step of a peer may take, in which frameworks compile."""
_BUSY_SECONDS_MAX = 3600.0
_INTERRUPTED_SECONDS = 1.5
"""How long a peer tries to hand over after Ctrl-C."""

_alive: weakref.WeakSet[Peer[Any, Any]] = weakref.WeakSet()

NativeT = TypeVar("NativeT", NativeStep, NativeClock)


class Batch(Generic[NativeT]):
    """What a step and a clock have in common: samples that this peer computes."""

    _kind: str
    """What an error calls it."""

    def __init__(self, swarm: Peer[Any, NativeT], native: NativeT) -> None:
        self._swarm: Peer[Any, NativeT] = swarm
        self._native: NativeT | None = native
        self.number: int = native.number
        """Its number, from 0: a step's in the run, a clock's at this worker."""
        self.epoch: int = native.epoch
        """The epoch that its samples belong to, from 0."""
        self.rate: float = native.rate
        """The learning rate of the run's schedule."""
        self.rank: int = native.rank
        """This peer's number among the members, from 0."""
        self.members: int = native.members
        """The number of members."""
        self.seed: int = native.seed
        """A seed for what you draw at random, such as dropout: another one in each batch and at each peer."""
        self._samples: NDArray[np.uint32] = np.frombuffer(native.samples(), dtype=np.uint32)

    @property
    def samples(self) -> Any:
        """(samples of this peer), uint32: the numbers of the samples to compute. Each is dealt once an epoch, over all peers."""
        return self._samples

    @property
    def is_wanted(self) -> bool:
        """Whether the members still wait for it. If not, what you give back counts for nothing."""
        return self._open().is_wanted

    def skip(self) -> None:
        """Leaves these samples out: they are not trained in this epoch, and ``result.left_out`` counts them."""
        self._open().skip()
        self._close()

    def _loss(self, loss: float | None) -> float:
        """A summed loss for the native half, if it is finite."""
        total = 0.0 if loss is None else float(loss)
        if not math.isfinite(total):
            raise ValueError(
                f"the loss of {self._kind} {self.number} is {total}: lower the rate or check the samples, "
                f"or call `{self._kind}.skip()`, which leaves these samples out"
            )
        return total

    def _open(self) -> NativeT:
        self._swarm._check()
        if self._native is None:
            raise RuntimeError(f"{self._kind} {self.number} is finished already: use the {self._kind} that the swarm gave last")
        return self._native

    def _close(self) -> None:
        self._native = None
        self._swarm._close_batch()


BatchT = TypeVar("BatchT", bound=Batch[Any])


class Peer(Generic[BatchT, NativeT]):
    """What all kinds of peers have in common."""

    def __init__(self, name: str, native: NativePeer, options: Options) -> None:
        self.name = name
        """What all peers of the run call the task."""
        self.result: Result | None = None
        """How the run ended at this peer; ``None`` until then."""
        self.loss: float = math.nan
        """The mean loss of the last committed step, or of this worker's last clock."""
        # The batch that the user has, or is about to get. The object that the user holds refers to this one, and not the other way round,
        # so that a swarm without a user is dropped at once.
        self._open: NativeT | None = None
        self._is_begun = False
        self._has_finished_one = False
        self._has_left = False
        self._leaves_in_order = False
        self._progress = Progress(name, shown=options.get("progress"))
        self._native = native
        _alive.add(self)
        started = self._native.started()
        self.peer: str = started["peer"]
        """This peer's id."""
        self.directory = Path(started["directory"])
        """Where this peer keeps its files."""
        if started["replaced"] is not None:
            logger.warning("this new run replaces the unfinished run %s in %s", started["replaced"], self.directory)
        if started["founded"] is not None:
            if options.get("resume"):
                logger.warning("no peer in %s has stopped within a run, so there is nothing to resume: this is a new run", self.directory)
            logger.info("founded run %s", started["founded"])
            self._progress.say(f"{name}: others join with PEERGRAD_INVITE={self.invite}")

    @property
    def invite(self) -> str:
        """An invite to the run, with which others join it. Waits until this peer knows its run."""
        return self._known(self._native.invite)

    @property
    def settings(self) -> dict[str, Any]:
        """The keys under ``settings`` in the founder's run, which are yours to choose: the same at all peers. Waits until this peer knows
        its run."""
        return tomllib.loads(self._known(self._native.settings))

    def _known(self, ask: Callable[[], str | None]) -> str:
        """What the peer knows once it knows its run."""
        while (answer := ask()) is None:
            self._check()
            self._handle_events()
            if self.result is not None:
                raise Failed(f"the peer has ended before it knew its run: {self.result.reason}")
            time.sleep(_POLL_SECONDS)
        return answer

    def status(self) -> dict[str, Any]:
        """The state of this peer, as ``peer status --json`` prints it: docs/status.md explains every field. Empty after the end."""
        text = self._native.status()
        return {} if text is None else dict(json.loads(text))

    @contextlib.contextmanager
    def busy(self, seconds: float) -> Iterator[None]:
        """Says that what you do inside the ``with`` may take so many seconds, at most an hour, and that the others wait for it.

        ::

            with swarm.busy(120):
                accuracy = evaluate(model)

        Otherwise they go on without a peer that takes ten seconds or ten usual steps for one, whichever is longer; the run's
        ``sync.patience_seconds`` is in place of the ten seconds. This peer's first step has ten minutes.
        """
        if not 0 < seconds <= _BUSY_SECONDS_MAX:
            raise ValueError(f"`seconds` is {seconds}: give at most {_BUSY_SECONDS_MAX:.0f}, and say it again if it takes longer")
        self._check()
        self._native.busy(seconds)
        try:
            yield
        finally:
            # The first step keeps its time.
            self._native.busy(0 if self._has_finished_one else _FIRST_STEP_SECONDS)

    def end_run(self) -> None:
        """Ends the run at all peers after the next step or two, before its epochs are over: for example, because the model does not get
        better any more. The loops of all peers end as usual then, with the same parameters and ``result.outcome == "done"``. With tables,
        the workers first compute the samples that they hold.

        Raises ``RuntimeError`` if this peer is not in the run at the moment: try again in the next step.
        """
        self._check()
        self._native.end_run()

    def leave(self) -> None:
        """Leaves the run: hands over what this peer owns, and waits for that. The others go on.

        They finish their step first, which may take as long as it takes them. Within a step of its own, the peer gives it up, and the
        others repeat it: finish it first if you can.
        """
        self._end(None)

    def __enter__(self: SelfT) -> SelfT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.result is None:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            self._end(_INTERRUPTED_SECONDS if interrupted else None)

    def __iter__(self) -> Iterator[BatchT]:
        return self

    def __next__(self) -> BatchT:
        if self._open is not None and self._is_begun:
            raise RuntimeError(self._unfinished(self._open.number))
        while self.result is None:
            # It is kept at once: whatever is raised below, the step can still be taken, or given up.
            self._open = self._open or self._wait(_POLL_SECONDS)
            self._handle_events()
            if self._open is not None:
                self._check_batch(self._open)
                if not self._has_finished_one:
                    self._native.busy(_FIRST_STEP_SECONDS)
                self._prepare(self._open)
                batch = self._begin(self._open)
                self._is_begun = True
                return batch
        self._ended()
        raise StopIteration

    def _wait(self, seconds: float) -> NativeT | None:
        """The next batch, if there is one within so many seconds."""
        raise NotImplementedError

    def _check_batch(self, native: NativeT) -> None:
        """Raises an exception if the batch is not what the user has asked for."""

    def _prepare(self, native: NativeT) -> None:
        """Does what comes before the user's part of a batch."""

    def _begin(self, native: NativeT) -> BatchT:
        """The batch as the user sees it."""
        raise NotImplementedError

    def _decline(self, native: NativeT) -> None:
        """Gives back a batch that has come while this peer leaves."""
        native.give_up()

    def _unfinished(self, number: int) -> str:
        """What to do about a batch that is still open."""
        raise NotImplementedError

    def _ended(self) -> None:
        """The run is over: puts the last parameters in place, or says what went wrong."""
        result = self.result
        assert result is not None
        if result.outcome == "refused":
            raise Refused(result.reason)
        if result.outcome == "failed":
            raise Failed(result.reason)

    def _check(self) -> None:
        if self._has_left:
            raise Left("this peer has left the swarm: make a new one to take part again")

    def _close_batch(self) -> None:
        self._open, self._is_begun = None, False
        if not self._has_finished_one:
            self._has_finished_one = True
            self._native.busy(0)

    def _handle_events(self) -> None:
        """Passes on what has happened, from the user's thread."""
        for event in self._native.events():
            match event:
                case ("step", (number, epoch, loss, samples, left_out, expected)):
                    self.loss = loss if samples else math.nan
                    if left_out:
                        logger.warning("step %d left %d samples out", number, left_out)
                    self._progress.step(number + 1, expected, self.loss, epoch)
                case ("info", text):
                    logger.info("%s", text)
                case ("warning", text):
                    logger.warning("%s", text)
                case ("notice", text):
                    logger.info("%s", text)
                case ("panicked", text):
                    self._finish_with(Result.of({**_STOPPED, "outcome": "failed", "reason": f"the peer has panicked: {text}"}))
                case ("ended", _):
                    outcome = self._native.outcome()
                    assert outcome is not None
                    if self._leaves_in_order and outcome["outcome"] == "gave_up":
                        # What it has given up is a step that came while it left.
                        outcome = {**outcome, "outcome": "left"}
                    self._finish_with(Result.of(outcome))

    def _finish_with(self, result: Result) -> None:
        self.result = result
        self._native.stop()
        logger.info("ended: %s", result)
        text = f"{self.name}: {result.outcome} after {result.steps} steps"
        if result.reason is not None and result.outcome != "left":
            text += f": {result.reason}"
        self._progress.close(text)

    def _leave(self) -> None:
        """Asks the peer to leave, between two batches."""
        self._native.leave()

    def _end(self, seconds: float | None) -> None:
        """Ends this peer's part, for at most so many seconds."""
        if self.result is not None:
            self._has_left = True
            return
        if self._open is not None:
            self._open.give_up()
            self._close_batch()
        else:
            self._leaves_in_order = True
            self._leave()
        self._has_left = True
        until = math.inf if seconds is None else time.monotonic() + seconds
        try:
            while self.result is None and time.monotonic() < until:
                if (offered := self._wait(_POLL_SECONDS)) is not None:
                    self._decline(offered)
                self._handle_events()
        finally:
            if self.result is None:
                self._finish_with(Result.of({**_STOPPED, "outcome": "left", "reason": "stopped before it had handed over"}))


SelfT = TypeVar("SelfT", bound=Peer[Any, Any])

_STOPPED: dict[str, Any] = {"model": None, "not_saved": None, "has_handed_over": False}


def _stop_all() -> None:
    """The interpreter ends: no peer may wait for its user any more."""
    for peer in list(_alive):
        if peer.result is None:
            if peer._open is not None:
                peer._open.give_up()
            peer._native.stop()


atexit.register(_stop_all)
