"""Logistic regression on few inputs, by Newton's method."""

import numpy as np
from numpy.typing import NDArray

_STEPS = 50
_CLOSE = 1e-9


def fit_logistic(
    inputs: NDArray[np.float64], outcomes: NDArray[np.bool_], *, ridge: float = 0.0
) -> NDArray[np.float64]:
    """Finds the coefficients with the highest likelihood.

    Args:
        inputs: (M, D); for an intercept, a column of ones.
        outcomes: (M,) what happened.
        ridge: Penalty of the squared coefficients, as if by this many observations; not of the
            last one, which is the intercept.

    Returns:
        (D,) coefficients.

    Raises:
        ValueError: All outcomes are the same.
    """
    if outcomes.all() or not outcomes.any():
        raise ValueError(f"all {len(outcomes)} outcomes are the same: there is nothing to learn")
    count, width = inputs.shape
    penalty = np.full(width, ridge)
    penalty[-1] = 0
    found = np.zeros(width)
    for _ in range(_STEPS):
        chance = probabilities(inputs @ found)
        slope = inputs.T @ (chance - outcomes) + penalty * found
        curve = (inputs.T * (chance * (1 - chance))) @ inputs + np.diag(penalty)
        step = np.linalg.solve(curve + 1e-9 * count * np.eye(width), slope)
        found -= step
        if np.abs(step).max() < _CLOSE:
            break
    return found


def probabilities(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of log-odds."""
    return np.exp(-np.logaddexp(0, -log_odds))
