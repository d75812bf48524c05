"""How many threads suit a model: small tensors are faster on one thread than on several."""

import os

SMALL_MODEL = 3_000_000
"""Parameters below which a second thread costs more time than it saves."""


def check_threads(threads: int) -> None:
    """Raises a `ValueError` unless a process may sensibly have this number of threads."""
    most = max(64, 4 * (os.cpu_count() or 1))
    if not 1 <= threads <= most:
        raise ValueError(f"threads: {threads} is not from 1 to {most}")


def limit_torch_threads(parameters: int) -> None:
    """Makes torch compute on one thread if the model is small; OMP_NUM_THREADS takes precedence.

    The setting holds for the whole process, so call it where training or a command starts.

    Args:
        parameters: The number of parameters of the largest model that the process runs.
    """
    if parameters < SMALL_MODEL and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(1)
