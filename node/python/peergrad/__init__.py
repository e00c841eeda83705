"""Train one model on many machines with no server. The loop is yours.

A :class:`Swarm` is one peer of a run. It deals sample numbers to your loop, takes the gradients that you compute, and keeps the
model equal at all peers, whoever joins, leaves or crashes.

:class:`Tables` is a peer of a run with tables, whose rows all peers read and add to at their own pace.

This module works with NumPy, and with anything that has the buffer protocol. ``peergrad.torch``, ``peergrad.jax``,
``peergrad.transformers`` and ``peergrad.lightning`` do the same for models of these libraries.

Messages go to ``logging.getLogger("peergrad")``, always from the thread that runs your loop.
"""

from peergrad._native import Refused
from peergrad._kept import Kept
from peergrad._result import Failed, Left, Result
from peergrad._swarm import Step, Swarm
from peergrad._tables import Clock, Table, Tables

__all__ = ["Clock", "Failed", "Kept", "Left", "Refused", "Result", "Step", "Swarm", "Table", "Tables"]
__version__ = "0.1.0"
