"""Synchronous training in JAX: a perceptron that learns a spiral.

    python jax_sync.py                          the first peer prints an invite
    PEERGRAD_INVITE=pg1... python jax_sync.py   every other peer
"""

import jax
import jax.numpy as jnp
import numpy as np

import peergrad.jax as pg


def spiral(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, 2) points and the arm, 0 or 1, on which each lies."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(2, size=count)
    turn = rng.uniform(0.5, 5, size=count)
    angle = turn + np.pi * arm
    points = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) / 3
    return (points + 0.05 * rng.normal(size=points.shape)).astype(np.float32), arm


def logits(params: dict, points: jax.Array) -> jax.Array:
    hidden = jnp.tanh(points @ params["first"] + params["bias"])
    hidden = jnp.tanh(hidden @ params["second"])
    return hidden @ params["last"]


def loss_of(params: dict, points: jax.Array, arms: jax.Array) -> jax.Array:
    chosen = jax.nn.log_softmax(logits(params, points))[jnp.arange(len(arms)), arms]
    return -chosen.sum()


def main() -> None:
    points, arms = spiral(2000, seed=1)
    keys = jax.random.split(jax.random.key(1), 3)
    params = {
        "first": jax.random.normal(keys[0], (2, 32)),
        "bias": jnp.zeros(32),
        "second": jax.random.normal(keys[1], (32, 32)) / 6,
        "last": jax.random.normal(keys[2], (32, 2)) / 6,
    }
    value_and_grad = jax.jit(jax.value_and_grad(loss_of))
    run = {"epochs": 40, "batch": 100, "optimizer": {"rule": "adam", "rate": 0.005}}
    with pg.Swarm(params, name="spiral", samples=len(points), run=run) as swarm:
        for step in swarm:
            loss, gradients = value_and_grad(step.params, points[step.samples], arms[step.samples])
            step.finish(gradients, loss)
    test_points, test_arms = spiral(500, seed=2)
    accuracy = (logits(swarm.params, test_points).argmax(1) == test_arms).mean()
    print(f"test accuracy {accuracy:.3f}, digest {swarm.result.digest}")


if __name__ == "__main__":
    main()
