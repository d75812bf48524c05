"""One step of the optimizer: learning rate, forward, backward, clipping, update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import PhaseConfig, ScheduleConfig
from ngsan.cuda_graph import Captured
from ngsan.data.sampler import random_keys

BETAS = (0.9, 0.98)
"""Adam's; the second is the original Transformer's."""

Inputs = Mapping[str, Tensor | None]


def learning_rate(config: ScheduleConfig, *, step: int, steps: int, epochs: int) -> float:
    """The learning rate of a step of a phase.

    Args:
        config: The schedule.
        step: Steps of the phase so far.
        steps: Steps per epoch.
        epochs: Epochs of the phase.

    Note: "halved every 3 epochs after epoch 6" is read as: epochs 7 to 9 have half the peak rate,
        epochs 10 to 12 a quarter, and so on.
    """
    if config.shape == "step":
        epoch = step // steps + 1
        drops = max(0, math.ceil((epoch - config.step_start) / config.step_every))
        warm = min(1.0, epoch / config.warmup_epochs) if config.warmup_epochs else 1.0
        return config.peak_lr * warm * config.step_factor**drops
    warmup = min(round(config.warmup_epochs * steps), epochs * steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    if config.shape == "constant":
        return config.peak_lr
    if config.shape == "inverse-sqrt":
        return config.peak_lr * math.sqrt(max(1, warmup) / (step + 1))
    done = (step - warmup) / max(1, epochs * steps - warmup)
    return config.peak_lr * (1 + math.cos(math.pi * done)) / 2


def seed_dropout(fabric: Fabric, seed: int, step: int) -> None:
    """Makes the random numbers of a step depend only on the seed, the step and the process."""
    number = int(random_keys(1, seed, step, fabric.global_rank)[0]) >> 1
    if fabric.device.type == "cuda":
        torch.cuda.default_generators[fabric.device.index or 0].manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def clip_gradients(parameters: list[nn.Parameter], config: PhaseConfig) -> None:
    """Applies the bounds of the gradient."""
    if config.clip_grad_value:
        nn.utils.clip_grad_value_(parameters, config.clip_grad_value)
    if config.clip_grad_norm:
        nn.utils.clip_grad_norm_(parameters, config.clip_grad_norm)


def build_optimizer(
    module: nn.Module,
    device: torch.device,
    *,
    weight_decay: float = 0.0,
    slow: nn.Module | None = None,
    slow_lr_scale: float = 1.0,
) -> torch.optim.AdamW:
    """AdamW whose learning rate can change while its step is captured as a CUDA graph.

    Args:
        module: The module to train.
        device: Its device.
        weight_decay: Decoupled weight decay; 0 makes it Adam.
        slow: A part of the module that has its own learning rate.
        slow_lr_scale: That rate as a share of the others'.
    """
    on_gpu = device.type == "cuda"
    apart = set() if slow is None else set(slow.parameters())
    trained = [part for part in module.parameters() if part.requires_grad]
    groups = [
        {
            "params": [part for part in trained if (part in apart) == is_slow],
            "lr": torch.tensor(0.0, device=device) if on_gpu else 0.0,
            "scale": slow_lr_scale if is_slow else 1.0,
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


def set_lr(optimizer: torch.optim.AdamW, lr: float) -> None:
    """Sets the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr * group["scale"])
        else:
            group["lr"] = lr * group["scale"]


def optimizer_tensors(optimizer: torch.optim.AdamW, module: nn.Module) -> dict[str, Tensor]:
    """The state of an optimizer, by the names of the module's parameters."""
    return {
        f"{key}.{name}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(
    optimizer: torch.optim.AdamW, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Restores what `optimizer_tensors` returned; a `ValueError` if it is of another module."""
    named = dict(module.named_parameters())
    states: dict[Tensor, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        key, _, name = full.partition(".")
        if name not in named or (value.ndim and value.shape != named[name].shape):
            raise ValueError(f"the optimizer's state has {full}, which the model does not have")
        # The step count lives where the optimizer makes its steps: on a GPU if captured.
        states.setdefault(named[name], {})[key] = value.to(named[name].device, copy=True)
    optimizer.state.clear()
    optimizer.state.update(states)


def sum_over_processes(fabric: Fabric, sums: Tensor) -> Tensor:
    """Sums over all processes, from this one's."""
    if fabric.world_size == 1 or not sums.numel():
        return sums
    return cast(Tensor, fabric.all_reduce(sums, reduce_op="sum"))


class Step:
    """Trains a module by one batch after the other.

    The module returns a sum over the batch, the number of summands, and any further sums to
    report. The loss is the sum divided by the number, both over all processes: so several
    processes train as one does with the same batch.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        optimizer: torch.optim.AdamW,
        config: PhaseConfig,
    ) -> None:
        self._fabric, self._module, self._optimizer = fabric, module, optimizer
        self._config = config
        self._parameters = [part for part in module.parameters() if part.requires_grad]

    def __call__(self, inputs: Inputs, lr: float) -> Tensor:
        """Makes a step; returns (k,) the module's sums over all processes, on the device."""
        set_lr(self._optimizer, lr)
        return self.advance(inputs)

    def advance(self, inputs: Inputs) -> Tensor:
        """Makes a step with the current learning rate."""
        self._optimizer.zero_grad(set_to_none=True)
        total, count, *others = self._module(**inputs)
        sums = torch.stack([part.detach().double() for part in (total, count, *others)])
        sums = sum_over_processes(self._fabric, sums)
        # DDP averages the gradients over the processes, so each multiplies by their number.
        share = self._fabric.world_size / sums[1].clamp(min=1)
        self._fabric.backward(total * share.to(total.dtype))
        clip_gradients(self._parameters, self._config)
        self._optimizer.step()
        return sums


@dataclass
class _Work:
    """A step on inputs in fixed buffers, which leaves its sums.

    It does not refer to its `CapturedStep`: so graphs and their memory, which may be most of a
    GPU's, are freed when a `CapturedStep` is dropped, without waiting for the garbage collector.
    """

    step: Step
    buffers: Inputs
    sums: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __call__(self) -> None:
        self.sums = self.step.advance(self.buffers)


class CapturedStep:
    """A `Step` captured as one CUDA graph per shape of its inputs, for a single process.

    Batches should have few shapes: capturing a new one takes a handful of steps and the compiler's
    time.
    """

    def __init__(self, step: Step, module: nn.Module, optimizer: torch.optim.AdamW) -> None:
        self._step, self._module, self._optimizer = step, module, optimizer
        self._captures: dict[tuple[Any, ...], tuple[_Work, Captured]] = {}
        self._pool: Any = None

    def __call__(self, inputs: Inputs, lr: float) -> Tensor:
        """Makes a step; see `Step`."""
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
        set_lr(self._optimizer, lr)
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
        # Steps of all shapes share their memory: the sums that one leaves are copied at once.
        captured = Captured(work, device, work, pool=self._pool)
        captured.prepare()
        # Warming up has trained: restore what it changed, in place, where the graph will find it.
        changed = self._changed()
        with torch.no_grad():
            for tensor in changed[len(before) :] if not states else []:
                tensor.zero_()
            for tensor, value in zip(changed, before, strict=False):
                tensor.copy_(value)
        return work, captured

    def _changed(self) -> list[Tensor]:
        """The weights, followed by the state of the optimizer."""
        weights = list(self._module.state_dict(keep_vars=True).values())
        memory = [
            value
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return [*(weight.data for weight in weights), *memory]
