r"""Converts EfficientDet-Lite from a quantised TFLite file to the ONNX graph that ships.

    pip install tflite onnx
    python benchmarks/convert_detector.py efficientdet-lite2.tflite \
      -o src/ngsan/shipped/detector/detector.onnx

Computes in 8 bits as TFLite does, with its scales. Weights are stored with a slightly larger scale
where products of two weights with unsigned bytes could exceed 16 bits: CPUs without VNNI add them
in 16 bits and would saturate.

    pip install ai-edge-litert
    python benchmarks/convert_detector.py efficientdet-lite2.tflite -o detector.onnx \
      --golden tests/golden/detector.json

also writes what LiteRT, an independent program, computes of three example photographs: the highest
logit of each class over all anchors, and its own detections after suppression.
"""

import argparse
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tflite
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ngsan.text.objects import CLASSES

EXAMPLES = Path(__file__).parents[1] / "src" / "ngsan" / "examples"
GOLDEN = ("dogs.jpg", "coffee.jpg", "street.jpg")

UNUSED = "???"
"""The label of a class that stands for nothing; COCO's numbers have gaps."""

ANCHORS = 9
"""Anchors of a cell."""

XYWH = (1, 0, 3, 2)
"""TFLite's boxes are (y, x, height, width)."""

NONE, RELU6 = 0, 3
"""Fused activations of TFLite."""


def names_of(table: Any) -> dict[int, str]:
    """The names of a flatbuffer enumeration by value."""
    return {value: name for name, value in vars(table).items() if not name.startswith("_")}


class Source:
    """The TFLite file."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self._model = tflite.Model.GetRootAsModel(self.content, 0)
        self.graph = self._model.Subgraphs(0)
        self._operators = names_of(tflite.BuiltinOperator)
        self._types = names_of(tflite.TensorType)
        with zipfile.ZipFile(path) as more:  # a file appended to the flatbuffer
            labels = more.read("labelmap.txt").decode().splitlines()
        self.labels = [*labels, *[UNUSED] * (90 - len(labels))]
        """The classes of the head, with gaps."""

    def operators(self) -> list[tuple[str, Any]]:
        """Every operator with its name, in the order of computation."""
        found = []
        for number in range(self.graph.OperatorsLength()):
            operator = self.graph.Operators(number)
            code = self._model.OperatorCodes(operator.OpcodeIndex())
            builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            found.append((self._operators[builtin], operator))
        return found

    def shape(self, tensor: int) -> list[int]:
        return [int(size) for size in self.graph.Tensors(tensor).ShapeAsNumpy()]

    def scale(self, tensor: int) -> tuple[NDArray[np.float32], int]:
        """The scales and the zero point."""
        found = self.graph.Tensors(tensor).Quantization()
        points = found.ZeroPointAsNumpy()
        assert len(set(points.tolist())) == 1, "one zero point for all channels"
        return found.ScaleAsNumpy().astype(np.float32), int(points[0])

    def values(self, tensor: int) -> NDArray[Any]:
        """A constant."""
        about = self.graph.Tensors(tensor)
        kind = np.dtype(self._types[about.Type()].lower())
        content = self._model.Buffers(about.Buffer()).DataAsNumpy().tobytes()
        return np.frombuffer(content, kind).reshape(self.shape(tensor))

    def options(self, operator: Any, kind: Any) -> Any:
        """The options of an operator, whose table has a type of its own."""
        table, found = operator.BuiltinOptions(), kind()
        found.Init(table.Bytes, table.Pos)
        return found


class Converter:
    """Builds the ONNX graph; its tensors are (B, channels, height, width).

    An activation is a tensor of bytes, with TFLite's scale and its zero point raised by 128.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        """The ONNX tensor of a TFLite tensor."""
        self.bytes_of: dict[int, int] = {}
        """TFLite's tensor of bytes behind one of floats."""

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)
        return name

    def scale(self, tensor: int) -> list[str]:
        """The names of an activation's scale and zero point, both scalars."""
        (scale,), point = self.source.scale(tensor)
        raised = point if tensor == self.source.graph.Inputs(0) else point + 128
        return [
            self.constant(f"scale{tensor}", np.float32(scale)),
            self.constant(f"zero{tensor}", np.uint8(raised)),
        ]

    def pixels(self, operator: Any) -> None:
        """The pixels, which are bytes already."""
        given, out = operator.Inputs(0), operator.Outputs(0)
        assert self.source.scale(given)[1] == self.source.scale(out)[1] + 128
        self.names[out] = self.add("Transpose", ["images"], "pixels", perm=[0, 3, 1, 2])

    def convolution(self, operator: Any, *, depthwise: bool) -> None:
        given, matrix, bias = (operator.Inputs(number) for number in range(3))
        out, source = operator.Outputs(0), self.source
        kind = tflite.DepthwiseConv2DOptions if depthwise else tflite.Conv2DOptions
        options = source.options(operator, kind)
        assert options.DilationHFactor() == options.DilationWFactor() == 1
        assert source.scale(matrix)[1] == 0, "weights are symmetric"
        weight, scale = source.values(matrix), source.scale(matrix)[0]
        # TFLite has (outputs, h, w, inputs), or (1, h, w, channels) if depthwise.
        weight = weight.transpose(3, 0, 1, 2) if depthwise else weight.transpose(0, 3, 1, 2)
        biases = source.values(bias) * source.scale(bias)[0].astype(np.float64)
        if (rows := self.head_rows(len(weight))) is not None:
            weight, scale, biases = weight[rows], scale[rows], biases[rows]
        if not depthwise:
            weight, scale = without_saturation(weight, scale)
        step = scale * source.scale(given)[0]
        self.check_activation(options, out)
        self.names[out] = self.add(
            "QLinearConv",
            [
                self.names[given],
                *self.scale(given),
                self.constant(f"weight{out}", weight),
                self.constant(f"weight_scale{out}", scale),
                self.constant(f"weight_zero{out}", np.zeros(len(scale), np.int8)),
                *self.scale(out),
                self.constant(f"bias{out}", np.rint(biases / step).astype(np.int32)),
            ],
            f"conv{out}",
            group=len(weight) if depthwise else 1,
            **self.window(operator, list(weight.shape[2:]), options),
        )

    def check_activation(self, options: Any, out: int) -> None:
        """The range of a tensor of bytes implies its ReLU6, as it does in TFLite."""
        (scale,), point = self.source.scale(out)
        activation = options.FusedActivationFunction()
        assert activation == NONE or (activation == RELU6 and point == -128 and 255 * scale < 6.01)

    def head_rows(self, outputs: int) -> NDArray[np.int64] | None:
        """Which outputs of a convolution to keep: COCO's classes, or a box as (x, y, w, h)."""
        labels = self.source.labels
        used = [number for number, name in enumerate(labels) if name != UNUSED]
        for width, chosen in ((len(labels), used), (len(XYWH), XYWH)):
            if outputs == ANCHORS * width:
                return (np.arange(ANCHORS)[:, None] * width + np.array(chosen)).ravel()
        return None

    def window(self, operator: Any, kernel: list[int], options: Any) -> dict[str, list[int]]:
        """The attributes of a convolution or pool, with TensorFlow's padding as numbers."""
        stride = [options.StrideH(), options.StrideW()]
        given, made = (self.source.shape(t) for t in (operator.Inputs(0), operator.Outputs(0)))
        total = [
            max(0, (made[axis + 1] - 1) * stride[axis] + kernel[axis] - given[axis + 1])
            for axis in range(2)
        ]
        # An odd pixel goes last.
        pads = [*(size // 2 for size in total), *(size - size // 2 for size in total)]
        return {"kernel_shape": kernel, "strides": stride, "pads": pads}

    def pool(self, operator: Any) -> None:
        given, out = operator.Inputs(0), operator.Outputs(0)
        self.same_scale(given, out)
        options = self.source.options(operator, tflite.Pool2DOptions)
        window = self.window(operator, [options.FilterHeight(), options.FilterWidth()], options)
        self.names[out] = self.add("MaxPool", [self.names[given]], f"pool{out}", **window)

    def resize(self, operator: Any) -> None:
        given, out = operator.Inputs(0), operator.Outputs(0)
        self.same_scale(given, out)
        options = self.source.options(operator, tflite.ResizeNearestNeighborOptions)
        assert not options.AlignCorners()
        before, after = self.source.shape(given)[1:3], self.source.shape(out)[1:3]
        factors = [1, 1, *(b / a for a, b in zip(before, after, strict=True))]
        scales = self.constant(f"factors{out}", np.array(factors, np.float32))
        centres = "half_pixel" if options.HalfPixelCenters() else "asymmetric"
        self.names[out] = self.add(
            "Resize",
            [self.names[given], "", scales],
            f"resize{out}",
            mode="nearest",
            coordinate_transformation_mode=centres,
            nearest_mode="floor",
        )

    def same_scale(self, given: int, out: int) -> None:
        one, other = self.source.scale(given), self.source.scale(out)
        assert one[0] == other[0], "the scale stays"
        assert one[1] == other[1], "the zero point stays"

    def sum(self, operator: Any) -> None:
        out = operator.Outputs(0)
        self.check_activation(self.source.options(operator, tflite.AddOptions), out)
        inputs: list[str] = []
        for number in range(2):
            given = operator.Inputs(number)
            inputs += [self.names[given], *self.scale(given)]
        inputs += self.scale(out)
        self.names[out] = self.add("QLinearAdd", inputs, f"sum{out}", domain="com.microsoft")

    def rows(self, operator: Any) -> None:
        """The predictions of a level, (B, K * width, height, width), as (B, anchors, width)."""
        given, out = operator.Inputs(0), operator.Outputs(0)
        width = self.source.shape(out)[-1]
        width = len(CLASSES) if width == len(self.source.labels) else width
        last = self.add("Transpose", [self.names[given]], f"last{out}", perm=[0, 2, 3, 1])
        shape = self.constant(f"rows_of_{width}", np.array([0, -1, width], np.int64))
        self.names[out] = self.add("Reshape", [last, shape], f"rows{out}")

    def concatenation(self, operator: Any) -> None:
        out = operator.Outputs(0)
        given = [operator.Inputs(number) for number in range(operator.InputsLength())]
        for one in given:
            self.same_scale(one, out)
        parts = [self.names[one] for one in given]
        self.names[out] = self.add("Concat", parts, f"concat{out}", axis=1)

    def outputs(self, operator: Any) -> NDArray[np.float32]:
        """Names the logits, and decodes offsets from the anchors to boxes; returns the anchors."""
        offsets, logits, places = (operator.Inputs(number) for number in range(3))
        anchors = self.source.values(places)[None, :, XYWH]
        self.add("Identity", [self.names[self.bytes_of[logits]]], "logits")
        held = self.bytes_of[offsets]
        self.add("DequantizeLinear", [self.names[held], *self.scale(held)], "offsets")
        halves = self.constant("halves", np.array([2, 2], np.int64))
        self.nodes.append(helper.make_node("Split", ["offsets", halves], ["move", "grow"], axis=2))
        sides = self.constant("anchor_sides", anchors[..., 2:])
        self.add("Mul", ["move", sides], "moved")
        self.add("Add", ["moved", self.constant("anchor_centres", anchors[..., :2])], "centres")
        self.add("Exp", ["grow"], "factors")
        self.add("Mul", ["factors", sides], "sides")
        self.add("Concat", ["centres", "sides"], "boxes", axis=2)
        return anchors


def without_saturation(
    weight: NDArray[np.int8], scale: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Weights (outputs, inputs, h, w) and scales so that no two neighbours exceed 16 bits.

    255 times the sum of two neighbours of one sign must be below 2**15. Neighbours are those of a
    row in either order: inputs, or (inputs, h, w).
    """
    limit = (2**15 - 1) // 255
    made, scales = weight.copy(), scale.copy()
    for output, values in enumerate(weight):
        for step in range(64):
            factor = 1 + step / 64
            rounded = np.rint(values / factor).astype(np.int16)
            if largest_pair(rounded) <= limit:
                made[output], scales[output] = rounded, scale[output] * factor
                break
        else:
            raise ValueError("twice the scale always suffices")
    return made, scales


def largest_pair(values: NDArray[np.int16]) -> int:
    """The largest sum of two neighbours of one sign, in any order in which a kernel may lie."""
    sums = []
    for order in ((0, 1, 2), (1, 2, 0)):
        row = values.transpose(order).ravel()
        row = np.pad(row, (0, -len(row) % 2)).reshape(-1, 2)
        sums += [row.clip(0).sum(1).max(), -row.clip(None, 0).sum(1).min()]
    return int(max(sums))


def convert(source: Source) -> onnx.ModelProto:
    """The graph: images (B, S, S, 3) of bytes to logits (B, A, C) of bytes and boxes (B, A, 4)."""
    assert tuple(name for name in source.labels if name != UNUSED) == CLASSES
    made = Converter(source)
    scale: dict[str, float] = {}
    count = 0
    for kind, operator in source.operators():
        match kind:
            case "QUANTIZE":
                made.pixels(operator)
            case "CONV_2D" | "DEPTHWISE_CONV_2D":
                made.convolution(operator, depthwise=kind.startswith("DEPTHWISE"))
            case "ADD":
                made.sum(operator)
            case "MAX_POOL_2D":
                made.pool(operator)
            case "RESIZE_NEAREST_NEIGHBOR":
                made.resize(operator)
            case "RESHAPE":
                made.rows(operator)
            case "CONCATENATION":
                made.concatenation(operator)
            case "LOGISTIC":  # whoever reads the logits computes it
                logits = operator.Inputs(0)
                made.names[operator.Outputs(0)] = made.names[logits]
                (step,), point = source.scale(logits)
                scale = {"scale": float(step), "zero": point + 128}
            case "DEQUANTIZE":
                made.bytes_of[operator.Outputs(0)] = operator.Inputs(0)
            case "CUSTOM":
                count = made.outputs(operator).shape[1]
            case _:
                raise ValueError(f"unknown operator {kind}")
    size = source.shape(source.graph.Inputs(0))[1]
    shapes = [("logits", TensorProto.UINT8, len(CLASSES)), ("boxes", TensorProto.FLOAT, 4)]
    graph = helper.make_graph(
        made.nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["images", size, size, 3])],
        [
            helper.make_tensor_value_info(name, kind, ["images", count, width])
            for name, kind, width in shapes
        ],
        list(made.constants.values()),
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=8)
    about = {
        "names": json.dumps(CLASSES),
        "logits": json.dumps(scale),
        "source": "EfficientDet-Lite, Google, Apache-2.0",
        "source_sha256": hashlib.sha256(source.content).hexdigest(),
    }
    helper.set_model_props(model, about)
    onnx.checker.check_model(model)
    return model


def golden(source: Path, photographs: list[Path], size: int) -> dict[str, Any]:
    """What LiteRT computes of photographs."""
    from ai_edge_litert.interpreter import Interpreter
    from PIL import Image

    about = Source(source)
    (logistic,) = (one for name, one in about.operators() if name == "LOGISTIC")
    used = [number for number, name in enumerate(about.labels) if name != UNUSED]
    model = Interpreter(str(source), num_threads=1, experimental_preserve_all_tensors=True)
    model.allocate_tensors()
    found = {}
    for path in photographs:
        # Without the reductions that a resize may begin with, so that others can repeat it.
        image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        model.set_tensor(0, np.asarray(image)[None])
        model.invoke()
        (step,), point = about.scale(logistic.Inputs(0))
        logits = (model.get_tensor(logistic.Inputs(0))[0].astype(int) - point).max(0) * step
        boxes, classes, scores, _ = (
            model.get_tensor(part["index"]) for part in model.get_output_details()
        )
        found[path.name] = {
            "logits": [round(float(logits[number]), 4) for number in used],
            "detections": [
                {
                    "label": about.labels[int(number)],
                    "score": round(float(score), 4),
                    "corners": [round(float(box[side]), 5) for side in XYWH],
                }
                for box, number, score in zip(boxes[0], classes[0], scores[0], strict=True)
                if score >= 0.3
            ],
        }
    return found


def main() -> None:
    """Converts, and writes golden numbers if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--golden", type=Path, help="JSON file for what LiteRT computes")
    options = parser.parse_args()
    content = convert(Source(options.source)).SerializeToString()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_bytes(content)
    print(f"wrote {options.output}, {len(content):,} bytes")
    if options.golden:
        source = Source(options.source)
        size = source.shape(source.graph.Inputs(0))[1]
        found = golden(options.source, [EXAMPLES / name for name in GOLDEN], size)
        options.golden.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
