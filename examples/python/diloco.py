"""DiLoCo: each peer takes local steps with AdamW of its own, and the peers exchange once a round.

    python diloco.py                            the first peer prints an invite
    PEERGRAD_INVITE=pg1... python diloco.py     every other peer

A round has 16 batches of 100 samples, over all peers together. It sends as many bytes as one synchronous step.
"""

import torch
from torch import nn
from torch.nn import functional as F

import peergrad.torch as pg
from sync import pictures


def main() -> None:
    torch.manual_seed(1)
    images, labels = pictures(4000, seed=1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
    )
    run = {"epochs": 20, "batch": 100, "sync": {"kind": "diloco", "local_steps": 16}}
    with pg.Swarm(model, name="bars-diloco", samples=len(images), run=run) as swarm:
        inner = torch.optim.AdamW(model.parameters(), lr=0.002)
        for step in swarm:
            total = 0.0
            for samples in step.samples.split(50):
                loss = F.cross_entropy(model(images[samples]), labels[samples])
                inner.zero_grad()
                loss.backward()
                inner.step()
                total += loss.item() * len(samples)
            step.finish(total)
    test_images, test_labels = pictures(1000, seed=2)
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean()
    print(f"test accuracy {accuracy:.3f}, digest {swarm.result.digest}")


if __name__ == "__main__":
    main()
