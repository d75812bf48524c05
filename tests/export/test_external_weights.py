"""Graphs with external weights, against NumPy."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ngsan.config import from_dict
from ngsan.export.external_weights import externalize_weights
from ngsan.predict.manifest import Made

RANDOM = np.random.default_rng(0)


def random_quantized(rows, length):
    """A random 8-bit matrix and its row scales."""
    numbers = RANDOM.integers(-127, 128, (rows, length)).astype(np.int8)
    return numbers, (RANDOM.random(rows) / 100 + 0.001).astype(np.float32)


def write(path, nodes, weights, inputs, outputs):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)


def run(path, made, tensors, fed):
    values = {name: from_dict(Made, how).of(tensors) for name, how in made.items()}
    options = onnxruntime.SessionOptions()
    given = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in values.values()]
    options.add_external_initializers(list(values), given)
    session = onnxruntime.InferenceSession(path.read_bytes(), options)
    return session.run(None, fed)


def quantized_rows(vectors, positive):
    """Vectors after 7-bit quantization, each with a scale of its own."""
    scale = np.maximum(np.abs(vectors).max(-1, keepdims=True), 1e-30) / (127 if positive else 63)
    return np.rint(vectors / scale) * scale


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("length", [16, 100, 512])
def test_products_with_quantized_matrices(length, positive, tmp_path):
    numbers, scale = random_quantized(24, length)
    tensors = {"layer.weight": numbers, "layer.weight.scale": scale}
    matrix = numbers * scale[:, None]
    path = tmp_path / "graph.onnx"
    write(
        path,
        [
            helper.make_node("Relu" if positive else "Identity", ["x"], ["vectors"]),
            helper.make_node("MatMul", ["vectors", "w"], ["y"]),
        ],
        {"w": np.ascontiguousarray(matrix.T)},
        {"x": (TensorProto.FLOAT, ["rows", length])},
        {"y": (TensorProto.FLOAT, ["rows", 24])},
    )
    made = externalize_weights(path, tensors)
    assert {(how["tensor"], how["way"]) for how in made.values()} == {
        ("layer.weight", "same"),
        ("layer.weight.scale", "same"),
    }
    for count in (1, 3, 70):
        x = RANDOM.standard_normal((count, length)).astype(np.float32)
        x[0] = 0
        (found,) = run(path, made, tensors, {"x": x})
        vectors = np.maximum(x, 0) if positive else x
        exact = vectors @ matrix.T
        wanted = quantized_rows(vectors, positive) @ matrix.T
        # Only ties may be rounded differently.
        assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()
        assert np.abs(found - wanted).mean() <= 0.1 * np.abs(exact - wanted).mean()
        assert not found[0].any()
        assert np.array_equal(run(path, made, tensors, {"x": x[-1:]})[0], found[-1:])


def test_products_do_not_saturate_in_16_bits(tmp_path):
    """Without VNNI, x86-64 adds two products in 16 bits: so must the largest of them fit."""
    tensors = {
        "layer.weight": np.full((16, 64), 127, np.int8),
        "layer.weight.scale": np.ones(16, np.float32),
    }
    path = tmp_path / "graph.onnx"
    for kind in ("Relu", "Identity"):
        write(
            path,
            [helper.make_node(kind, ["x"], ["v"]), helper.make_node("MatMul", ["v", "w"], ["y"])],
            {"w": np.full((64, 16), 127, np.float32)},
            {"x": (TensorProto.FLOAT, ["rows", 64])},
            {"y": (TensorProto.FLOAT, ["rows", 16])},
        )
        externalize_weights(path, tensors)
        model = onnx.load(path, load_external_data=False)
        (node,) = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
        fixed = {item.name: item for item in model.graph.initializer}
        step, zero = (numpy_helper.to_array(fixed[name]) for name in node.input[1:])
        largest = np.rint(1 / step) + zero
        assert 2 * largest * 127 < 2**15


def test_looked_up_rows_are_exact(tmp_path):
    numbers, scale = random_quantized(30, 40)
    tensors = {"embed": numbers, "embed.scale": scale, "other": np.ones(3, np.float32)}
    path = tmp_path / "graph.onnx"
    write(
        path,
        [helper.make_node("Gather", ["w", "ids"], ["y"])],
        {"w": numbers * scale[:, None]},
        {"ids": (TensorProto.INT64, ["images", "words"])},
        {"y": (TensorProto.FLOAT, ["images", "words", 40])},
    )
    made = externalize_weights(path, tensors)
    assert path.stat().st_size < 1000
    ids = RANDOM.integers(0, 30, (4, 5))
    (found,) = run(path, made, tensors, {"ids": ids})
    assert np.array_equal(found, (numbers * scale[:, None])[ids])


def test_other_uses_get_floats_and_constants_stay(tmp_path):
    numbers, scale = random_quantized(6, 6)
    tensors = {
        "square": numbers,
        "square.scale": scale,
        "half": RANDOM.standard_normal((2, 6)).astype(np.float16),
        "bias": RANDOM.standard_normal(6).astype(np.float32),
        "count": np.array(1),
    }
    matrix, half = numbers * scale[:, None], tensors["half"].astype(np.float32)
    path = tmp_path / "graph.onnx"
    write(
        path,
        [
            helper.make_node("MatMul", ["x", "as_it_is"], ["a"]),
            helper.make_node("MatMul", ["half", "a"], ["b"]),
            helper.make_node("Add", ["b", "bias"], ["c"]),
            helper.make_node("Mul", ["c", "constant"], ["d"]),
            helper.make_node("ReduceSum", ["d", "one"], ["y"]),
        ],
        {
            "as_it_is": matrix,
            "half": half,
            "bias": tensors["bias"],
            "constant": np.float32(3),
            "one": np.array([1]),
        },
        {"x": (TensorProto.FLOAT, [6, 6])},
        {"y": (TensorProto.FLOAT, [2, 1])},
    )
    made = externalize_weights(path, tensors)
    assert {name: how["tensor"] for name, how in made.items()} == {
        "as_it_is": "square",
        "half": "half",
        "bias": "bias",
    }
    x = RANDOM.standard_normal((6, 6)).astype(np.float32)
    wanted = ((half @ (x @ matrix) + tensors["bias"]) * 3).sum(1, keepdims=True)
    np.testing.assert_allclose(run(path, made, tensors, {"x": x})[0], wanted, rtol=1e-4, atol=1e-4)


def test_sums_over_regions_do_not_depend_on_the_number_of_images(tmp_path):
    path = tmp_path / "graph.onnx"
    write(
        path,
        [
            helper.make_node("ReduceSum", ["x", "one"], ["y"], keepdims=1),
            helper.make_node("ReduceSum", ["y", "one"], ["z"], keepdims=1),
        ],
        {"one": np.array([1])},
        {
            "x": (TensorProto.FLOAT, ["images", "regions", 48]),
            "mask": (TensorProto.BOOL, ["images", "regions"]),
        },
        {"z": (TensorProto.FLOAT, ["images", 1, 48])},
    )
    assert externalize_weights(path, {}) == {}
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds == ["Cast", "Unsqueeze", "MatMul", "ReduceSum"]
    x = RANDOM.standard_normal((5, 64, 48)).astype(np.float32)
    mask = np.arange(64) < np.array([64, 64, 30, 1, 64])[:, None]
    x[~mask] = 0
    (found,) = run(path, {}, {}, {"x": x, "mask": mask})
    np.testing.assert_allclose(found, x.sum(1, keepdims=True, dtype="f8"), atol=1e-5)
    for index in range(5):
        one = slice(index, index + 1)
        (alone,) = run(path, {}, {}, {"x": x[one], "mask": mask[one]})
        np.testing.assert_allclose(alone, found[one], rtol=0, atol=1e-6)


def test_means_over_cells_do_not_depend_on_the_number_of_images(tmp_path):
    path = tmp_path / "graph.onnx"
    write(
        path,
        [helper.make_node("ReduceMean", ["x", "one"], ["y"], keepdims=1)],
        {"one": np.array([1])},
        {"x": (TensorProto.FLOAT, ["images", 64, 48])},
        {"y": (TensorProto.FLOAT, ["images", 1, 48])},
    )
    externalize_weights(path, {})
    x = RANDOM.standard_normal((5, 64, 48)).astype(np.float32)
    (found,) = run(path, {}, {}, {"x": x})
    np.testing.assert_allclose(found, x.mean(1, keepdims=True, dtype="f8"), atol=1e-6)
    for index in range(5):
        (alone,) = run(path, {}, {}, {"x": x[index : index + 1]})
        np.testing.assert_allclose(alone, found[index : index + 1], rtol=0, atol=1e-7)


def test_graph_with_other_weights_raises(tmp_path):
    path = tmp_path / "graph.onnx"
    write(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"w": RANDOM.standard_normal((100, 100)).astype(np.float32)},
        {"x": (TensorProto.FLOAT, ["rows", 100])},
        {"y": (TensorProto.FLOAT, ["rows", 100])},
    )
    with pytest.raises(ValueError, match=r"w \[100, 100\] of the graph is not among the weights"):
        externalize_weights(path, {"w": RANDOM.standard_normal((100, 100)).astype(np.float32)})
