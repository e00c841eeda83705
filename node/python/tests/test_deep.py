"""The deep networks of `peer`, in PyTorch: an exported model has its names, its shapes and its losses."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

from deep_models import PEER, peer, trained  # behind the libraries, without which this file is skipped


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


TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. "


def llama_folder(folder, transformers, **changes):
    """A random LLaMA with a tokenizer, as Transformers saves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet))
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = dict(vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    kind = changes.pop("kind", "Llama")
    options = sizes | dict(max_position_embeddings=64, initializer_range=0.2) | changes
    torch.manual_seed(5)
    net = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**options))
    with torch.no_grad():
        for name, values in net.named_parameters():
            if values.dim() == 1:  # scales of norms and biases, which start all alike
                values += 0.1 * torch.randn_like(values)
    return net.eval()


def loss_of_windows(net, tokens, context):
    """The mean loss of a network on all windows of a text."""
    count = (len(tokens) - 1) // context
    tokens = tokens[: count * context + 1].long()
    with torch.no_grad():
        outputs = net(tokens[:-1].reshape(count, context)).logits
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), tokens[1:]).item()


LLAMAS = [
    {},
    dict(tie_word_embeddings=True, head_dim=12, rms_norm_eps=1e-3),
    dict(kind="Qwen2", tie_word_embeddings=True),
    dict(kind="Mistral", sliding_window=None),
]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("changes", LLAMAS, ids=["llama", "tied", "qwen2", "mistral"])
def test_a_llama_learns_another_text(tmp_path, changes, lora):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    if not PEER.exists():
        pytest.skip("`peer` is not built")
    net = llama_folder(tmp_path / "base", transformers, **changes)
    # Small files, so that there are several and an index.
    net.save_pretrained(tmp_path / "base", max_shard_size="40KB" if lora else "1GB")
    assert (tmp_path / "base" / "model.safetensors.index.json").exists() == lora
    for name, text in [("book", TEXT * 20), ("other", TEXT * 3 + "And so on.")]:
        (tmp_path / f"{name}.txt").write_text(text)
        written = peer(tmp_path, "init", "--data", f"{name}.txt", "--base", "base")
        assert 'kind = "llama"' in written
    other = safetensors.load_file(tmp_path / "other.prepared.safetensors")
    settings = f"""
[data]
file = "book.prepared.safetensors"
[model]
kind = "llama"
context = 24
{"lora = 4" if lora else ""}
[optimizer]
rate = 0.01
"""
    tensors, evaluated = trained(tmp_path, settings, "other.prepared.safetensors")
    before = {name: values.clone() for name, values in net.state_dict().items()}
    if lora:
        assert len(tensors) == 2 * 2 * 7
        for name in [name for name in tensors if ".lora_A." in name]:
            product = tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
            weight = name.removeprefix("base_model.model.").replace(".lora_A", "")
            net.get_parameter(weight).data += 8.0 / 4.0 * product
    else:
        missing, unexpected = net.load_state_dict(tensors, strict=False)
        assert unexpected == [] and missing == (["lm_head.weight"] if changes.get("tie_word_embeddings") else [])
        net.tie_weights()
    assert any(not torch.equal(values, before[name]) for name, values in net.state_dict().items())
    assert evaluated["loss"] == pytest.approx(loss_of_windows(net, other["tokens"], 24), abs=1e-4)
    net.load_state_dict(before)
    assert evaluated["loss"] < loss_of_windows(net, other["tokens"], 24) - 0.1, "it has learned"


def test_a_llama_from_scratch_is_one_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    (tmp_path / "book.txt").write_text(TEXT * 40)
    (tmp_path / "other.txt").write_text(TEXT * 3)
    settings = """
[data]
file = "book.txt"
[model]
kind = "llama"
layers = 2
width = 32
heads = 4
kv_heads = 2
context = 24
"""
    tensors, evaluated = trained(tmp_path, settings, "other.txt")
    sizes = dict(hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=256, rms_norm_eps=1e-5, **sizes)).eval()
    net.load_state_dict(tensors)
    tokens = torch.tensor(list((TEXT * 3).encode()))
    assert evaluated["loss"] == pytest.approx(loss_of_windows(net, tokens, 24), abs=1e-4)
