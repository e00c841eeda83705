"""Lightning: the Trainer keeps its loop, its data and its optimizer.

::

    swarm = peergrad.torch.Swarm(module, name="autoencoder", samples=1_000_000, kind="diloco", run="run.toml")
    trainer = Trainer(max_epochs=-1, callbacks=[Rounds(swarm, every=100)])
    trainer.fit(module, loader)

The state of the Trainer's optimizers and schedulers is kept beside the peer's checkpoints.

The Trainer's own data loader feeds it, so the swarm's sample numbers only count progress: give each peer its own part of the data, or
another seed.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from peergrad._rounds import Rounds as _Rounds
from peergrad.torch import Swarm

__all__ = ["Rounds"]


class Rounds(Callback):
    """Combines the parameters of all peers after every so many optimizer steps of a Trainer.

    - ``swarm``: a swarm of the Trainer's module, of the kind ``local`` or ``diloco``.
    - ``every``: optimizer steps of one round.
    """

    def __init__(self, swarm: Swarm, every: int) -> None:
        self._rounds = _Rounds(swarm, every)
        self._steps = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        for kind, made in (("optimizer", trainer.optimizers), ("scheduler", schedulers)):
            self._rounds.keep(**{f"{kind}_{index}": found for index, found in enumerate(made)})
        self._steps = trainer.global_step
        trainer.should_stop |= not self._rounds.begin()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_index: int) -> None:
        if trainer.global_step == self._steps:
            return  # The gradients are still being added up.
        self._steps = trainer.global_step
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        trainer.should_stop |= not self._rounds.stepped(None if loss is None else float(loss))

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._rounds.end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._rounds.end()
