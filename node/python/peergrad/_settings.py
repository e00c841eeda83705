"""From keyword arguments to the text of a run file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_text(run: str | os.PathLike[str] | Mapping[str, Any] | None) -> str:
    """The text of a run file: of a path, of a text that has a line with ``=``, or of a mapping with the same keys."""
    if run is None:
        return ""
    if isinstance(run, Mapping):
        return toml_text(run)
    if isinstance(run, str) and ("=" in run or "\n" in run):
        return run
    try:
        return Path(run).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the run file {os.fspath(run)}: {error.strerror}") from None


def toml_text(table: Mapping[str, Any], prefix: str = "") -> str:
    """A mapping as TOML: values first, then sections."""
    lines = [f"{key} = {_value(key, value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += [f"[{prefix}{key}]", toml_text(value, f"{prefix}{key}.")]
    return "\n".join(lines)


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_value(name, item)}" for name, item in value.items()) + "}"
    raise TypeError(f"the setting `{key}` is a {type(value).__name__}: give a number, a text, a list or a mapping")
