"""The file of a model's weights: safetensors, with a signature over everything in it.

Its metadata are text by name; `signature` among them covers the others and every tensor.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ngsan.atomic_io import check_regular
from ngsan.models.quantize import SCHEME, dequantize_weights


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors needs them: on the CPU, contiguous, no two in the same memory."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        found[name] = tensor
    return found


def content_signature(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over metadata, other than a signature, and each tensor's name, type, shape, bytes.

    Unlike a checksum of the file it does not depend on the order in which the file has them.

    Args:
        tensors: From `on_host`, or loaded.
        metadata: Of the file.
    """
    rest = {key: value for key, value in metadata.items() if key != "signature"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose bytes follow from its content.

    The library writes the metadata in an order that changes from process to process.
    """
    raw = save(dict(tensors), dict(metadata))
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + raw[8 + size :]


def read_weights(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata of a weights' file after a check of its signature, and its tensors in floats."""
    try:
        with _opened(path) as file:  # once, as the file may be replaced meanwhile
            metadata = _parse(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            content = file.read()
        tensors = load(content)
        if content_signature(tensors, metadata) != metadata["signature"]:
            raise ValueError("its content is not what its signature says")
        if "rounding" in metadata:
            if metadata["rounding"] != SCHEME:
                raise ValueError(f"its rounding {metadata['rounding']!r} is not known here")
            tensors = dequantize_weights(tensors)
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged or no weights: {error}") from error
    return metadata, tensors


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a weights' file, whose tensors are not read."""
    try:
        with _opened(path) as file:
            return _parse(file, os.fstat(file.fileno()).st_size)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged or no weights: {error}") from error


def _opened(path: Path) -> BinaryIO:
    check_regular(path)
    return path.open("rb")


def _parse(file: BinaryIO, size: int) -> dict[str, str]:
    """The metadata at the beginning of a safetensors file: a length of 8 bytes, then JSON."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = file.read(length)
    if not header.rstrip(b" ").endswith(b"}"):  # it is padded with spaces and nothing else
        raise ValueError("the header does not end as it should")
    try:
        values = json.loads(header)
    except RecursionError as error:
        raise ValueError("the header is nested too deeply") from error
    metadata = values.get("__metadata__") if isinstance(values, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("signature"), str):
        raise ValueError("it has no signature in its metadata; save the model anew")
    return metadata


def check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], problem: str) -> None:
    """Refuses tensors of other names or shapes than expected."""
    wanted, shapes = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for tensors in (expected, found)
    )
    if wanted != shapes:
        wrong = min(set(wanted.items()) ^ set(shapes.items()))[0]
        raise ValueError(
            f"{problem}: {wrong} is {shapes.get(wrong, 'absent')}, "
            f"expected {wanted.get(wrong, 'nothing of that name')}"
        )
