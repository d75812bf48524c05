"""Other views of images, made on the device.

Shapes: `B` images, `S` side of an image.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(images: Tensor, *, smallest: float = 0.6, light: float = 0.2) -> Tensor:
    """Crops, mirrors and lights images at random.

    Crops are stretched back to the whole, each side on its own, as the images themselves are
    squashed to squares. Draws from torch's global generator; never waits for the device.

    Args:
        images: (B, 3, S, S), bytes from 0 to 255 or numbers from 0 to 1.
        smallest: Of a crop's sides, as a share of the image's.
        light: Most change of brightness and of contrast.

    Returns:
        (B, 3, S, S) float32, 0 to 1.
    """
    count, device = len(images), images.device
    side = smallest + (1 - smallest) * torch.rand(count, 2, device=device)
    place = (2 * torch.rand(count, 2, device=device) - 1) * (1 - side)
    mirror = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    transform = torch.zeros(count, 2, 3, device=device)
    transform[:, 0, 0] = side[:, 0] * mirror
    transform[:, 1, 1] = side[:, 1]
    transform[:, :, 2] = place
    grid = F.affine_grid(transform, list(images.shape), align_corners=False)
    numbers = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    views = F.grid_sample(numbers, grid, padding_mode="border", align_corners=False)
    contrast = 1 + light * (2 * torch.rand(count, 1, 1, 1, device=device) - 1)
    brightness = light * (torch.rand(count, 1, 1, 1, device=device) - 0.5)
    mean = views.mean((1, 2, 3), keepdim=True)
    return ((views - mean) * contrast + mean + brightness).clamp(0, 1)
