"""Pooling of boxes from a map, against interpolation point by point."""

import torch

from ngsan.nn.pooling import pool_boxes


def test_pooling_equals_interpolation_at_every_point():
    torch.manual_seed(0)
    maps = torch.randn(2, 5, 7, 7, dtype=torch.float64)
    boxes = torch.rand(2, 6, 4, dtype=torch.float64) * 0.8 + 0.1
    points = 4
    found = pool_boxes(maps, boxes, points=points)
    for image in range(2):
        for region in range(6):
            cx, cy, w, h = boxes[image, region].tolist()
            steps = [(number + 0.5) / points - 0.5 for number in range(points)]
            grid = torch.tensor([[[cx + w * x, cy + h * y] for x in steps] for y in steps])
            sampled = torch.nn.functional.grid_sample(
                maps[image : image + 1],
                (2 * grid - 1)[None].double(),
                align_corners=False,
                padding_mode="border",
            )
            torch.testing.assert_close(
                found[image, region], sampled[0].mean((1, 2)), atol=1e-6, rtol=1e-5
            )


def test_whole_image_pools_to_the_mean_and_gradients_flow():
    maps = torch.randn(1, 3, 4, 4, requires_grad=True)
    whole = torch.tensor([[[0.5, 0.5, 1.0, 1.0]]])
    pooled = pool_boxes(maps, whole, points=4)
    torch.testing.assert_close(pooled[0, 0], maps.mean((2, 3))[0])
    pooled.sum().backward()
    torch.testing.assert_close(maps.grad, torch.full_like(maps, 1 / 16))
