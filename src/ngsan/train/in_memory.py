"""A short training loop for data in memory, without checkpoints: for demonstrations."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ngsan.config import CrossEntropyConfig
from ngsan.data.batch import CaptionBatch
from ngsan.models.captioner import CaptionerModel
from ngsan.nn.geometry import check_boxes
from ngsan.threads import limit_torch_threads
from ngsan.train.step import build_optimizer, clip_gradients, learning_rate, set_lr
from ngsan.train.tasks.captioning import CrossEntropyLoss


def count_steps(count: int, config: CrossEntropyConfig) -> int:
    """The number of steps of training on `count` images."""
    return config.epochs * math.ceil(count / config.batch_size)


def train_in_memory(
    captioner: CaptionerModel,
    data: CaptionBatch,
    config: CrossEntropyConfig,
    *,
    seed: int = 0,
    on_step: Callable[[Tensor], None] = lambda loss: None,
) -> None:
    """Trains a captioner in place by cross-entropy.

    Args:
        captioner: The model.
        data: The training data, on the model's device.
        config: The phase; validation, patience and averages do not apply.
        seed: Seed of the order of the images and of dropout.
        on_step: Called with the loss after every step; reading it waits for the device.

    Note: dropout uses torch's global generator, which is seeded here.
    """
    if data.boxes is not None:
        check_boxes(data.boxes, data.mask)
    limit_torch_threads(sum(part.numel() for part in captioner.parameters()))
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    module = CrossEntropyLoss(captioner, label_smoothing=config.label_smoothing)
    optimizer = build_optimizer(module, data.features.device, weight_decay=config.weight_decay)
    parameters = list(module.parameters())
    steps, step = math.ceil(len(data) / config.batch_size), 0
    captioner.train()
    for _ in range(config.epochs):
        shuffled = torch.randperm(len(data), generator=order)
        for index in torch.split(shuffled, config.batch_size):
            batch = data[index]
            lr = learning_rate(config.schedule, step=step, steps=steps, epochs=config.epochs)
            set_lr(optimizer, lr)
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
            clip_gradients(parameters, config)
            optimizer.step()
            on_step(loss.detach())
            step += 1
    captioner.eval()
