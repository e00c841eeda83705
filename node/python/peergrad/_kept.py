"""The state that a user keeps at this peer, saved beside the peer's checkpoints."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger("peergrad")

_KEPT = 4
"""How many files of a run are kept: as many as a peer may keep checkpoints."""


class Stateful(Protocol):
    """What has a state: the optimizers, schedulers and scalers of PyTorch, for example."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Kept:
    """A value that :meth:`Swarm.keep` saves, for what has no ``state_dict`` of its own::

        inner = peergrad.Kept(optax.adamw(1e-3).init(params))
        swarm.keep(inner=inner)
        for step in swarm:
            updates, inner.value = optimizer.update(gradients, inner.value, params)
    """

    def __init__(self, value: Any) -> None:
        self.value: Any = value
        """The value: anything that can be pickled."""

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.value = state_dict["value"]


class States:
    """The objects whose state is saved, and their files::

        kept/<run>/000000001200.pickle          their state after 1,200 steps
    """

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "kept"
        self._objects: dict[str, Stateful] = {}
        self._saved: int | None = None
        self._reached: int | None = None

    def add(self, objects: Mapping[str, Stateful]) -> None:
        for name, found in objects.items():
            if not (callable(getattr(found, "state_dict", None)) and callable(getattr(found, "load_state_dict", None))):
                raise TypeError(
                    f"`{name}` is a {type(found).__name__}, without `state_dict` and `load_state_dict`: wrap a value in `peergrad.Kept`"
                )
            if name in self._objects:
                raise ValueError(f"`{name}` is kept already: give it another name")
        self._objects.update(objects)

    def step_begins(self, run: str, steps: int, *, is_checkpoint: bool) -> None:
        """A step begins, with so many steps behind it. The same one may begin again: by then the user has changed the state."""
        if self._reached == steps or not self._objects:
            return
        if self._reached is None:
            self._load(run, steps)
        self._reached = steps
        if is_checkpoint:
            self.save(run, steps)

    def save(self, run: str, steps: int) -> None:
        """Saves the state after so many steps. A failure is logged, and training goes on."""
        if not self._objects or self._saved == steps:
            return
        file = self._file(run, steps)
        draft = file.with_suffix(".draft")
        try:
            state = {name: held.state_dict() for name, held in self._objects.items()}
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with draft.open("wb") as out:
                pickle.dump(state, out, pickle.HIGHEST_PROTOCOL)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
            self._saved = steps
            self._remove_old(run)
        except Exception as error:  # What an object of the user raises is not known here.
            draft.unlink(missing_ok=True)
            logger.warning("cannot save the state of %s after step %d: %s", ", ".join(self._objects), steps, error)

    def remove(self) -> None:
        """The run is complete: nobody goes on from here."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _load(self, run: str, steps: int) -> None:
        """Gives the objects the newest state of this run that is not from beyond this step."""
        files = self._files(run)
        for file in files:
            if _steps(file) > steps:
                file.unlink(missing_ok=True)  # The run has gone back behind it.
        found = [file for file in files if _steps(file) <= steps]
        if not found:
            return
        try:
            with found[-1].open("rb") as source:
                state = pickle.load(source)
        except Exception as error:  # A damaged file can raise anything.
            logger.warning("cannot read %s (%s): the state of %s restarts", found[-1], error, ", ".join(self._objects))
            return
        if state.keys() != self._objects.keys():
            raise ValueError(f"the state that was saved has {', '.join(state)}, but the swarm keeps {', '.join(self._objects)}: keep the same")
        for name, held in self._objects.items():
            held.load_state_dict(state[name])
        if _steps(found[-1]) == steps:
            logger.info("the state of %s is that of step %d", ", ".join(state), steps)
        else:
            logger.warning("the state of %s is that of step %d, but the run goes on from step %d", ", ".join(state), _steps(found[-1]), steps)

    def _remove_old(self, run: str) -> None:
        for file in self._files(run)[:-_KEPT]:
            file.unlink(missing_ok=True)
        for folder in self._folder.iterdir():
            if folder.name != run:
                shutil.rmtree(folder, ignore_errors=True)

    def _files(self, run: str) -> list[Path]:
        """The files of a run, the newest last."""
        return sorted(file for file in (self._folder / run).glob("*.pickle") if file.stem.isdigit())

    def _file(self, run: str, steps: int) -> Path:
        return self._folder / run / f"{steps:012}.pickle"


def _steps(file: Path) -> int:
    return int(file.stem)
