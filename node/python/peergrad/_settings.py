"""From keyword arguments to what the native half takes, with the text of a run file."""

from __future__ import annotations

import json
import numbers
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

Run = str | os.PathLike[str] | Mapping[str, Any] | None
"""A run file: its path, its text, or a mapping with the same keys."""


class Options(TypedDict, total=False):
    """The arguments that all kinds of peers have: :class:`peergrad.Swarm` explains them."""

    run: Run
    invite: str | None
    peers: int | None
    directory: str | os.PathLike[str] | None
    resume: bool
    capacity: int | None
    threads: int | None
    listen: str | None
    port: int | None
    external: Sequence[str]
    upnp: bool
    mdns: bool | None
    progress: bool | None
    flops_per_sample: int | None


def entry(options: Options) -> dict[str, Any]:
    """Which run a peer is in, and how others reach it, in the native form.

    Raises ``TypeError`` for an unknown argument, and ``ValueError`` for one that is out of bounds.
    """
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise TypeError(f"unknown argument {unknown[0]!r}")
    bounds = {"port": (0, 65535), "capacity": (0, 16), "peers": (1, 1024)}
    given = {key: value for key, value in options.items() if key in bounds and value is not None}
    check_numbers({key: (value, *bounds[key]) for key, value in given.items()})
    directory = options.get("directory")
    network = {key: options.get(key) for key in ("listen", "port", "mdns")}
    return {
        "invite": options.get("invite") or os.environ.get("PEERGRAD_INVITE") or None,
        "directory": None if directory is None else os.fspath(directory),
        "resume": options.get("resume", False),
        "capacity": options.get("capacity"),
        "threads": options.get("threads"),
        "network": {**network, "external": list(options.get("external", ())), "upnp": options.get("upnp", False)},
    }


def task(name: str, shapes: Mapping[str, Sequence[int]], *, samples: int, kind: str | None, options: Options) -> dict[str, Any]:
    """What a peer trains, in the native form.

    Raises ``ValueError`` if a number is out of bounds, or the run file cannot be read.
    """
    check_numbers({"samples": (samples, 1, 2**32 - 1)})
    tensors = [(key, list(shape)) for key, shape in shapes.items()]
    run_file = run_text(options.get("run"), kind=kind, peers=options.get("peers"))
    flops = options.get("flops_per_sample")
    if flops is not None:
        check_numbers({"flops_per_sample": (flops, 1, 2**63 - 1)})
    return {"name": name, "tensors": tensors, "samples": samples, "flops_per_sample": flops, "run_file": run_file}


def run_text(run: Run, *, kind: str | None, peers: int | None) -> str:
    """The text of a run file, together with what other arguments say.

    Raises ``ValueError`` if the file cannot be read, or if it says something else than an argument.
    """
    table = _table(run)
    if "evaluation" in table:
        raise ValueError("`evaluation` in the run is for models that peers evaluate: evaluate in your loop, and call `swarm.end_run()` when it is good enough")
    for argument, (section, key, value) in {"kind": ("sync", "kind", kind), "peers": ("network", "peers", peers)}.items():
        if value is None:
            continue
        keys = table.setdefault(section, {})
        if not isinstance(keys, dict):
            raise ValueError(f"`{section}` in the run is not a section")
        if keys.setdefault(key, value) != value:
            raise ValueError(f"{argument} is {value!r}, but the run says {keys[key]!r} for `{section}.{key}`: give one of the two")
    return toml_text(table)


def with_statistics(run: Run, statistics: Sequence[str]) -> Run:
    """The run with a parameter group of these statistics, whose mean by samples replaces them in each step."""
    if not statistics:
        return run
    table = _table(run)
    optimizer = table.setdefault("optimizer", {})
    if not isinstance(optimizer, dict):
        raise ValueError("`optimizer` in the run is not a section")
    group = {"tensors": list(statistics), "statistic": True}
    # The first group that names a tensor has it, so this one comes before those of the user, which may name whole layers.
    optimizer["groups"] = [group, *optimizer.get("groups", [])]
    return table


def check_numbers(bounds: Mapping[str, tuple[Any, int, int]]) -> None:
    """Raises ``ValueError`` for a number that is out of its bounds: value, least, most."""
    for name, (value, least, most) in bounds.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
            raise ValueError(f"`{name}` is {value!r}: give a whole number from {least} to {most}")


def toml_text(table: Mapping[str, Any], prefix: str = "") -> str:
    """A mapping as TOML: values first, then sections."""
    lines = [f"{_key(key)} = {_value(key, value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += [f"[{prefix}{_key(key)}]", toml_text(value, f"{prefix}{_key(key)}.")]
    return "\n".join(lines)


def _table(run: Run) -> dict[str, Any]:
    if run is None:
        return {}
    if isinstance(run, Mapping):
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in run.items()}
    text = run if isinstance(run, str) and _is_text(run) else _read(run)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the run is not TOML: {error}") from None


def _is_text(run: str) -> bool:
    """Whether a text is a run file, and not the path of one: paths may have any characters, but a file that exists is meant."""
    return "\n" in run or ("=" in run and not Path(run).exists())


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the run file {os.fspath(path)}: {error.strerror}") from None


def _key(key: Any) -> str:
    text = str(key)
    return text if text.replace("_", "").replace("-", "").isalnum() and text.isascii() else _text(text)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(key: Any, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(name, item)}" for name, item in value.items()) + "}"
    raise TypeError(f"the setting `{key}` is a {type(value).__name__}: give a number, a text, a list or a mapping")
