"""Samples a second of an MLP with ReLU in PyTorch: cross-entropy, Adam, batches of random numbers.

    python bench/torch_mlp.py THREADS BATCH STEPS WIDTH WIDTH...      needs `pip install torch numpy`
"""
import json
import sys
import time

import torch


def main(threads, batch, steps, *widths):
    torch.set_num_threads(threads)
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(batch, widths[0])
    labels = torch.randint(0, widths[-1], (batch,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    print(json.dumps({"samples_per_second": batch * steps / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
