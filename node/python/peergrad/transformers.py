"""Hugging Face Transformers: the Trainer keeps its loop, its data and its optimizer.

::

    with peergrad.torch.Swarm(model, name="bert", samples=1_000_000, kind="diloco", run="run.toml") as swarm:
        Trainer(model, args, train_dataset=data, callbacks=[Rounds(swarm, every=100)]).train()

The ``with`` lets this peer leave if the Trainer raises.

Only parameters with ``requires_grad`` travel: with LoRA (the library peft) these are the adapters.

The state of the Trainer's optimizer and scheduler is kept beside the peer's checkpoints.

The Trainer's own data loader feeds it, so the swarm's sample numbers only count progress: give each peer its own part of the data, or
another seed. The run ends after ``epochs`` times ``samples`` of them, whatever ``num_train_epochs`` says.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from peergrad._rounds import Rounds as _Rounds
from peergrad.torch import Swarm

__all__ = ["Rounds"]


class Rounds(TrainerCallback):
    """Combines the parameters of all peers after every so many optimizer steps of a Trainer.

    - ``swarm``: a swarm of the Trainer's model, of the kind ``local`` or ``diloco``.
    - ``every``: optimizer steps of one round.
    """

    def __init__(self, swarm: Swarm, every: int) -> None:
        self._rounds = _Rounds(swarm, every)

    def on_train_begin(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        self._rounds.keep(optimizer=made.get("optimizer"), scheduler=made.get("lr_scheduler"))
        control.should_training_stop |= not self._rounds.begin()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
        loss = logged[-1] if logged else None
        control.should_training_stop |= not self._rounds.stepped(loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rounds.end()
