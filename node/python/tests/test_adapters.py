"""Language models that are taught another text: their adapters are those of PEFT, and their bases those of Transformers."""

import random
import shutil

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

from deep_models import PEER, peer, trained  # behind the libraries, without which this file is skipped

ON_TEXT = "epochs = 6\nbatch = 8\n"
OPTIMIZER = """[optimizer]
rule = "adamw"
rate = 0.01
"""


def sentences(seed, count):
    """A text of made-up sentences, with words of its own for each seed."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(2, 8))) for _ in range(30)]
    return "".join(" ".join(draw.choices(words, k=8)).capitalize() + ". " for _ in range(count))


def held_out_loss(net, tokens, context, count):
    """The loss of a net on the last `count` windows of these tokens."""
    windows = (len(tokens) - 1) // context
    tokens = tokens[(windows - count) * context : windows * context + 1]
    with torch.no_grad():
        outputs = net(tokens[:-1].reshape(count, context)).logits
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), tokens[1:]).item()


def add_adapters(net, tensors, scale):
    """Adds to each weight of a GPT-2 what its adapter makes of it: the product of A and B."""
    weights = net.state_dict()
    matrices = [name for name in tensors if name.endswith(".lora_A.weight")]
    assert len(matrices) == 4 * net.config.n_layer and len(tensors) == 2 * len(matrices)
    for name in matrices:
        weight = weights[name.removeprefix("base_model.model.").replace("lora_A.", "")]
        weight += scale * tensors[name].T @ tensors[name.replace("lora_A", "lora_B")].T


def test_adapters_are_those_of_peft(tmp_path):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    context, rank, alpha = 24, 4, 12.0
    (tmp_path / "first.txt").write_text(sentences(1, 300))
    sizes = f"layers = 2\nwidth = 32\nheads = 4\ncontext = {context}"
    settings = f'[data]\nfile = "first.txt"\n[model]\nkind = "gpt"\n{sizes}\n{OPTIMIZER}'
    tensors, evaluated = trained(tmp_path, settings, "first.txt", "base", ON_TEXT)
    config = transformers.GPT2Config(vocab_size=256, n_positions=context, n_embd=32, n_layer=2, n_head=4)
    net = transformers.GPT2LMHeadModel(config).eval()
    net.load_state_dict(tensors, strict=False)
    first = torch.tensor(list((tmp_path / "first.txt").read_bytes()))
    assert evaluated["held_out"] and evaluated["loss"] == pytest.approx(held_out_loss(net, first, context, evaluated["samples"]), abs=1e-4)

    (tmp_path / "second.txt").write_text(sentences(2, 300))
    peer(tmp_path, "init", "--data", "second.txt", "--base", "base.safetensors")
    prepared = "second.prepared.safetensors"
    settings = f"""
[data]
file = "{prepared}"
[model]
kind = "gpt"
context = {context}
lora = {rank}
lora_alpha = {alpha}
{OPTIMIZER}"""
    adapters, evaluated = trained(tmp_path, settings, prepared, "adapters", ON_TEXT)
    second = torch.tensor(list((tmp_path / "second.txt").read_bytes()))
    loss = lambda net: held_out_loss(net, second, context, evaluated["samples"])
    before = loss(net)
    try:
        import peft
    except ImportError:
        add_adapters(net, adapters, alpha / rank)
    else:
        targets = ["c_attn", "c_proj", "c_fc"]
        peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, fan_in_fan_out=True).save_pretrained(tmp_path / "peft")
        shutil.copy(tmp_path / "adapters.safetensors", tmp_path / "peft" / "adapter_model.safetensors")
        net = peft.PeftModel.from_pretrained(net, tmp_path / "peft").eval()
        loaded = peft.get_peft_model_state_dict(net)
        assert loaded.keys() == adapters.keys() and all(torch.equal(loaded[name], adapters[name]) for name in loaded)
    assert evaluated["held_out"] and evaluated["loss"] == pytest.approx(loss(net), abs=1e-4)
    assert evaluated["loss"] < before - 0.1, "it has learned the other text"


def test_a_folder_of_gpt_2_is_a_base(tmp_path):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    context, text, folder = 16, sentences(3, 300), tmp_path / "gpt2"
    (tmp_path / "book.txt").write_text(text)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=300, show_progress=False)
    torch.manual_seed(1)
    # Weights of usual size would make all tokens about as likely.
    config = transformers.GPT2Config(vocab_size=300, n_positions=context, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2)
    net = transformers.GPT2LMHeadModel(config).eval()
    net.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    if PEER.exists():
        peer(tmp_path, "init", "--data", "book.txt", "--base", "gpt2")
    settings = f"""
[data]
file = "book.prepared.safetensors"
[model]
kind = "gpt"
{OPTIMIZER}"""
    still = '[[optimizer.groups]]\ntensors = ["*"]\nrate_factor = 0.0\n'
    tokens = torch.tensor(tokenizer.encode(text).ids)
    found = []
    for name, groups in {"before": still, "after": ""}.items():
        tensors, evaluated = trained(tmp_path, settings + groups, "book.prepared.safetensors", name, ON_TEXT)
        if groups:
            weights = net.state_dict()
            assert all(torch.equal(tensor, weights[tensor_name]) for tensor_name, tensor in tensors.items())
        else:
            net.load_state_dict(tensors, strict=False)
        loss = held_out_loss(net, tokens, context, evaluated["samples"])
        assert evaluated["held_out"] and evaluated["loss"] == pytest.approx(loss, abs=1e-4)
        found.append(loss)
    assert found[1] < found[0] - 0.1, "it has learned the text"
