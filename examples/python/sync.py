"""Synchronous training of a small conv net: the result of one machine, on as many as you start.

    python sync.py                              the first peer prints an invite
    PEERGRAD_INVITE=pg1... python sync.py       every other peer

The pictures are drawn from a seed, so that the script needs no download: bars of four directions, with noise.
"""

import torch
from torch import nn
from torch.nn import functional as F

import peergrad.torch as pg


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 1, 12, 12) pictures and their (count) directions."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randint(4, (count,), generator=generator)
    shifts = torch.randint(-3, 4, (count, 1, 1), generator=generator)
    row, column = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    distances = torch.stack([row - 6, column - 6, row - column, row + column - 11])[directions] - shifts
    bars = (distances.abs() <= 1).float()
    return (bars + 0.8 * torch.randn(bars.shape, generator=generator))[:, None], directions


def network() -> nn.Module:
    """A conv net for the pictures, with the same weights at every call."""
    torch.manual_seed(1)
    convolutions = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 4))


def report(model: nn.Module, swarm: pg.Swarm) -> None:
    """Prints how well the model does on pictures that it was not trained with."""
    images, labels = pictures(1000, seed=2)
    accuracy = (model(images).argmax(1) == labels).float().mean()
    print(f"test accuracy {accuracy:.3f}, digest {swarm.result.digest}")


def main() -> None:
    images, labels = pictures(4000, seed=1)
    model = network()
    run = {"epochs": 5, "batch": 100, "optimizer": {"rule": "adam", "rate": 0.002}}
    with pg.Swarm(model, name="bars", samples=len(images), run=run) as swarm:
        for step in swarm:
            loss = F.cross_entropy(model(images[step.samples]), labels[step.samples], reduction="sum")
            model.zero_grad()
            loss.backward()
            step.finish(loss)
    report(model, swarm)


if __name__ == "__main__":
    main()
