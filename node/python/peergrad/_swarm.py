"""A peer whose user computes steps: gradients, or parameters after local steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from peergrad._native import NativeStep, NativeSwarm
from peergrad._kept import Stateful, States
from peergrad._peer import Batch, Peer
from peergrad._result import Result
from peergrad._settings import Options, entry, task

Kind = Literal["sync", "backup-workers", "local", "diloco", "ds-sync", "ssp", "async"]
"""How peers train together; docs/training-modes.md explains each."""

_COMPLETION_SECONDS = 0.5
"""How long a peer that leaves waits for the others to complete the step that it has finished."""


class Step(Batch[NativeStep]):
    """One step of the run, for this peer's samples. Finish it before you ask for the next one.

    If the members go on without this peer, or a member is lost, the same step may come again with other samples.
    """

    _swarm: StepPeer[Any]
    _kind = "step"

    def __init__(self, swarm: StepPeer[Any], native: NativeStep) -> None:
        super().__init__(swarm, native)
        self.local_steps: int = native.local_steps
        """How many local steps the schedule counts for it: 1 unless the kind is ``local`` or ``diloco``."""
        self.wants_parameters: bool = native.wants_parameters
        """Whether :meth:`finish` takes parameters (``local``, ``diloco``, ``ds-sync``) and not gradients."""

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
        - ``local``, ``diloco`` and ``ds-sync``: the parameters after your own local steps.

        ``loss``: the summed loss of the samples, for reports; ``None`` if it is not known.

        Returns whether the members still waited for it. The arrays may change as soon as this returns. A peer that has stopped
        meanwhile says so at the next step.

        Raises ``ValueError`` for a wrong size or an element that is not finite, ``TypeError`` for another type. The step is then
        still open: call :meth:`finish` again, or :meth:`skip`.
        """
        native = self._open()
        total = self._loss(loss)
        is_wanted = native.finish(self._swarm._ordered(vectors), total)
        self._close()
        return is_wanted


StepT = TypeVar("StepT", bound=Step)


class StepPeer(Peer[StepT, NativeStep]):
    """What all faces of a peer that computes steps have in common."""

    _native: NativeSwarm

    def __init__(
        self,
        name: str,
        shapes: Mapping[str, Sequence[int]],
        *,
        samples: int,
        initial: Mapping[str, Any] | Sequence[Any] | None = None,
        kind: Kind | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {key: tuple(shape) for key, shape in shapes.items()}
        """The shape of each tensor, in the order of the flat vector."""
        self._kind = kind
        first = [] if initial is None else self._ordered(initial)
        native = NativeSwarm(task(name, self.shapes, samples=samples, kind=kind, options=options), entry(options), first)
        super().__init__(name, native, options)
        self._states = States(self.directory)
        self._has_begun_one = False
        # The number of steps before the next one, unless a step was given up.
        self._steps_behind: int | None = None

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

    @functools.cached_property
    def _run(self) -> str:
        return self._known(self._native.run)

    def _prepare(self, native: NativeStep) -> None:
        self._has_begun_one = True
        self._states.step_begins(self._run, native.number, is_checkpoint=native.is_checkpoint)

    def _close_batch(self) -> None:
        if self._open is not None:
            self._steps_behind = self._open.number + 1
        super()._close_batch()

    def _leave(self) -> None:
        # The step that was finished last is complete when the next one begins.
        offered = self._wait(_COMPLETION_SECONDS) if self._steps_behind is not None else None
        super()._leave()
        if offered is not None:
            self._decline(offered)

    def _end(self, seconds: float | None) -> None:
        is_between_steps = self._open is None and self.result is None
        super()._end(seconds)
        if is_between_steps and self.result is not None and self.result.steps == self._steps_behind:
            # A peer that stops in order saves a checkpoint, too.
            self._states.save(self._run, self.result.steps)

    def _finish_with(self, result: Result) -> None:
        super()._finish_with(result)
        if result.outcome == "done":
            self._states.remove()

    def _wait(self, seconds: float) -> NativeStep | None:
        return self._native.wait(seconds)

    def _unfinished(self, number: int) -> str:
        return f"step {number} is not finished: call `step.finish(...)`, or `step.skip()`, which leaves its samples out"

    def _check_batch(self, native: NativeStep) -> None:
        if self._kind is not None and native.wants_parameters != (self._kind in ("local", "diloco", "ds-sync")):
            found = "`local`, `diloco` or `ds-sync`" if native.wants_parameters else "a kind with gradients"
            raise ValueError(f"the founder's run is {found}, but this peer was made with kind={self._kind!r}: use the founder's kind")

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


class Swarm(StepPeer[Step]):
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
    - ``flops_per_sample``: floating-point operations of the gradient of one sample, from which :meth:`status` has those of a second.
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
