"""Keywords of photographs, from an eye that no caption has trained.

Needs only NumPy and ONNX Runtime.

Shapes: `B` images, `S` side of an image, `P` pooled vectors of an image, `C` their width.
"""

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EYE = "eye.onnx"
"""The graph in a folder of keywords."""


class Eye:
    """The network of the second eye, in ONNX Runtime; several threads may use it.

    Attributes:
        size: S.
        width: C.
        signature: Identifies the network.
    """

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Opens the graph.

        Args:
            path: The file.
            threads: Threads of ONNX Runtime.

        Raises:
            ValueError: The file is missing or damaged.
        """
        runtime: Any = import_module("onnxruntime")
        state: Any = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        if not path.is_file():
            raise ValueError(f"{path}: file not found")
        content = path.read_bytes()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = runtime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except (state.Fail, state.InvalidProtobuf, state.InvalidGraph) as error:
            raise ValueError(f"{path}: ONNX Runtime cannot open it: {error}") from error
        self.size = int(self._session.get_inputs()[0].shape[1])
        self.width = int(self._session.get_outputs()[0].shape[2])
        self.signature = hashlib.sha256(content).hexdigest()[:12]

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The pooled features (B, P, C) of images (B, S, S, 3), one image at a time."""
        # Several at a time are no faster and take more memory.
        parts = [self._session.run(["features"], {"images": image[None]})[0] for image in images]
        return np.concatenate(parts) if parts else np.zeros((0, 8, self.width), np.float32)
