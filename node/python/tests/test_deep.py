"""The deep networks of `peer`, in PyTorch: an exported model has its names, its shapes and its losses."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

PEER = Path(__file__).parents[3] / "target" / "release" / "peer"
TRAINING = "epochs = 2\nbatch = 64\n"


def peer(folder, *arguments):
    command = [str(PEER), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if "--features deep" in done.stderr:
        pytest.skip("`peer` is built without the feature `deep`")
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(folder, settings, data):
    """The tensors of a model that `peer` has trained, and its loss on all of a file."""
    if not PEER.exists():
        pytest.skip("`peer` is not built")
    (folder / "run.toml").write_text(TRAINING + settings)
    peer(folder, "start", "run.toml", "--peers", 1, "--dir", "peer", "--no-mdns", "--port", 0)
    peer(folder, "export", "model.safetensors", "--dir", "peer")
    evaluated = json.loads(peer(folder, "evaluate", "model.safetensors", "--data", data, "--json"))
    return safetensors.load_file(folder / "model.safetensors"), evaluated


def digits(path):
    """Rows that begin with a label and 64 pixels, each 0 to 16."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 300)
    pictures = rng.integers(0, 17, (300, 64))
    pictures[np.arange(300), labels * 16] = 60
    rows = [",".join(map(str, [label, *picture])) for label, picture in zip(labels, pictures)]
    path.write_text("label," + ",".join(f"p{index}" for index in range(64)) + "\n" + "\n".join(rows) + "\n")
    return torch.tensor(labels), torch.tensor(pictures, dtype=torch.float32)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_convolutional_network_is_a_sequential(tmp_path, activation):
    labels, pictures = digits(tmp_path / "train.csv")
    digits(tmp_path / "other.csv")
    (tmp_path / "other.csv").write_text((tmp_path / "train.csv").read_text() + "0" + ",1" * 64 + "\n")
    settings = f"""
[data]
file = "train.csv"
classes = 4
standardize = false
held_out = 0.0
[model]
kind = "cnn"
layers = ["conv 8 3", "norm 4", "{activation}", "pool 2", "conv 8 3 stride 2", "tanh", "average-pool 2", "dropout 0.1", "dense 12", "{activation}"]
"""
    tensors, evaluated = trained(tmp_path, settings, "other.csv")
    from torch import nn

    module = {"relu": nn.ReLU, "gelu": lambda: nn.GELU(approximate="tanh")}[activation]
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), module(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2, padding=1)]
    layers += [nn.Tanh(), nn.AvgPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8, 12), module(), nn.Linear(12, 4)]
    net = nn.Sequential(*layers).eval()
    net.load_state_dict(tensors)
    inputs = torch.cat([pictures, torch.ones(1, 64)]).reshape(-1, 1, 8, 8)
    targets = torch.cat([labels, torch.zeros(1, dtype=labels.dtype)])
    with torch.no_grad():
        outputs = net(inputs)
    assert evaluated["samples"] == 301
    assert evaluated["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, targets).item(), rel=1e-5)
    assert evaluated["accuracy"] == pytest.approx((outputs.argmax(1) == targets).float().mean().item(), abs=1e-6)


def test_a_transformer_is_gpt_2(tmp_path):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    text = b"It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. " * 40
    (tmp_path / "book.txt").write_bytes(text)
    other = text[:2000] + b" And so on."
    (tmp_path / "other.txt").write_bytes(other)
    settings = """
[data]
file = "book.txt"
[model]
kind = "gpt"
layers = 2
width = 32
heads = 4
context = 24
dropout = 0.1
"""
    tensors, evaluated = trained(tmp_path, settings, "other.txt")
    config = transformers.GPT2Config(vocab_size=256, n_positions=24, n_embd=32, n_layer=2, n_head=4)
    net = transformers.GPT2LMHeadModel(config).eval()
    missing, unexpected = net.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    net.tie_weights()
    count = (len(other) - 1) // 24
    tokens = torch.tensor(list(other[: count * 24 + 1]))
    with torch.no_grad():
        outputs = net(tokens[:-1].reshape(count, 24)).logits
    assert evaluated["samples"] == count
    loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), tokens[1:])
    assert evaluated["loss"] == pytest.approx(loss.item(), rel=1e-5)
