"""The keys of slices in the index of a checkpoint.

Reference: tensor_slice_util.h and ordered_code.h of TensorFlow.
"""

from __future__ import annotations

from tf2_engine.types import Message


def slice_key(name: str, part: Message) -> bytes:
    """Returns the key of a slice's entry; keys sort as (name, extents) would.

    Args:
        name: the name of the tensor.
        part: a `TensorSliceProto`.
    """
    key = _number(0) + name.encode().replace(b"\0", b"\0\xff").replace(b"\xff", b"\xff\0")
    key += b"\0\1" + _number(len(part.extent))
    for extent in part.extent:
        key += _signed(extent.start) + _signed(extent.length if extent.HasField("length") else -1)
    return key


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _signed(value: int) -> bytes:
    if value < 0:
        return b"\x7f"  # only -1 occurs
    # As many leading ones as there are bytes, then a zero, then the value.
    size = value.bit_length() // 7 + 1
    return ((((1 << size) - 1) << (7 * size)) | value).to_bytes(size, "big")
