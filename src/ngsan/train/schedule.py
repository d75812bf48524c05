"""The learning rate of a step."""

import math

from ngsan.config import RateConfig


def rate_at(config: RateConfig, *, step: int, steps: int, epochs: int) -> float:
    """The learning rate of a step of a phase.

    Args:
        config: The shape of the rate over the epochs.
        step: Steps of the phase that are done.
        steps: Steps of an epoch.
        epochs: Epochs of the phase.

    Note: "halved every 3 epochs after epoch 6" is read as: epochs 7 to 9 have half the highest
        rate, epochs 10 to 12 a quarter, and so on.
    """
    if config.shape == "halving":
        epoch = step // steps + 1
        halvings = max(0, math.ceil((epoch - config.halve_after) / config.halve_every))
        risen = min(1.0, epoch / config.rise) if config.rise else 1.0
        return config.highest * risen * 0.5**halvings
    rise = min(round(config.rise * steps), epochs * steps)
    if step < rise:
        return config.highest * (step + 1) / rise
    if config.shape == "constant":
        return config.highest
    if config.shape == "inverse-root":
        return config.highest * math.sqrt(max(1, rise) / (step + 1))
    done = (step - rise) / max(1, epochs * steps - rise)
    return config.highest * (1 + math.cos(math.pi * done)) / 2
