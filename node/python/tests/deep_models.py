"""What the tests of deep networks share: running `peer`, and what it has trained."""

import json
import subprocess
from pathlib import Path

import pytest

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

PEER = Path(__file__).parents[3] / "target" / "release" / "peer"


def peer(folder, *arguments):
    command = [str(PEER), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if "--features deep" in done.stderr:
        pytest.skip("`peer` is built without the feature `deep`")
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(folder, settings, data, name="model", training="epochs = 2\nbatch = 64\n"):
    """The tensors of a model that `peer` has trained, and its loss on the held-out part of its own data file, or on all of another one."""
    if not PEER.exists():
        pytest.skip("`peer` is not built")
    (folder / f"{name}.toml").write_text(training + settings)
    peer(folder, "start", f"{name}.toml", "--peers", 1, "--dir", name, "--no-mdns", "--port", 0)
    peer(folder, "export", f"{name}.safetensors", "--dir", name)
    evaluated = json.loads(peer(folder, "evaluate", f"{name}.safetensors", "--data", data, "--json"))
    return safetensors.load_file(folder / f"{name}.safetensors"), evaluated
