"""Rounds of a framework that owns the loop: every so many of its optimizer steps, the peers combine their parameters."""

from __future__ import annotations

from peergrad._kept import Stateful
from peergrad.torch import Step, Swarm


class Rounds:
    """Counts the optimizer steps of a framework, and exchanges parameters after every so many."""

    def __init__(self, swarm: Swarm, every: int) -> None:
        if every < 1:
            raise ValueError(f"`every` is {every}: give the number of optimizer steps of a round, at least 1")
        self._swarm = swarm
        self._every = every
        self._steps = 0
        self._round: Step | None = None

    def keep(self, **objects: Stateful | None) -> None:
        """Saves the state of what the framework has made: see :meth:`peergrad.torch.Swarm.keep`."""
        self._swarm.keep(**{name: found for name, found in objects.items() if found is not None})

    def begin(self) -> bool:
        """Waits for the next round, whose parameters are then in the model. Returns whether there is one."""
        self._round = next(self._swarm, None)
        if self._round is not None and not self._round.wants_parameters:
            raise ValueError('a framework with an optimizer of its own needs a run of the kind "local" or "diloco"')
        return self._round is not None

    def stepped(self, loss: float | None) -> bool:
        """The framework's optimizer has taken a step. Returns whether training goes on."""
        if self._round is None:
            return False
        self._steps += 1
        if self._steps % self._every:
            return True
        samples = len(self._round.samples)
        self._round.finish(None if loss is None else loss * samples)
        return self.begin()

    def end(self) -> None:
        """The framework has ended its loop: this peer leaves the run if that goes on."""
        self._round = None
        self._swarm.leave()
