"""The `.index` file of a checkpoint: a sorted table of keys and values in LevelDB's format.

Reference: doc/table_format.md of LevelDB; RFC 3720, appendix B.4, for CRC-32C.
"""

from __future__ import annotations

import os
import pathlib
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping

import google_crc32c

from estimator_bridge import errors

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
_BLOCK = 4096
_MASK_DELTA = 0xA282EAD8
# Keys share prefixes, so they may be longer than the file, but at most this many times as long.
_MAX_EXPANSION = 32


def read(path: str) -> dict[bytes, bytes]:
    try:
        # Opening a pipe would block, and a device has no end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise errors.UnreadableCheckpoint(
                f"{path}: it is not a regular file. Use another checkpoint."
            )
        data = pathlib.Path(path).read_bytes()
    except FileNotFoundError as error:
        raise errors.UnreadableCheckpoint(
            f"{path.removesuffix('.index')}: there is no such checkpoint, as its index is missing "
            f"({path}: {error.strerror}). Give the path of a checkpoint without "
            ".index, or a directory that contains a checkpoint."
        ) from error
    except OSError as error:
        raise errors.UnreadableCheckpoint(f"{path}: {error.strerror}.") from error
    try:
        return dict(_entries(data))
    except (IndexError, struct.error, ValueError) as error:
        raise errors.UnreadableCheckpoint(
            f"{path}: it is damaged, or not the index of a checkpoint ({error}). Use another "
            "checkpoint."
        ) from error


def build(entries: Mapping[bytes, bytes]) -> bytes:
    out = bytearray()
    positions: list[tuple[bytes, bytes]] = []
    block: list[tuple[bytes, bytes]] = []
    size = 0
    for key in sorted(entries):
        block.append((key, entries[key]))
        size += len(key) + len(entries[key])
        if size > _BLOCK:
            positions.append((key, _append(out, block)))
            block, size = [], 0
    if block:
        positions.append((block[-1][0], _append(out, block)))
    footer = _append(out, [])  # an empty block of metadata
    footer += _append(out, positions)
    return bytes(out) + footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def crc32c(data: bytes, crc: int = 0) -> int:
    """Computes a checksum; `crc` is the checksum of the bytes before `data`, if any."""
    return int(google_crc32c.extend(crc, data))


def mask(crc: int) -> int:
    # Stored checksums are masked, because files of checksums are often checksummed themselves.
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def put_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def get_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        byte = data[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError("a number is too long")


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("its end is missing")
    footer = data[-_FOOTER:]
    _, position = get_varint(footer, 0)
    _, position = get_varint(footer, position)
    key_bytes = 0
    for _, handle in _block_entries(_checked_block(data, footer[position:])):
        for key, value in _block_entries(_checked_block(data, handle)):
            key_bytes += len(key)
            if key_bytes > _MAX_EXPANSION * len(data):
                raise ValueError("its keys are too long")
            yield key, value


def _checked_block(data: bytes, handle: bytes) -> bytes:
    start, position = get_varint(handle, 0)
    size, _ = get_varint(handle, position)
    end = start + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise ValueError("a block lies beyond the end of the file")
    if struct.unpack_from("<I", data, end + 1)[0] != mask(crc32c(data[start : end + 1])):
        raise ValueError("the checksum of a block is wrong")
    if data[end]:
        raise ValueError("a block is compressed, but TensorFlow does not compress blocks")
    return data[start:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = get_varint(block, position)
        rest, position = get_varint(block, position)
        size, position = get_varint(block, position)
        if shared > len(key) or position + rest + size > end:
            raise ValueError("an entry lies beyond its block")
        key = key[:shared] + block[position : position + rest]
        position += rest
        yield key, block[position : position + size]
        position += size


def _append(out: bytearray, entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    data, starts = bytearray(), []
    for key, value in entries:
        # Every entry is a restart with its whole key, so that readers may use binary search.
        starts.append(len(data))
        data += b"\0" + put_varint(len(key)) + put_varint(len(value)) + key + value
    starts = starts or [0]
    data += struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))
    handle = put_varint(len(out)) + put_varint(len(data))
    out += data + b"\0" + struct.pack("<I", mask(crc32c(bytes(data) + b"\0")))
    return handle
