"""A peer whose user has tables: rows that all peers share, and read and add to at their own pace."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peergrad._native import NativeClock, NativeTables
from peergrad._peer import Batch, Peer
from peergrad._settings import Options, check_numbers, entry, task, toml_text

_RULE_KEYS = {"rule", "momentum", "nesterov", "weight_decay", "beta1", "beta2", "epsilon", "l1", "l2", "beta"}
_ROWS_MAX = 2**40
_RULES = ("sum", "sgd", "momentum", "adam", "adamw", "adagrad", "prox", "ftrl")
"""The rules of tables: "sum", and the optimizers."""
_READ_ROWS_MAX = 2**32 - 1
"""The most rows of a table that each peer reads at the end."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a run: ``rows`` rows of ``width`` numbers of float32. Its rows are spread over the peers, which own them."""

    rows: int
    """The number of its rows."""
    width: int
    """The numbers in a row."""
    rule: str | Mapping[str, Any] = "sum"
    """What the owners do with what is added. ``"sum"``: they add it to the row. An optimizer's name (``"sgd"``, ``"momentum"``,
    ``"adam"``, ``"adamw"``, ``"adagrad"``, ``"prox"``, ``"ftrl"``): it is a gradient, which they apply by that optimizer. A mapping
    sets its constants: ``{"rule": "adam", "beta1": 0.8}``, with the keys of a run.toml's ``[optimizer]``."""
    rate: float | None = None
    """The learning rate of an optimizer. By default it is that of the run's ``[optimizer]``, with its schedule."""
    initial: ArrayLike | None = None
    """What its rows start with: (rows, width), or a number or a row for all of them. Then each peer holds the whole table, and it is
    part of the saved model. By default all rows are zero, and take memory once they are added to."""
    read_at_end: bool = True
    """Whether each peer reads all of its rows at the end of the run. A table with ``initial`` is always read."""

    def _native(self, name: str) -> dict[str, Any]:
        """The table in the native form, if it is right."""
        rows_max = _READ_ROWS_MAX if self.read_at_end else _ROWS_MAX
        check_numbers({"rows": (self.rows, 1, rows_max), "width": (self.width, 1, 2**24)})
        keys = {"rule": self.rule} if isinstance(self.rule, str) else dict(self.rule) if isinstance(self.rule, Mapping) else {}
        if keys.get("rule") not in _RULES:
            raise ValueError(f"`rule` of table {name!r} is {self.rule!r}: give one of {', '.join(_RULES)}, or a mapping with the key `rule`")
        is_sum = keys["rule"] == "sum"
        if is_sum and len(keys) > 1:
            raise ValueError(f"`rule` of table {name!r} has constants, but \"sum\" has none")
        if unknown := sorted(keys.keys() - _RULE_KEYS):
            raise ValueError(f"`rule` of table {name!r} has the key `{unknown[0]}`: give the name of an optimizer and its constants only")
        if self.rate is not None:
            if is_sum:
                raise ValueError(f"table {name!r} has a `rate`, but the rule \"sum\" has none: name an optimizer, or multiply what you add")
            if not isinstance(self.rate, numbers.Real) or not 0 < self.rate < math.inf:
                raise ValueError(f"`rate` of table {name!r} is {self.rate!r}: give a positive number")
            keys["rate"] = self.rate
        return {
            "name": name,
            "rows": int(self.rows),
            "width": int(self.width),
            "optimizer": None if is_sum else toml_text(keys),
            "has_initial": self.initial is not None,
            "read_at_end": self.read_at_end,
        }

    def _values(self, name: str) -> NDArray[np.float32]:
        """(rows, width): what its rows start with."""
        values = np.asarray(self.initial, np.float32)
        try:
            return np.ascontiguousarray(np.broadcast_to(values, (self.rows, self.width)))
        except ValueError:
            shape = (self.rows, self.width)
            raise ValueError(f"`initial` of table {name!r} has the shape {values.shape}, but the table has {shape}") from None


class Clock(Batch[NativeClock]):
    """One clock of this worker: a batch of samples, and the tables. End it before you ask for the next one."""

    _swarm: Tables
    _kind = "clock"

    def get(self, table: str, rows: ArrayLike) -> NDArray[np.float32]:
        """Reads rows: for an array of row numbers of any shape, an array of that shape and (width), float32.

        What this peer has added to a table with the rule ``"sum"`` is in it. Under another rule, a row that was read in this clock
        already may be as it was then.

        Raises ``IndexError`` for a row that the table does not have, and ``TypeError`` if ``rows`` are not whole numbers.
        """
        native, numbers = self._open(), _row_numbers(rows)
        values = np.empty((*numbers.shape, self._swarm._table(table).width), np.float32)
        if numbers.size:
            native.get(table, numbers.reshape(-1), values.reshape(-1))
        return values

    def add(self, table: str, rows: ArrayLike, values: ArrayLike) -> None:
        """Adds to rows: ``values`` is float32 and has the shape of ``rows`` and (width). The values of a row that is named more than
        once are summed first.

        Raises ``IndexError`` for a row that the table does not have, ``ValueError`` for a wrong shape or a number that is not finite,
        ``TypeError`` for another type. Nothing was added then, and the clock is still open.
        """
        native, numbers, added = self._open(), _row_numbers(rows), np.asarray(values)
        if added.dtype != np.float32:
            raise TypeError(f"the values for table {table!r} are {added.dtype}: convert them, for example with `.astype(numpy.float32)`")
        expected = (*numbers.shape, self._swarm._table(table).width)
        if added.shape != expected:
            raise ValueError(f"the values for table {table!r} have the shape {added.shape}: for these rows it must be {expected}")
        if numbers.size:
            native.add(table, numbers.reshape(-1), np.ascontiguousarray(added).reshape(-1))

    def push(self) -> bool:
        """Waits until all that was added so far is safe: it survives the loss of any one peer. At the end of a clock everything is
        sent, but nobody waits for it.

        With ``atomic``, what was pushed no longer belongs to the rest of the clock: if this peer is lost before the end of the clock, it
        counts, and another worker computes the samples again.

        Returns false if the members have gone on without this peer: then what was added in this clock does not count.
        """
        return self._open().push()

    def end(self, loss: float | None = None) -> bool:
        """Ends the clock. ``loss``: the summed loss of its samples, for reports; ``None`` if it is not known.

        Returns whether the members still waited for it. If not, other workers get the samples.
        """
        native, total = self._open(), self._loss(loss)
        is_wanted = native.end(total)
        self._close()
        return is_wanted

    def skip(self) -> None:
        """Ends the clock and leaves its samples out: ``result.left_out`` counts them. What was added in it remains."""
        super().skip()


class Tables(Peer[Clock, NativeClock]):
    """One peer of a run with tables: a context manager, and an iterator of the clocks that this peer computes.

    ::

        tables = {"words": peergrad.Table(rows=10_000, width=64, rule="adagrad", rate=0.05, initial=first)}
        with peergrad.Tables("skipgram", tables, samples=len(corpus), run={"batch": 4096, "epochs": 3}) as swarm:
            for clock in swarm:
                vectors = clock.get("words", rows)
                clock.add("words", rows, gradient)
                clock.end(loss)
        vectors = swarm.last_table("words")

    - ``name``, ``tables``, ``samples``: the same at all peers. Others are refused. The values of ``initial`` may differ, and those of the
      founder count; but a table has ``initial`` at all peers or at none.
    - ``staleness``: reads in a clock include all that was added at least so many clocks before it: 0 waits for all other workers
      in each clock. By default no worker waits for another one.
    - ``atomic``, the same at all peers: if the peer of a clock is lost, all that the clock has added counts, or nothing of it. So each sample
      counts exactly once, unless as many peers are lost at once as rows have replicas. What is added travels twice or more then, and
      others see it one round trip later. With false, a lost peer's last clocks may count twice, or in part.
    - All other arguments are those of :class:`peergrad.Swarm`. In ``run``, ``batch`` is the number of samples of one clock.

    Raises ``ValueError`` for settings that are out of bounds, and ``OSError`` if the directory or a port cannot be used. The
    iteration raises :class:`peergrad.Refused` if the members do not admit this peer, and :class:`peergrad.Failed` if the run cannot
    go on here.
    """

    _native: NativeTables

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Table],
        *,
        samples: int,
        staleness: int | None = None,
        atomic: bool = True,
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(tables, Mapping) or not tables:
            raise ValueError("`tables` has no table: give a mapping from names to `peergrad.Table`")
        for key, table in tables.items():
            if not isinstance(key, str) or not key or not isinstance(table, Table):
                raise ValueError(f"`tables` has {key!r}: {table!r}: give a name and a `peergrad.Table`")
        if staleness is not None:
            check_numbers({"staleness": (staleness, 0, 2**32 - 1)})
        if not isinstance(atomic, bool):
            raise TypeError(f"`atomic` is {atomic!r}: give True or False")
        self.tables: dict[str, Table] = dict(tables)
        """The tables, by name."""
        self._last: dict[str, NDArray[np.float32]] = {}
        native = [table._native(key) for key, table in self.tables.items()]
        shapes = {key: (table.rows, table.width) for key, table in self._with_initial().items()}
        first = [table._values(key) for key, table in self._with_initial().items()]
        what = task(name, shapes, samples=samples, kind=None, options=options)
        super().__init__(name, NativeTables(what, entry(options), first, native, staleness, atomic), options)

    def last_table(self, name: str) -> NDArray[np.float32]:
        """(rows, width): a table at the end of the run. It is the same at all peers.

        Raises ``RuntimeError`` if this peer has not read it: if the run is not done here, or if ``read_at_end`` of the table is false.
        """
        table = self._table(name)
        if table.initial is not None:
            return self._last_parameters(name)
        whole = np.zeros((table.rows, table.width), np.float32)
        rows, values = self.last_rows(name)
        whole[rows] = values
        return whole

    def last_rows(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows of a table that are not zero at the end of the run: their numbers (n), ascending, and values (n, width).

        Raises as :meth:`last_table`.
        """
        table = self._table(name)
        if table.initial is not None:
            whole = self._last_parameters(name)
            rows = np.flatnonzero(whole.any(axis=1)).astype(np.int64)
            return rows, whole[rows]
        found = self._native.last_rows(name) if self._is_done() else None
        if found is None:
            raise self._not_read(name)
        return np.frombuffer(found[0], np.int64), np.frombuffer(found[1], np.float32).reshape(-1, table.width)

    def _last_parameters(self, name: str) -> NDArray[np.float32]:
        """(rows, width): a table that is part of the model."""
        if not self._last:
            arrays = {key: np.empty((table.rows, table.width), np.float32) for key, table in self._with_initial().items()}
            if not self._is_done() or not self._native.last_parameters(list(arrays.values())):
                raise self._not_read(name)
            self._last = arrays
        return self._last[name].copy()

    def _with_initial(self) -> dict[str, Table]:
        """The tables that do not start with zeros: the parameters of the run."""
        return {key: table for key, table in self.tables.items() if table.initial is not None}

    def _is_done(self) -> bool:
        return self.result is not None and self.result.outcome == "done"

    def _not_read(self, name: str) -> RuntimeError:
        if self.result is None:
            return RuntimeError("the run is not over here: use `clock.get` in the loop")
        if self._is_done():
            return RuntimeError(f"table {name!r} was not read at the end: set `read_at_end`, or use `clock.get` in the loop")
        return RuntimeError(f"this peer has not seen the end of the run ({self.result.outcome}): use `clock.get` in the loop")

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise ValueError(f"there is no table {name!r}: this run has {', '.join(map(repr, self.tables))}")
        return self.tables[name]

    def _wait(self, seconds: float) -> NativeClock | None:
        return self._native.wait(seconds)

    def _begin(self, native: NativeClock) -> Clock:
        return Clock(self, native)

    def _decline(self, native: NativeClock) -> None:
        native.decline()

    def _unfinished(self, number: int) -> str:
        return f"clock {number} is not ended: call `clock.end(...)`, or `clock.skip()`, which leaves its samples out"


def _row_numbers(rows: ArrayLike) -> NDArray[np.int64]:
    """Row numbers as the native half reads them."""
    array = np.asarray(rows)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"the row numbers are {array.dtype}: give whole numbers, for example with `.astype(numpy.int64)`")
    if array.dtype == np.uint64 and array.size and array.max() > _ROWS_MAX:
        raise IndexError(f"no table has a row {array.max()}")
    return np.ascontiguousarray(array, np.int64).reshape(array.shape)
