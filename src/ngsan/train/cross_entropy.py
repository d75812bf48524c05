"""Cross-entropy training of a captioner on data that is held in memory."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ngsan.config import TrainingConfig
from ngsan.data.batch import CaptionBatch
from ngsan.models.captioner import Captioner
from ngsan.nn.geometry import check_boxes
from ngsan.nn.losses import word_cross_entropy


def steps_of(count: int, config: TrainingConfig) -> int:
    """The number of steps that training on `count` images takes."""
    return config.epochs * math.ceil(count / config.batch_size)


def rate_at(step: int, steps: int, config: TrainingConfig) -> float:
    """The learning rate of a step: linear over the first tenth, then a cosine down to zero."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    return config.learning_rate * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def train(
    captioner: Captioner,
    data: CaptionBatch,
    config: TrainingConfig,
    on_step: Callable[[Tensor], None] = lambda loss: None,
) -> None:
    """Trains a captioner in place.

    Args:
        captioner: The model.
        data: What it learns from.
        config: How.
        on_step: Called with the loss after every step; to read it waits for the device.

    Note: dropout draws from torch's global generator, which is seeded here.
    """
    if data.boxes is not None:
        check_boxes(data.boxes, data.mask)
    order = torch.Generator().manual_seed(config.seed)
    torch.manual_seed(config.seed)
    optimizer = torch.optim.Adam(captioner.parameters(), betas=(0.9, 0.98))
    steps, step = steps_of(len(data), config), 0
    captioner.train()
    for _ in range(config.epochs):
        shuffled = torch.randperm(len(data), generator=order)
        for index in torch.split(shuffled, config.batch_size):
            batch = data[index]
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps, config)
            logits = captioner(batch.features, batch.boxes, batch.mask, batch.words)
            loss = word_cross_entropy(
                logits,
                batch.targets,
                batch.target_mask,
                label_smoothing=config.label_smoothing,
            )
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(captioner.parameters(), config.clip)
            optimizer.step()
            on_step(loss.detach())
            step += 1
    captioner.eval()
