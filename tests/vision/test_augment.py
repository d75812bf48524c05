import torch

from ngsan.vision.photos import augment


def pictures(count=16, size=12):
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), generator=random, dtype=torch.uint8)


def test_without_crop_and_jitter_views_are_images_or_mirrored():
    torch.manual_seed(1)
    given = pictures()
    views, _ = augment(given, min_crop=1.0, color_jitter=0.0)
    kinds = set()
    for view, image in zip(views, given.float() / 255, strict=True):
        mirrored = torch.allclose(view, image.flip(-1), atol=1e-4)
        assert mirrored or torch.allclose(view, image, atol=1e-4)
        kinds.add(mirrored)
    assert kinds == {True, False}


def test_crops_of_a_ramp():
    torch.manual_seed(2)
    ramp = (torch.arange(64.0) / 63).expand(200, 3, 64, 64)
    views, _ = augment(ramp, min_crop=0.5, color_jitter=0.0)
    steps = (views[..., 33] - views[..., 32])[:, 0, 10].abs() * 63  # how fast the ramp rises
    assert steps.min() >= 0.5 - 1e-3
    assert steps.max() <= 1 + 1e-3
    assert abs(steps.mean() - 0.75) < 0.05  # fractions are uniformly distributed
    assert views.min() >= 0
    assert views.max() <= 1


def test_color_jitter_changes_the_whole_image():
    torch.manual_seed(3)
    grey = torch.full((50, 3, 8, 8), 0.5)
    views, _ = augment(grey, min_crop=1.0, color_jitter=0.2)
    flat = views.flatten(1)
    torch.testing.assert_close(flat.amax(1), flat.amin(1))
    assert (flat[:, 0] - 0.5).abs().max() <= 0.1 + 1e-5
    assert (flat[:, 0] - 0.5).abs().max() > 0.02


def test_seed_determines_the_views():
    given = pictures()
    first, second, third = (
        augment(given)[0] for seed in (5, 5, 6) if torch.manual_seed(seed) is not None
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert first.shape == given.shape


def test_boxes_move_with_what_they_hold():
    """A white rectangle is painted into each box, and found again in the views."""
    torch.manual_seed(4)
    count, size = 60, 128
    low = torch.rand(count, 2) * 0.6 + 0.05
    sides = torch.rand(count, 2) * 0.2 + 0.12
    images = torch.zeros(count, 3, size, size)
    boxes = torch.cat((low + sides / 2, sides), 1)[:, None]
    for image, (x, y), (w, h) in zip(images, low.tolist(), sides.tolist(), strict=True):
        left, top = round(x * size), round(y * size)
        image[:, top : round((y + h) * size), left : round((x + w) * size)] = 1
    views, moved = augment(images, boxes, min_crop=0.5, color_jitter=0.0)
    assert moved is not None
    whole = torch.tensor([0.5, 0.5, 1, 1])
    seen = gone = 0
    for view, (box,) in zip(views[:, 0], moved, strict=True):
        rows, columns = (view.amax(axis) > 0.5 for axis in (1, 0))
        if not rows.any() or not columns.any():
            near_border = torch.equal(box, whole) or box[2:].min() < 0.03
            assert near_border
            gone += torch.equal(box, whole)
            continue
        xs, ys = columns.nonzero().flatten() / size, rows.nonzero().flatten() / size
        edges = torch.stack((xs[0], ys[0], xs[-1] + 1 / size, ys[-1] + 1 / size))
        expected = torch.cat((box[:2] - box[2:] / 2, box[:2] + box[2:] / 2))
        torch.testing.assert_close(edges, expected, atol=0.025, rtol=0)
        seen += 1
    assert seen > 30
    assert gone > 0
