"""One step of the optimizer: forward, backward, clipping, update."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.capture import Captured

BETAS = (0.9, 0.98)
"""Of Adam; the second is the original Transformer's."""

Inputs = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Clip:
    """Bounds of the gradient; 0 for none."""

    value: float
    norm: float

    def __call__(self, parameters: list[nn.Parameter]) -> None:
        """Applies the bounds."""
        if self.value:
            nn.utils.clip_grad_value_(parameters, self.value)
        if self.norm:
            nn.utils.clip_grad_norm_(parameters, self.norm)


def build_optimizer(
    module: nn.Module,
    device: torch.device,
    *,
    weight_decay: float = 0.0,
    slow: nn.Module | None = None,
    slow_rate: float = 1.0,
) -> torch.optim.AdamW:
    """Adam whose rate can change while its step is captured.

    Args:
        module: What is trained.
        device: Where it is.
        weight_decay: Decoupled from the gradient, as in AdamW; 0 makes it Adam.
        slow: A part of the module that has another learning rate.
        slow_rate: Its share of the rate.
    """
    on_gpu = device.type == "cuda"
    apart = set() if slow is None else set(slow.parameters())
    trained = [part for part in module.parameters() if part.requires_grad]
    groups = [
        {
            "params": [part for part in trained if (part in apart) == is_slow],
            "lr": torch.tensor(0.0, device=device) if on_gpu else 0.0,
            "share": slow_rate if is_slow else 1.0,
        }
        for is_slow in (False, True)
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=BETAS,
        weight_decay=weight_decay,
        fused=True,
        capturable=on_gpu,
    )


class Step:
    """Trains a module by one batch after the other.

    The module's result is a sum over the batch, the number of what was summed, and any further
    sums to be reported. The loss is the sum divided by the number, both over all processes: so
    several of them train as one does with the same batch.
    """

    def __init__(
        self, fabric: Fabric, module: nn.Module, optimizer: torch.optim.AdamW, clip: Clip
    ) -> None:
        """Takes the parts.

        Args:
            fabric: The processes.
            module: What is trained, as it came from `fabric.setup_module`.
            optimizer: Its optimizer.
            clip: Bounds of the gradient.
        """
        self._fabric, self._module, self._optimizer, self._clip = fabric, module, optimizer, clip
        self._parameters = [part for part in module.parameters() if part.requires_grad]

    def __call__(self, inputs: Inputs, rate: float) -> Tensor:
        """Makes a step.

        Args:
            inputs: What the module takes, by name.
            rate: The learning rate.

        Returns:
            (k,) the module's sums over all processes, detached and on the device.
        """
        set_rate(self._optimizer, rate)
        return self.advance(inputs)

    def advance(self, inputs: Inputs) -> Tensor:
        """The step itself, with the rate that is set."""
        self._optimizer.zero_grad(set_to_none=True)
        total, count, *others = self._module(**inputs)
        sums = torch.stack([part.detach().double() for part in (total, count, *others)])
        if self._fabric.world_size > 1:
            sums = cast(Tensor, self._fabric.all_reduce(sums, reduce_op="sum"))
        # Gradients of several processes are averaged, so each makes up for the division.
        share = self._fabric.world_size / sums[1].clamp(min=1)
        self._fabric.backward(total * share.to(total.dtype))
        self._clip(self._parameters)
        self._optimizer.step()
        return sums


@dataclass
class _Work:
    """A step on inputs that stay where they are, which leaves its sums.

    It knows nothing of who captured it: so graphs and their memory, which may be most of a GPU's,
    are given back when a `CapturedStep` is dropped, and not when the garbage collector comes by.
    """

    step: Step
    buffers: Inputs
    sums: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __call__(self) -> None:
        self.sums = self.step.advance(self.buffers)


class CapturedStep:
    """A `Step` captured as one graph for each shape of its inputs, for a single process on a GPU.

    Batches should come in few shapes: each is captured when it comes first, which takes as long as
    a handful of steps and the compiler's time.
    """

    def __init__(self, step: Step, module: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Takes the step and what it changes."""
        self._step, self._module, self._optimizer = step, module, optimizer
        self._captures: dict[tuple[Any, ...], tuple[_Work, Captured]] = {}
        self._pool: Any = None

    def __call__(self, inputs: Inputs, rate: float) -> Tensor:
        """Makes a step."""
        shapes = tuple(
            (name, None if tensor is None else (tensor.shape, tensor.dtype))
            for name, tensor in inputs.items()
        )
        if shapes not in self._captures:
            self._captures[shapes] = self._capture(inputs)
        work, captured = self._captures[shapes]
        for name, tensor in inputs.items():
            buffer = work.buffers[name]
            if tensor is not None and buffer is not None:
                buffer.copy_(tensor)
        set_rate(self._optimizer, rate)
        captured()
        return work.sums.clone()

    def _capture(self, inputs: Inputs) -> tuple[_Work, Captured]:
        work = _Work(
            self._step,
            {name: None if tensor is None else tensor.clone() for name, tensor in inputs.items()},
        )
        before = [tensor.clone() for tensor in self._changed()]
        states = len(self._optimizer.state)
        device = next(self._module.parameters()).device
        if device.type == "cuda" and self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Steps of all shapes share their memory: what one leaves, its sums, is copied at once.
        captured = Captured(work, device, work, pool=self._pool)
        captured.prepare()
        # To warm up was to train: what it changed is put back, where the graph will find it.
        changed = self._changed()
        with torch.no_grad():
            for tensor in changed[len(before) :] if not states else []:
                tensor.zero_()
            for tensor, value in zip(changed, before, strict=False):
                tensor.copy_(value)
        return work, captured

    def _changed(self) -> list[Tensor]:
        """The weights, and after them what the optimizer remembers."""
        weights = list(self._module.state_dict(keep_vars=True).values())
        memory = [
            value
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return [*(weight.data for weight in weights), *memory]


def set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Sets the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["share"])
        else:
            group["lr"] = rate * group["share"]


def optimizer_tensors(optimizer: torch.optim.AdamW, module: nn.Module) -> dict[str, Tensor]:
    """What an optimizer remembers, by the names of the module's parameters."""
    return {
        f"{key}.{name}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(
    optimizer: torch.optim.AdamW, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Gives back to an optimizer what `optimizer_tensors` took from it.

    Raises:
        ValueError: The tensors are not those of this module.
    """
    named = dict(module.named_parameters())
    states: dict[Tensor, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        key, _, name = full.partition(".")
        if name not in named or (value.ndim and value.shape != named[name].shape):
            raise ValueError(f"the optimizer's state has {full}, which is not the model's")
        # The count of steps lives where the optimizer makes its steps: on a GPU if captured.
        states.setdefault(named[name], {})[key] = value.to(named[name].device, copy=True)
    optimizer.state.clear()
    optimizer.state.update(states)
