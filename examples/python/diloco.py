"""DiLoCo: each peer takes local steps with AdamW of its own, and the peers exchange once a round.

    python diloco.py                            the first peer prints an invite
    PEERGRAD_INVITE=pg1... python diloco.py     every other peer

A round has 16 batches of 100 samples, over all peers together. It sends as many bytes as one synchronous step.
"""

import torch
from torch.nn import functional as F

import peergrad.torch as pg
from sync import network, pictures, report


def main() -> None:
    images, labels = pictures(4000, seed=1)
    model = network()
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
    report(model, swarm)


if __name__ == "__main__":
    main()
