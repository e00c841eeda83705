"""PyTorch: a module in, and the loop stays yours.

::

    import peergrad.torch as pg

    with pg.Swarm(model, name="digits", samples=len(images), run={"epochs": 3, "batch": 256}) as swarm:
        for step in swarm:                               # the swarm's parameters are in the model
            x, y = images[step.samples], labels[step.samples]
            loss = F.cross_entropy(model(x), y, reduction="sum")
            model.zero_grad()
            loss.backward()
            step.finish(loss)                            # owners take the optimizer step

With ``kind="local"``, ``"diloco"`` or ``"ds-sync"`` the optimizer is your own: take as many local steps as you like on ``step.samples``, then
``step.finish(loss)`` gives the model's parameters back.

The parameters that train are those with ``requires_grad``: only these travel, with the running statistics of batch normalization. Frozen
ones must be the same at all peers. Other buffers stay at each peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import peergrad
from peergrad._native import NativeStep
from peergrad._settings import with_statistics
from peergrad._swarm import StepPeer

__all__ = ["Optimizer", "RandomState", "Sampler", "Step", "Swarm"]

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Step(peergrad.Step):
    """One step: the swarm's parameters are in the model. Finish it before you ask for the next one."""

    _swarm: Swarm

    @property
    def samples(self) -> Tensor:
        """(samples of this peer), int64, on the CPU: the numbers of the samples to compute. ``step.samples.split(32)`` cuts them into
        micro-batches, whose gradients add up."""
        return torch.from_numpy(self._samples.astype(np.int64))

    def finish(  # type: ignore[override]
        self, loss: Tensor | float | None = None, *, is_mean: bool = False, allow_unused: bool = False
    ) -> bool:
        """Gives the result of the step back: the gradients that the parameters have (``p.grad``), or the parameters themselves if
        the kind is ``local``, ``diloco`` or ``ds-sync``.

        - ``loss``: the *summed* loss of the samples, for reports: a number or a tensor of one element.
        - ``is_mean``: gradients and loss are means over the samples, as with ``reduction="mean"``: they are multiplied by the number
          of samples.
        - ``allow_unused``: a parameter without a gradient counts as one with a zero gradient; otherwise it is an error.

        Returns whether the members still waited for the step.

        Raises ``ValueError`` if a gradient is missing or not finite, or if a parameter has changed its shape. The step is then still
        open: call :meth:`finish` again, or :meth:`skip`.
        """
        total = None if loss is None else float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        count = len(self._samples)
        if is_mean and total is not None:
            total *= count
        if self.wants_parameters:
            return super().finish(self._swarm._values(), total)
        return super().finish(self._swarm._gradients(count, are_means=is_mean, allow_unused=allow_unused), total)


class Swarm(StepPeer[Step]):
    """One peer that trains a module: a context manager, and an iterator of steps.

    - ``model``: its parameters with ``requires_grad`` train: float32, or float64, bfloat16 and float16, which are converted; on a
      CPU or another device. The swarm overwrites them at the start of each step, and at the end of the run.
    - ``statistics``: the names of floating buffers that follow the samples. After each step they are the mean over the peers, by their
      samples. By default these are the running means and variances of normalization layers; ``()`` keeps them at each peer.
    - All other arguments are those of :class:`peergrad.Swarm`.

    The parameters of the founder count: a joiner's module gets them before its first step.
    """

    def __init__(
        self, model: nn.Module, *, name: str, samples: int, statistics: Sequence[str] | None = None, **options: Any
    ) -> None:
        self.model = model
        """The module."""
        self._parameters = {key: p for key, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no parameter with requires_grad: there is nothing to train")
        self._statistics = _running_statistics(model) if statistics is None else _buffers(model, statistics)
        self._tensors: dict[str, Tensor] = {**self._parameters, **self._statistics}
        for key, tensor in self._tensors.items():
            if tensor.dtype not in _TYPES or tensor.is_sparse or tensor.is_meta:
                raise TypeError(f"{key} ({tensor.dtype}, {tensor.device}) cannot train: it must be dense and floating")
        self._count = sum(tensor.numel() for tensor in self._tensors.values())
        # Where a tensor is not what the peer reads, a flat vector on the CPU stands between them.
        self._flat: Tensor | None = None
        shapes = {key: tuple(tensor.shape) for key, tensor in self._tensors.items()}
        options["run"] = with_statistics(options.get("run"), list(self._statistics))
        try:
            super().__init__(name, shapes, samples=samples, initial=self._values(), **options)
        except ValueError as error:
            if self._statistics and statistics is None and "groups" in str(error):
                error.add_note(
                    f"The model has running statistics, such as {next(iter(self._statistics))}, which this run cannot average. "
                    "Pass `statistics=()` to keep them at each peer."
                )
            raise

    def sampler(self, micro_batch: int | None = None) -> Sampler:
        """A batch sampler for a ``DataLoader``, which serves the samples of the open step: see :class:`Sampler`."""
        return Sampler(self, micro_batch)

    def _begin(self, native: NativeStep) -> Step:
        self._check_model()
        native.parameters(self._ordered(self._targets()))
        self._spread()
        return Step(self, native)

    def _ended(self) -> None:
        super()._ended()
        if self._native.last_parameters(self._ordered(self._targets())):
            self._spread()

    def _is_direct(self) -> bool:
        """Whether the peer reads and writes the parameters in place. A framework may move a model at any time."""
        tensors = self._tensors.values()
        return all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)

    def _targets(self) -> list[Any]:
        """The arrays that the peer overwrites with parameters."""
        if self._is_direct():
            return [tensor.detach().numpy() for tensor in self._tensors.values()]
        return [self._vector().numpy()]

    def _vector(self) -> Tensor:
        """(elements of all tensors), float32 on the CPU: pinned memory if a tensor is on a CUDA device."""
        if self._flat is None:
            is_on_gpu = any(tensor.device.type == "cuda" for tensor in self._tensors.values())
            self._flat = torch.empty(self._count, dtype=torch.float32, pin_memory=is_on_gpu)
        return self._flat

    def _spread(self) -> None:
        """Moves the parameters from the flat vector into the model."""
        if not self._is_direct():
            with torch.no_grad():
                for tensor, part in self._parts():
                    tensor.copy_(part.view(tensor.shape))

    def _values(self) -> list[Any]:
        """The present parameters and statistics, as the peer reads them."""
        if self._is_direct():
            return self._targets()
        return self._gathered([tensor.detach() for tensor in self._tensors.values()])

    def _gradients(self, samples: int, *, are_means: bool, allow_unused: bool) -> list[Any]:
        """The present gradients and statistics as the peer reads them: sums over so many samples."""
        self._check_model()
        gradients = []
        for key, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                if not allow_unused:
                    raise ValueError(
                        f"the parameter {key} has no gradient: call loss.backward() before finish(), freeze it with "
                        "requires_grad_(False) before the swarm starts, or pass allow_unused=True if the loss need not depend on it"
                    )
                gradient = torch.zeros_like(parameter)
            gradient = gradient.detach()
            gradients.append((gradient.to_dense() if gradient.is_sparse else gradient))
        if are_means:
            gradients = [gradient * samples for gradient in gradients]
        gradients += [statistic.detach() * samples for statistic in self._statistics.values()]
        if self._is_direct():
            return [gradient.contiguous().numpy() for gradient in gradients]
        return self._gathered(gradients)

    def _gathered(self, tensors: Sequence[Tensor]) -> list[Any]:
        for (_, part), tensor in zip(self._parts(), tensors, strict=True):
            # A blocking copy: the peer reads the vector at once.
            part.view(tensor.shape).copy_(tensor)
        return [self._vector().numpy()]

    def _parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor with its part of the flat vector."""
        tensors = self._tensors.values()
        return zip(tensors, torch.split(self._vector(), [tensor.numel() for tensor in tensors]), strict=True)

    def _check_model(self) -> None:
        for (key, tensor), shape in zip(self._tensors.items(), self.shapes.values(), strict=True):
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"the tensor {key} had the shape {shape} when the swarm started, and has {tuple(tensor.shape)} now: "
                    "do not change a model that trains"
                )


def _running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running means and variances of the normalization layers of a model, by name."""
    found = {}
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm):
            for key, buffer in part.named_buffers(recurse=False):
                if key in ("running_mean", "running_var"):
                    found[f"{name}.{key}" if name else key] = buffer
    return found


def _buffers(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    if isinstance(names, str):
        raise TypeError(f"`statistics` is a text: give a list of names, such as [{names!r}]")
    known = dict(model.named_buffers())
    for name in names:
        if name not in known:
            raise ValueError(f"`{name}` in `statistics` is no buffer of the model: it has {', '.join(known) or 'none'}")
    return {name: known[name] for name in names}


class Sampler(torch.utils.data.Sampler[list[int]]):
    """A batch sampler for a ``DataLoader``: it serves the samples of the swarm's open step, in micro-batches.

    ::

        loader = DataLoader(dataset, batch_sampler=swarm.sampler(32), num_workers=2, persistent_workers=True)
        for step in swarm:
            for x, y in loader:
                ...

    ``micro_batch``: samples of one micro-batch; all samples of the step by default.
    """

    def __init__(self, swarm: Swarm, micro_batch: int | None = None) -> None:
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"a micro-batch of {micro_batch} samples is too small: give at least 1")
        self._swarm = swarm
        self._micro_batch = micro_batch

    def __iter__(self) -> Iterator[list[int]]:
        yield from (part.tolist() for part in self._parts())

    def __len__(self) -> int:
        """The number of micro-batches of the open step."""
        return len(self._parts())

    def _parts(self) -> Sequence[Tensor]:
        native = self._swarm._open
        if native is None:
            raise RuntimeError("no step is open: use the loader inside `for step in swarm`")
        samples = torch.from_numpy(np.frombuffer(native.samples(), np.uint32).astype(np.int64))
        parts: Sequence[Tensor] = torch.split(samples, self._micro_batch or max(len(samples), 1))
        return parts


class RandomState:
    """The state of PyTorch's random generators, on the CPU and on CUDA devices, for :meth:`Swarm.keep`::

        swarm.keep(optimizer=inner, random=peergrad.torch.RandomState())
    """

    def state_dict(self) -> dict[str, Any]:
        return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        torch.set_rng_state(state_dict["cpu"])
        if len(state_dict["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state_dict["cuda"])


class Optimizer(torch.optim.Optimizer):
    """An optimizer for a framework that owns the loop: ``step()`` gives the gradients to the swarm and takes the next parameters.

    It waits for the first step when it is made. The owners' optimizer, which the run's settings name, takes the step; ``param_groups`` only show its rate. Let your loop end when
    :attr:`is_over` is true. The samples of the next step are in :attr:`samples`.

    - ``is_mean``: the framework's loss is a mean over the samples of a step, as is usual.
    """

    def __init__(self, swarm: Swarm, *, is_mean: bool = True) -> None:
        self._swarm = swarm
        self._is_mean = is_mean
        self._current: Step | None = next(swarm, None)
        rate = 0.0 if self._current is None else self._current.rate
        super().__init__(list(swarm._parameters.values()), {"lr": rate})

    @property
    def is_over(self) -> bool:
        """Whether the run is over: then ``step()`` does nothing."""
        return self._current is None

    @property
    def samples(self) -> Tensor:
        """(samples of this peer), int64: the samples of the open step; empty once the run is over."""
        return torch.empty(0, dtype=torch.int64) if self._current is None else self._current.samples

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Finishes the open step, and waits for the next one. ``closure`` computes the gradients and returns the loss; without it, the
        run reports a loss of 0."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._current is not None:
            self._current.finish(loss, is_mean=self._is_mean, allow_unused=True)
            self._current = next(self._swarm, None)
            if self._current is not None:
                for group in self.param_groups:
                    group["lr"] = self._current.rate
        return loss
