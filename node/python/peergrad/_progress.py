"""What a user sees while a run goes on: one bar, in a terminal or a notebook."""

from __future__ import annotations

import math
import sys
import time
from typing import Any


class Progress:
    """A bar of steps. Without tqdm, or where nobody watches, one line every ten seconds."""

    LINE_SECONDS = 10.0

    def __init__(self, name: str, *, shown: bool | None) -> None:
        self._name = name
        self._is_shown = sys.stderr is not None if shown is None else shown
        self._bar: Any = None
        self._has_bar = self._is_shown and (shown is True or _is_watched())
        self._said_at = -math.inf
        self._last: tuple[int, int] = (0, 0)

    def say(self, text: str) -> None:
        """Shows a line that a user has to see."""
        if not self._is_shown:
            return
        try:
            if self._bar is not None:
                self._bar.write(text, file=sys.stderr)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:
            # Nobody reads it any more, which is no reason to stop training.
            self._is_shown = False

    def step(self, done: int, expected: int, loss: float, epoch: int) -> None:
        """So many of the expected steps are done; ``loss`` is the mean of the last one."""
        self._last = (done, expected)
        if not self._is_shown:
            return
        if self._has_bar and self._bar is None:
            self._bar = _bar(self._name, expected)
            self._has_bar = self._bar is not None
        if self._bar is not None:
            self._bar.total = expected
            self._bar.set_postfix(loss=f"{loss:.4g}", epoch=epoch + 1, refresh=False)
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._said_at >= self.LINE_SECONDS:
            self._said_at = time.monotonic()
            self.say(f"{self._name}: step {done} of {expected}, epoch {epoch + 1}, loss {loss:.4g}")

    def close(self, text: str | None) -> None:
        """The run is over at this peer."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
            self._bar = None
        if text is not None:
            self.say(text)


def _is_watched() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _bar(name: str, expected: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=expected, desc=name, unit="step", dynamic_ncols=True)
