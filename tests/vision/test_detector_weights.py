"""The detector's backbone in our network, against the detector's own graph in 8 bits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ngsan.vision.backbone import build_backbone
from ngsan.vision.detector import SHIPPED_DETECTOR
from ngsan.vision.detector_weights import load_detector_weights
from ngsan.vision.images import open_image, to_square

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

EXAMPLES = Path(__file__).parents[2] / "src" / "ngsan" / "examples"


def test_cells_equal_those_of_the_detector():
    model = onnx.load(SHIPPED_DETECTOR)
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    (last,) = (
        node
        for node in model.graph.node
        if node.op_type == "QLinearConv" and constants[node.input[3]].shape == (352, 1248, 1, 1)
    )
    kind = onnx.TensorProto.UINT8
    model.graph.output.append(onnx.helper.make_tensor_value_info(last.output[0], kind, None))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    pixels = to_square(open_image(EXAMPLES / "dogs.jpg"), 448)
    (held,) = session.run([last.output[0]], {"images": pixels[None]})
    wanted = (held[0].astype(np.float32) - constants[last.input[7]]) * constants[last.input[6]]
    backbone = build_backbone("efficientnet-lite2", size=448, pretrained=False).eval()
    load_detector_weights(backbone)
    with torch.inference_mode():
        cells = backbone(torch.from_numpy(pixels)[None].permute(0, 3, 1, 2))[0].T.numpy()
    assert np.corrcoef(cells.ravel(), wanted.ravel())[0, 1] > 0.99
    assert np.abs(cells.mean() - wanted.mean()) < 0.02


def test_other_backbones_raise():
    for name, top in (("efficientnet-lite0", "features"), ("efficientnet-lite2", "head")):
        backbone = build_backbone(name, pretrained=False, top=top)
        with pytest.raises(ValueError, match=r"set vision\.weights to own"):
            load_detector_weights(backbone)
