"""Writing captioners as ONNX graphs."""
