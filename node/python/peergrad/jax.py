"""JAX: a tree of parameters in, trees of gradients back.

::

    import peergrad.jax as pg

    with pg.Swarm(params, name="digits", samples=len(images), run={"epochs": 3, "batch": 256}) as swarm:
        for step in swarm:
            loss, gradients = value_and_grad(step.params, images[step.samples], labels[step.samples])
            step.finish(gradients, loss)                 # both summed over the samples
    params = swarm.params
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import peergrad
from peergrad._native import NativeStep
from peergrad._swarm import StepPeer

__all__ = ["Step", "Swarm"]


class Step(peergrad.Step):
    """One step. Finish it before you ask for the next one."""

    _swarm: Swarm
    params: Any
    """The tree of parameters at which the step starts."""

    def finish(self, tree: Any, loss: Any = None) -> bool:  # type: ignore[override]
        """Gives the result of the step back, as a tree like ``params``: the gradients, *summed* over the samples, or the parameters
        after your own local steps if the kind is ``local``, ``diloco`` or ``ds-sync``.

        Returns whether the members still waited for the step. Raises ``ValueError`` if the tree has another structure or shape, or an
        element that is not finite; the step is then still open.
        """
        leaves: list[Any]
        structure: Any
        leaves, structure = jax.tree_util.tree_flatten(tree)
        if structure != self._swarm._structure:
            raise ValueError(f"the tree has the structure {structure}, but the parameters have {self._swarm._structure}")
        vectors = [np.asarray(leaf, np.float32, order="C") for leaf in leaves]
        return super().finish(vectors, None if loss is None else float(loss))


class Swarm(StepPeer[Step]):
    """One peer that trains a tree of arrays: a context manager, and an iterator of steps.

    - ``params``: a pytree of floating arrays, of the types that it keeps. The founder's values count.
    - All other arguments are those of :class:`peergrad.Swarm`.
    """

    def __init__(self, params: Any, *, name: str, samples: int, **options: Any) -> None:
        paths, structure = jax.tree_util.tree_flatten_with_path(params)
        self._structure: Any = structure
        self._types = [jnp.asarray(leaf).dtype for _, leaf in paths]
        for (path, _), kind in zip(paths, self._types, strict=True):
            if not jnp.issubdtype(kind, jnp.floating):
                raise TypeError(f"the parameter {jax.tree_util.keystr(path)} is {kind}: only floating arrays train")
        named = {jax.tree_util.keystr(path): np.asarray(leaf, np.float32, order="C") for path, leaf in paths}
        self.params = params
        """The tree of parameters at which the last step started; after the run, the last ones."""
        shapes = {key: leaf.shape for key, leaf in named.items()}
        super().__init__(name, shapes, samples=samples, initial=list(named.values()), **options)

    def _begin(self, native: NativeStep) -> Step:
        # New arrays in each step: JAX may share memory with one that it is given.
        arrays = list(self._new_arrays().values())
        native.parameters(self._ordered(arrays))
        self.params = self._tree(arrays)
        step = Step(self, native)
        step.params = self.params
        return step

    def _ended(self) -> None:
        super()._ended()
        arrays = list(self._new_arrays().values())
        if self._native.last_parameters(self._ordered(arrays)):
            self.params = self._tree(arrays)

    def _tree(self, arrays: list[Any]) -> Any:
        leaves = [jnp.asarray(array, kind) for array, kind in zip(arrays, self._types, strict=True)]
        return jax.tree_util.tree_unflatten(self._structure, leaves)
