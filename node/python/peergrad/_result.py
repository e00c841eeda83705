"""How a run ended at a peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


class Failed(Exception):
    """The run cannot go on at this peer. The text says why, and what to do."""


class Left(Exception):
    """The swarm is used after this peer has left it."""


@dataclass(frozen=True)
class Result:
    """How a run ended at this peer."""

    outcome: Literal["done", "left", "gave_up", "refused", "failed"]
    """``done``: the run is complete. ``left``: this peer has left it. ``gave_up``: it has left within a step, which the others have
    repeated. ``refused``: the members do not admit it. ``failed``: something else, which :attr:`reason` explains."""
    reason: str | None
    """Why it is not ``done``, as a text."""
    run: str | None
    """The id of the run."""
    steps: int
    """The number of steps behind the parameters; with tables, of this worker's clocks."""
    samples: int
    """The samples that these steps have trained, over all peers and epochs."""
    left_out: int
    """Samples that were left out: their gradient was not finite, came too late, or was skipped."""
    own_samples: int
    """The samples that this peer has computed."""
    digest: str | None
    """The digest of the parameters: the same at all peers. ``None`` if training did not begin."""
    model: Path | None
    """The saved model, in the safetensors format. ``None`` if there is none."""
    has_handed_over: bool
    """Whether others own all that this peer owned."""

    @classmethod
    def of(cls, outcome: Mapping[str, Any]) -> Result:
        """The result in the native form of an outcome."""
        model = outcome["model"]
        return cls(
            outcome=outcome["outcome"],
            reason=outcome["reason"] or outcome["not_saved"],
            run=outcome.get("run"),
            steps=outcome.get("steps", 0),
            samples=outcome.get("samples", 0),
            left_out=outcome.get("left_out", 0),
            own_samples=outcome.get("own_samples", 0),
            digest=outcome.get("digest"),
            model=None if model is None else Path(model),
            has_handed_over=outcome["has_handed_over"],
        )
