"""One peer of a run, and the steps that it computes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from peergrad._native import NativeStep, NativeSwarm, Refused
from peergrad._kept import Stateful, States
from peergrad._progress import Progress
from peergrad._result import Failed, Left, Result
from peergrad._settings import check_numbers, run_text

Kind = Literal["sync", "backup-workers", "local", "diloco", "ds-sync", "ssp", "async"]
"""How peers train together; docs/training-modes.md explains each."""

logger = logging.getLogger("peergrad")

_POLL_SECONDS = 0.05
"""How long a wait lasts before Python may handle signals."""
_FIRST_STEP_SECONDS = 600.0
"""How long the first step of a peer may take, in which frameworks compile."""
_BUSY_SECONDS_MAX = 3600.0
_COMPLETION_SECONDS = 0.5
"""How long a peer that leaves waits for the others to complete the step that it has finished."""
_INTERRUPTED_SECONDS = 1.5
"""How long a peer tries to hand over after Ctrl-C."""

_alive: weakref.WeakSet[_Peer[Any]] = weakref.WeakSet()


class Step:
    """One step of the run, for this peer's samples. Finish it before you ask for the next one.

    If the members go on without this peer, or a member is lost, the same step may come again with other samples.
    """

    def __init__(self, swarm: _Peer[Any], native: NativeStep) -> None:
        self._swarm = swarm
        self._native: NativeStep | None = native
        self.number: int = native.number
        """The number of the step, from 0."""
        self.epoch: int = native.epoch
        """The epoch that its samples belong to, from 0."""
        self.rate: float = native.rate
        """The learning rate of the run's schedule."""
        self.local_steps: int = native.local_steps
        """How many local steps the schedule counts for it: 1 unless the kind is ``local`` or ``diloco``."""
        self.rank: int = native.rank
        """This peer's number among the members, from 0."""
        self.members: int = native.members
        """The number of members."""
        self.seed: int = native.seed
        """A seed for what you draw at random, such as dropout: another one in each step and at each peer."""
        self.wants_parameters: bool = native.wants_parameters
        """Whether :meth:`finish` takes parameters (``local``, ``diloco``) and not gradients."""
        self._samples: NDArray[np.uint32] = np.frombuffer(native.samples(), dtype=np.uint32)

    @property
    def samples(self) -> Any:
        """(samples of this peer), uint32: the numbers of the samples to compute. Each is dealt once an epoch, over all peers."""
        return self._samples

    @property
    def is_wanted(self) -> bool:
        """Whether the members still wait for this step. If not, what :meth:`finish` gives back counts for nothing."""
        return self._open().is_wanted

    def parameters(self, into: Mapping[str, Any] | Sequence[Any] | None = None) -> dict[str, NDArray[np.float32]]:
        """Copies the parameters at which the step starts.

        ``into``: arrays of float32 to overwrite, by name or in the order of ``shapes``, or one flat array in a list; new ones by
        default, which are returned by name.
        """
        if into is None:
            arrays = self._swarm._new_arrays()
            self._open().parameters(self._swarm._ordered(arrays))
            return arrays
        self._open().parameters(self._swarm._ordered(into))
        return {}

    def finish(self, vectors: Mapping[str, Any] | Sequence[Any], loss: float | None = None) -> bool:
        """Gives the result of the step back: arrays of float32, by name or in the order of ``shapes``, or one flat array in a list.

        - ``sync`` and most kinds: the gradient, *summed* over :attr:`samples` (not the mean).
        - ``local`` and ``diloco``: the parameters after your own local steps.

        ``loss``: the summed loss of the samples, for reports; ``None`` if it is not known.

        Returns whether the members still waited for it. The arrays may change as soon as this returns.

        Raises ``ValueError`` for a wrong size or an element that is not finite, ``TypeError`` for another type. The step is then
        still open: call :meth:`finish` again, or :meth:`skip`.
        """
        native = self._open()
        total = 0.0 if loss is None else float(loss)
        if not math.isfinite(total):
            raise ValueError(
                f"the loss of step {self.number} is {total}: lower the rate or check the samples, "
                "or call `step.skip()`, which leaves these samples out"
            )
        is_wanted = native.finish(self._swarm._ordered(vectors), total)
        self._close()
        return is_wanted

    def skip(self) -> None:
        """Leaves these samples out: they are not trained in this epoch, and ``result.left_out`` counts them."""
        self._open().skip()
        self._close()

    def _open(self) -> NativeStep:
        self._swarm._check()
        if self._native is None:
            raise RuntimeError(f"step {self.number} is finished already: use the step that the swarm gave last")
        return self._native

    def _close(self) -> None:
        self._native = None
        self._swarm._close_step()


StepT = TypeVar("StepT", bound=Step)


class _Peer(Generic[StepT]):
    """What all faces of a peer have in common."""

    def __init__(
        self,
        name: str,
        shapes: Mapping[str, Sequence[int]],
        *,
        samples: int,
        initial: Mapping[str, Any] | Sequence[Any] | None = None,
        kind: Kind | None = None,
        run: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        invite: str | None = None,
        peers: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        resume: bool = False,
        capacity: int | None = None,
        threads: int | None = None,
        listen: str | None = None,
        port: int | None = None,
        external: Sequence[str] = (),
        upnp: bool = False,
        mdns: bool | None = None,
        progress: bool | None = None,
    ) -> None:
        self.name = name
        """What all peers of the run call the task."""
        self.shapes: dict[str, tuple[int, ...]] = {key: tuple(shape) for key, shape in shapes.items()}
        """The shape of each tensor, in the order of the flat vector."""
        self.result: Result | None = None
        """How the run ended at this peer; ``None`` until then."""
        self.loss: float = math.nan
        """The mean loss of the last committed step."""
        # The step that the user has, or is about to get. The object that the user holds refers to this one, and not the other way round, so
        # that a swarm without a user is dropped at once.
        self._open: NativeStep | None = None
        self._is_begun = False
        self._has_begun_one = False
        self._steps_behind: int | None = None
        self._has_finished_one = False
        self._kind = kind
        self._has_left = False
        self._progress = Progress(name, shown=progress)
        invite = invite or os.environ.get("PEERGRAD_INVITE") or None
        check_numbers(samples=samples, port=port, capacity=capacity, peers=peers)
        task = {
            "name": name,
            "tensors": [(key, list(shape)) for key, shape in self.shapes.items()],
            "samples": samples,
            "run_file": run_text(run, kind=kind, peers=peers),
        }
        network = {"listen": listen, "port": port, "external": list(external), "upnp": upnp, "mdns": mdns}
        entry = {
            "invite": invite,
            "directory": None if directory is None else os.fspath(directory),
            "resume": resume,
            "capacity": capacity,
            "threads": threads,
            "network": network,
        }
        first = [] if initial is None else self._ordered(initial)
        self._native = NativeSwarm(task, entry, first)
        _alive.add(self)
        started = self._native.started()
        self.peer: str = started["peer"]
        """This peer's id."""
        self.directory = Path(started["directory"])
        """Where this peer keeps its files."""
        self._states = States(self.directory)
        if started["replaced"] is not None:
            logger.warning("this new run replaces the unfinished run %s in %s", started["replaced"], self.directory)
        if started["founded"] is not None:
            logger.info("founded run %s", started["founded"])
            self._progress.say(f"{name}: others join with PEERGRAD_INVITE={self.invite}")

    @property
    def invite(self) -> str:
        """An invite to the run, with which others join it. Waits until this peer knows its run."""
        return self._known(self._native.invite)

    @functools.cached_property
    def _run(self) -> str:
        return self._known(self._native.run)

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

    def keep(self, **objects: Stateful) -> None:
        """Saves the state of these objects with each checkpoint of the run, and gives it back when the run is resumed.

        ::

            swarm.keep(optimizer=inner, scheduler=scheduler)

        They are what only this peer has: an optimizer of your own, a scaler, a random generator. Each has ``state_dict`` and
        ``load_state_dict``; :class:`peergrad.Kept` holds any other value. Call this before the first step, which finds them as they
        were. If the run goes on from another step than theirs, a warning says so.
        """
        if self._has_begun_one:
            raise RuntimeError("the first step has begun already: call `keep` before it")
        self._states.add(objects)

    def end_run(self) -> None:
        """Ends the run at all peers after the next step or two, before its epochs are over: for example, because the model does not get
        better any more. The loops of all peers end as usual then, with the same parameters and ``result.outcome == "done"``.

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

    def __iter__(self) -> Iterator[StepT]:
        return self

    def __next__(self) -> StepT:
        if self._open is not None and self._is_begun:
            raise RuntimeError(
                f"step {self._open.number} is not finished: call `step.finish(...)`, or `step.skip()`, which leaves its samples out"
            )
        while self.result is None:
            # It is kept at once: whatever is raised below, the step can still be taken, or given up.
            self._open = self._open or self._native.wait(_POLL_SECONDS)
            self._handle_events()
            if self._open is not None:
                self._check_kind(self._open)
                if not self._has_finished_one:
                    self._native.busy(_FIRST_STEP_SECONDS)
                self._has_begun_one = True
                self._states.step_begins(self._run, self._open.number, is_checkpoint=self._open.is_checkpoint)
                step = self._begin(self._open)
                self._is_begun = True
                return step
        self._ended()
        raise StopIteration

    def _check_kind(self, native: NativeStep) -> None:
        if self._kind is not None and native.wants_parameters != (self._kind in ("local", "diloco")):
            found = "`local` or `diloco`" if native.wants_parameters else "a kind with gradients"
            raise ValueError(f"the founder's run is {found}, but this peer was made with kind={self._kind!r}: use the founder's kind")

    def _begin(self, native: NativeStep) -> StepT:
        raise NotImplementedError

    def _ended(self) -> None:
        """The run is over: puts the last parameters in place, or says what went wrong."""
        result = self.result
        assert result is not None
        if result.outcome == "refused":
            raise Refused(result.reason)
        if result.outcome == "failed":
            raise Failed(result.reason)

    def _ordered(self, arrays: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """The arrays in the order of the tensors, if their shapes are right.

        One of a single number gets a dimension, since the native half expects one.
        """
        if not isinstance(arrays, Mapping):
            if len(arrays) == len(self.shapes) > 1:
                for (name, shape), array in zip(self.shapes.items(), arrays, strict=True):
                    found = getattr(array, "shape", shape)
                    if tuple(found) != shape:
                        raise ValueError(f"the array of `{name}` has the shape {tuple(found)}, but the model has {shape} there")
            return [array.reshape(1) if getattr(array, "ndim", 1) == 0 else array for array in arrays]
        if arrays.keys() != self.shapes.keys():
            missing, unknown = self.shapes.keys() - arrays.keys(), arrays.keys() - self.shapes.keys()
            told = [f"{', '.join(sorted(names))} {word}" for names, word in ((missing, "missing"), (unknown, "unknown")) if names]
            raise ValueError(f"one array for each tensor of the model is needed: {'; '.join(told)}")
        ordered = [arrays[name] for name in self.shapes]
        if len(ordered) == 1 and tuple(np.shape(ordered[0])) != (shape := next(iter(self.shapes.values()))):
            raise ValueError(f"the array of `{next(iter(arrays))}` has the shape {np.shape(ordered[0])}, but the model has {shape} there")
        return self._ordered(ordered)

    def _new_arrays(self) -> dict[str, NDArray[np.float32]]:
        return {name: np.empty(shape, np.float32) for name, shape in self.shapes.items()}

    def _check(self) -> None:
        if self._has_left:
            raise Left("this peer has left the swarm: make a new one to take part again")

    def _close_step(self) -> None:
        if self._open is not None:
            self._steps_behind = self._open.number + 1
        self._open, self._is_begun = None, False
        if not self._has_finished_one:
            self._has_finished_one = True
            self._native.busy(0)

    def _handle_events(self) -> None:
        """Passes on what has happened, from the user's thread."""
        for event in self._native.events():
            match event:
                case ("step", (number, epoch, loss, _, left_out, expected)):
                    self.loss = loss
                    if left_out:
                        logger.warning("step %d left %d samples out", number, left_out)
                    self._progress.step(number + 1, expected, loss, epoch)
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
                    self._finish_with(Result.of(outcome))

    def _finish_with(self, result: Result) -> None:
        self.result = result
        self._native.stop()
        if result.outcome == "done":
            self._states.remove()
        logger.info("ended: %s", result)
        text = f"{self.name}: {result.outcome} after {result.steps} steps"
        if result.reason is not None and result.outcome != "left":
            text += f": {result.reason}"
        self._progress.close(text)

    def _end(self, seconds: float | None) -> None:
        """Ends this peer's part, for at most so many seconds."""
        if self.result is not None:
            self._has_left = True
            return
        is_between_steps = self._open is None
        if self._open is not None:
            self._open.give_up()
            self._close_step()
        else:
            # The step that was finished last is complete when the next one begins.
            offered = self._native.wait(_COMPLETION_SECONDS) if self._steps_behind is not None else None
            self._native.leave()
            if offered is not None:
                offered.give_up()
        self._has_left = True
        until = math.inf if seconds is None else time.monotonic() + seconds
        try:
            while self.result is None and time.monotonic() < until:
                if (offered := self._native.wait(_POLL_SECONDS)) is not None:
                    offered.give_up()
                self._handle_events()
            if is_between_steps and self.result is not None and self.result.steps == self._steps_behind:
                # A peer that stops in order saves a checkpoint, too.
                self._states.save(self._run, self.result.steps)
        finally:
            if self.result is None:
                self._finish_with(Result.of({**_STOPPED, "outcome": "left", "reason": "stopped before it had handed over"}))


class Swarm(_Peer[Step]):
    """One peer of a run: a context manager, and an iterator of the steps that this peer computes.

    ::

        with peergrad.Swarm("line", {"w": (3,)}, samples=1000, run={"epochs": 5, "batch": 50}) as swarm:
            for step in swarm:
                w = step.parameters()["w"]
                gradient, loss = gradient_of(w, step.samples)
                step.finish({"w": gradient}, loss)

    - ``name``: what all peers of the run call the task. Peers with another name, other shapes or another number of samples are
      refused.
    - ``shapes``: the shape of each tensor.
    - ``samples``: the number of training samples. The swarm deals the numbers from 0 to ``samples - 1``.
    - ``initial``: the parameters to start from, by name or in the order of ``shapes``; zeros by default. Those of the founder count.
    - ``kind``: how peers train together: see :data:`Kind`. The default is that of ``run``, or else ``sync``.
    - ``run``: the founder's settings, with the keys of a run.toml: a path, a text, or a mapping such as
      ``{"epochs": 5, "batch": 256, "optimizer": {"rule": "adam", "rate": 0.001}}``. Peers that join get the founder's.
    - ``invite``: the run to join; by default the environment variable ``PEERGRAD_INVITE``. Without one, this peer founds a run.
    - ``peers``: how many peers must be there before a new run begins, this one included. The default is 2.
    - ``directory``: where this peer keeps its identity, its checkpoints and its model. The default is one in the user's home.
    - ``resume``: whether to continue the run that a peer of this directory was in when it stopped. Without one, this peer joins or founds
      a run as usual.
    - ``capacity``: how much of the parameters this peer owns, 0 to 16; by default the members choose.
    - ``threads``: how many threads the peer's own arithmetic uses; by default the cores of this machine, divided by its peers.
    - ``listen``, ``port``, ``external``, ``upnp``, ``mdns``: how others reach this peer; docs/router.md explains them.
    - ``progress``: whether to show a bar. By default it is shown in terminals and notebooks, and lines elsewhere.

    Raises ``ValueError`` for settings that are out of bounds, and ``OSError`` if the directory or a port cannot be used. The
    iteration raises :class:`Refused` if the members do not admit this peer, and :class:`Failed` if the run cannot go on here.
    """

    def _begin(self, native: NativeStep) -> Step:
        return Step(self, native)

    def last_parameters(self) -> dict[str, NDArray[np.float32]]:
        """The parameters at the end of the run, by name; empty if training did not begin."""
        arrays = self._new_arrays()
        return arrays if self._native.last_parameters(self._ordered(arrays)) else {}


SelfT = TypeVar("SelfT", bound=_Peer[Any])

_STOPPED: dict[str, Any] = {"model": None, "not_saved": None, "has_handed_over": False}


def _stop_all() -> None:
    """The interpreter ends: no peer may wait for its user any more."""
    for peer in list(_alive):
        if peer.result is None:
            if peer._open is not None:
                peer._open.give_up()
            peer._native.stop()


atexit.register(_stop_all)
