"""A short loop for data that is held in memory, without checkpoints: for demonstrations."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ngsan.config import CrossEntropyConfig
from ngsan.data.batch import CaptionBatch
from ngsan.models.captioner import Captioner
from ngsan.nn.geometry import check_boxes
from ngsan.train.cross_entropy import CrossEntropyLoss
from ngsan.train.schedule import rate_at
from ngsan.train.step import Clip, build_optimizer, set_rate


def steps_of(count: int, config: CrossEntropyConfig) -> int:
    """The number of steps that training on `count` images takes."""
    return config.epochs * math.ceil(count / config.batch_size)


def train_in_memory(
    captioner: Captioner,
    data: CaptionBatch,
    config: CrossEntropyConfig,
    *,
    seed: int = 0,
    on_step: Callable[[Tensor], None] = lambda loss: None,
) -> None:
    """Trains a captioner in place by cross-entropy.

    Args:
        captioner: The model.
        data: What it learns from, where the model is.
        config: How; validation, patience and averages are not for this loop.
        seed: Of the order of the images and of dropout.
        on_step: Called with the loss after every step; to read it waits for the device.

    Note: dropout draws from torch's global generator, which is seeded here.
    """
    if data.boxes is not None:
        check_boxes(data.boxes, data.mask)
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    module = CrossEntropyLoss(captioner, label_smoothing=config.label_smoothing)
    optimizer = build_optimizer(module, data.features.device, weight_decay=config.weight_decay)
    clip, parameters = Clip(config.clip_value, config.clip_norm), list(module.parameters())
    steps, step = math.ceil(len(data) / config.batch_size), 0
    captioner.train()
    for _ in range(config.epochs):
        shuffled = torch.randperm(len(data), generator=order)
        for index in torch.split(shuffled, config.batch_size):
            batch = data[index]
            set_rate(optimizer, rate_at(config.rate, step=step, steps=steps, epochs=config.epochs))
            total, count = module(
                batch.features,
                batch.boxes,
                batch.mask,
                batch.words,
                batch.targets,
                batch.target_mask,
            )
            loss = total / count.clamp(min=1)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            clip(parameters)
            optimizer.step()
            on_step(loss.detach())
            step += 1
    captioner.eval()
