"""One training of a small GPT on a text, by one peer, by four peers in two ways, and by PyTorch: what each has learnt from as many samples.

    cargo build --release --features deep
    pip install torch transformers safetensors
    python bench/gpt.py prideprejudice.txt
    python bench/gpt.py prideprejudice.txt --epochs 4 --ways "one peer,four peers diloco"

A GPT-2 of 3.3 million parameters, whose tokens are bytes: 4 blocks, 256 numbers for each token, 4 heads, 128 tokens at once. All ways have the
same batch, AdamW, decay, warm-up, cosine and clipping, and so the same number of steps. A fourth of each batch is that of a peer. `diloco` takes
32 such steps between two exchanges, with the outer optimizer of its defaults. PyTorch trains Transformers' `GPT2LMHeadModel`, with the initial
values of that library and another order of samples.

The loss is that of `peer evaluate` on the last tenth of the text, in nats per byte. PyTorch computes its own, and that of the peers' first model,
which must be the same to 1e-4. Seconds are those of all steps. The last lines continue a text, by the model of the four peers.
"""
import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import PEER, train_with

LAYERS, WIDTH, HEADS, CONTEXT = 4, 256, 4, 128
RATE, WARM_UP, DECAY, CLIP, LOCAL_STEPS = 1e-3, 50, 0.1, 1.0, 32
HELD_OUT = 0.1
PROMPT = "It is a truth universally acknowledged, that "
# Peers, threads of each, and their section [sync].
SWARMS = {
    "one peer": (1, 2, 'kind = "sync"'),
    "four peers sync": (4, 1, 'kind = "sync"'),
    "four peers diloco": (4, 1, f'kind = "diloco"\nlocal_steps = {LOCAL_STEPS}'),
}
PYTORCH = "PyTorch"


def settings(options, sync):
    return f"""
epochs = {options.epochs}
batch = {options.batch}
seed = {options.seed}
[data]
file = "book.txt"
held_out = {HELD_OUT}
[model]
kind = "gpt"
layers = {LAYERS}
width = {WIDTH}
heads = {HEADS}
context = {CONTEXT}
[optimizer]
rule = "adamw"
rate = {RATE}
schedule = "cosine"
weight_decay = {DECAY}
warmup_steps = {WARM_UP}
clip_norm = {CLIP}
[[optimizer.groups]]
tensors = ["*.bias", "*.ln_*"]
weight_decay = 0.0
[sync]
{sync}
{options.sync if "diloco" in sync else ""}
"""


def windows(folder):
    """The samples of the text, as inputs and what comes next (samples, context), and how many of them are trained."""
    import torch

    text = torch.frombuffer(bytearray((folder / "book.txt").read_bytes()), dtype=torch.uint8).long()
    count = (len(text) - 1) // CONTEXT
    cut = lambda first: text[first : first + count * CONTEXT].reshape(count, CONTEXT)
    return cut(0), cut(1), count - math.floor(count * HELD_OUT + 0.5)


def rate(step, steps):
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(steps - WARM_UP, 1)))


def loss_of(net, inputs, targets):
    import torch

    return torch.nn.functional.cross_entropy(net(inputs).logits.flatten(0, 1), targets.flatten())


def held_out_loss(net, inputs, targets):
    import torch

    with torch.no_grad():
        parts = [(loss_of(net, *part).item(), len(part[0])) for part in zip(inputs.split(64), targets.split(64))]
    return sum(loss * count for loss, count in parts) / len(inputs)


def pytorch(folder, options):
    """PyTorch's training, in a process of its own."""
    import torch
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(2)
    torch.manual_seed(options.seed)
    sizes = {"vocab_size": 256, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    nothing = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    net = GPT2LMHeadModel(GPT2Config(**sizes, **nothing))
    parameters = dict(net.named_parameters())
    is_offset_or_norm = lambda name: name.endswith(".bias") or ".ln_" in name
    chosen = lambda wanted: [parameters[name] for name in parameters if is_offset_or_norm(name) == wanted]
    optimizer = torch.optim.AdamW([{"params": chosen(False), "weight_decay": DECAY}, {"params": chosen(True), "weight_decay": 0.0}])
    inputs, targets, training = windows(folder)
    draw, trained = random.Random(options.seed), 0
    batches = -(-training // options.batch)
    steps, began = options.epochs * batches, time.perf_counter()
    for step in range(steps):
        if step % batches == 0:
            order = draw.sample(range(training), training)
        batch = order[step % batches * options.batch :][: options.batch]
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        optimizer.zero_grad()
        loss_of(net, inputs[batch], targets[batch]).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        trained += len(batch)
    found = {"samples": trained, "steps": steps, "seconds": time.perf_counter() - began}
    held_out = inputs[training:], targets[training:]
    found["loss"] = held_out_loss(net, *held_out)
    if options.model:
        net.load_state_dict(load_file(options.model), strict=False)
        found["loss_of_peers"] = held_out_loss(net, *held_out)
    print(json.dumps(found | {"parameters": sum(map(torch.numel, net.parameters()))}))


def of_pytorch(folder, options, known):
    """What PyTorch has learnt. `known` are the losses that `peer evaluate` has found, by way."""
    arguments = ["--epochs", options.epochs, "--batch", options.batch, "--seed", options.seed, "--torch-in", folder]
    for way in list(known)[:1]:
        arguments += ["--model", model_of(folder, way)]
    done = subprocess.run([*map(str, [sys.executable, __file__, options.text, *arguments])], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    for way in list(known)[:1]:
        if abs(found["loss_of_peers"] - known[way]) > 1e-4:
            sys.exit(f"{way}: PyTorch finds a loss of {found['loss_of_peers']}, and `peer evaluate` one of {known[way]}")
    return found


def of_peers(folder, options, way):
    count, threads, sync = SWARMS[way]
    peers = train_with(folder, count, settings(options, sync), threads)
    model = model_of(folder, way)
    subprocess.run([PEER, "export", model, "--dir", peers[0].directory], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    summaries = [event for peer in peers for event in peer.others if event["event"] == "summary"]
    if len({summary["digest"] for summary in summaries}) != 1 or len(summaries) != count:
        sys.exit(f"{way}: the peers do not hold the same model")
    views = [event for event in peers[0].others if event["event"] == "view"]
    command = [PEER, "evaluate", model, "--data", folder / "book.txt", "--json"]
    loss = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["loss"]
    seconds = peers[0].steps[-1]["wall_seconds"] - views[0]["wall_seconds"]
    return {key: summaries[0][key] for key in ("samples", "steps", "left_out")} | {"seconds": seconds, "loss": loss}


def model_of(folder, way):
    return folder / f"{way.replace(' ', '-')}.safetensors"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--samples", type=int, default=4096, help="windows of 128 bytes that are trained in an epoch; the text is cut behind them and the held-out ones")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step, over all peers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", default=",".join([*SWARMS, PYTORCH]), help="which of them, the first being the one that others are compared with")
    parser.add_argument("--sync", default="", help="more lines of [sync] for diloco, such as 'outer_rate = 0.9'")
    parser.add_argument("--torch-in", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_in:
        return pytorch(options.torch_in, options)
    print("| way | samples | steps or rounds | seconds | held-out loss, nats per byte | / the first |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder, first, known = Path(name), None, {}
        count = round(options.samples / (1 - HELD_OUT))
        (folder / "book.txt").write_bytes(options.text.read_bytes()[: count * CONTEXT + 1])
        for way in options.ways.split(","):
            if way == PYTORCH:
                found = of_pytorch(folder, options, known)
            else:
                found = of_peers(folder, options, way)
                known[way] = found["loss"]
            first = first or found["loss"]
            row = [way, found["samples"], found["steps"], f"{found['seconds']:.0f}", f"{found['loss']:.4f}", f"{found['loss'] / first:.4f}"]
            print("|", " | ".join(map(str, row)), "|", flush=True)
            if found.get("left_out"):
                print(f"{way}: {found['left_out']} samples were left out")
        shown = model_of(folder, "four peers sync")
        if shown.exists():
            command = [PEER, "generate", shown, "--prompt", PROMPT, "--tokens", "300"]
            print("\n" + subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


if __name__ == "__main__":
    main()
