"""A small GPT on text files: bytes are its tokens, and each peer has the files.

    python gpt.py book.txt                                  the first peer prints an invite
    PEERGRAD_INVITE=pg1... python gpt.py book.txt           every other peer

`--kind sync` takes each step together, with the owners' AdamW. `--kind diloco` takes 32 local steps with an AdamW of each peer between two
exchanges. `--adapters base.safetensors` trains low-rank adapters on a model that an earlier run has saved: only the adapters travel.

Each peer prints a line of JSON now and then: the samples trained over all peers, the loss (nats per byte) on the last tenth of the text, and
the bytes that this peer has sent.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import peergrad.torch as pg

LOCAL_STEPS = 32


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, 2))
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Logits (sequences, length, 256) of the next byte, from bytes (sequences, length)."""

    def __init__(self, context: int, width: int = 320, layers: int = 8, heads: int = 5) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        return self.head(self.norm(self.blocks(self.bytes(tokens) + self.places(places))))


def loss_of(model: nn.Module, windows: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    """The loss of windows (sequences, context + 1): the sum over sequences of the mean over bytes, or the mean of both."""
    loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    return loss * len(windows) if reduction == "sum" else loss


def windows_of(files: list[Path], context: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows (samples, context + 1) spread over the text, and 64 on its last tenth that are held out."""
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in sorted(files))), dtype=torch.uint8)
    border = len(text) * 9 // 10
    train = torch.linspace(0, border - context - 1, samples).long()
    held_out = torch.linspace(border, len(text) - context - 1, 64).long()
    take = torch.arange(context + 1)
    return text[train[:, None] + take].long(), text[held_out[:, None] + take].long()


def with_adapters(model: nn.Module, base: Path) -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file

    model.load_state_dict(load_file(base))
    return get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["qkv", "out", "up", "down"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--kind", choices=["sync", "diloco"], default="sync")
    parser.add_argument("--adapters", type=Path)
    parser.add_argument("--samples", type=int, default=10240)
    parser.add_argument("--until", type=int, help="end the run once so many samples were trained")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="sequences of one step, over all peers")
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--report", type=int, default=512, help="samples between two reports")
    options = parser.parse_args()

    torch.manual_seed(1)
    train, held_out = windows_of(options.files, options.context, options.samples)
    model: nn.Module = GPT(options.context)
    if options.adapters:
        model = with_adapters(model, options.adapters)
    run = {
        "epochs": 1,
        "batch": options.batch,
        "optimizer": {"rule": "adamw", "rate": options.rate, "clip_norm": 1.0},
        "sync": {"patience_seconds": 120},
    }
    if options.kind == "diloco":
        del run["optimizer"]
        run["sync"] |= {"kind": "diloco", "local_steps": LOCAL_STEPS}

    with pg.Swarm(model, name="gpt", samples=len(train), run=run, peers=options.peers) as swarm:
        reported, per_step = -options.report, options.batch * (LOCAL_STEPS if options.kind == "diloco" else 1)

        def report(trained: int, sent: int) -> None:
            with torch.no_grad():
                loss = loss_of(model, held_out, "mean").item()
            print(json.dumps({"samples": trained, "held_out": round(loss, 4), "sent": sent}), flush=True)

        inner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=options.rate)
        for step in swarm:
            trained = step.number * per_step
            if options.until is not None and trained >= options.until:
                swarm.end_run()
            if trained >= reported + options.report:
                reported = trained
                report(trained, swarm.status()["traffic"]["sent_bytes"])
            total = 0.0
            if options.kind == "diloco":
                for samples in step.samples.split(max(options.batch // step.members, 1)):
                    loss = loss_of(model, train[samples], "mean")
                    inner.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    inner.step()
                    total += loss.item() * len(samples)
            else:
                model.zero_grad()
                loss = loss_of(model, train[step.samples])
                loss.backward()
                total = loss.item()
            step.finish(total)
            sent = swarm.status().get("traffic", {"sent_bytes": 0})["sent_bytes"]
        report(swarm.result.samples, sent)
    trains = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(json.dumps({"trains": trains, "digest": swarm.result.digest, "model": str(swarm.result.model)}))


if __name__ == "__main__":
    main()
