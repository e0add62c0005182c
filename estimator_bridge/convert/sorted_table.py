"""The `.index` file of a checkpoint: a sorted table of keys and values, as LevelDB writes them.

A file is blocks of entries, then a block that tells where those are, then a footer. An entry has
the length of what its key shares with the one before. Every block is followed by a byte for its
compression and a masked CRC-32C.

Reference: doc/table_format.md of LevelDB. TensorFlow writes blocks uncompressed.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping

from estimator_bridge import errors
from estimator_bridge.convert.crc32c import crc32c, mask

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
_BLOCK = 4096
# Keys share beginnings, so a small file may stand for long keys; honest ones do not go this far.
_MOST_GROWTH = 32


def read(path: str) -> dict[bytes, bytes]:
    """Returns the entries of a file.

    Raises:
        UnreadableCheckpoint: the file is missing or damaged; the message names it.
    """
    try:
        # A pipe would be waited for, and a device has no end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise errors.UnreadableCheckpoint(f"{path}: it is no file. Use another checkpoint.")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise errors.UnreadableCheckpoint(f"{path}: {error.strerror}.") from error
    try:
        return dict(_entries(data))
    except (IndexError, struct.error, ValueError) as error:
        raise errors.UnreadableCheckpoint(
            f"{path}: it is damaged, or no index of a checkpoint ({error}). Use another checkpoint."
        ) from error


def build(entries: Mapping[bytes, bytes]) -> bytes:
    """Returns a file with these entries."""
    out = bytearray()
    index: list[tuple[bytes, bytes]] = []
    block: list[tuple[bytes, bytes]] = []

    def flush() -> bytes:
        at = len(out)
        data = _block(block)
        out.extend(data)
        out.extend(b"\0" + struct.pack("<I", mask(crc32c(data + b"\0"))))
        return put_varint(at) + put_varint(len(data))

    size = 0
    for key in sorted(entries):
        block.append((key, entries[key]))
        size += len(key) + len(entries[key])
        if size > _BLOCK:
            index.append((key, flush()))
            block, size = [], 0
    if block:
        index.append((block[-1][0], flush()))
    block = []
    footer = flush()  # the block for meta data, of which there is none
    block = index
    footer += flush()
    return bytes(out) + footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def put_varint(value: int) -> bytes:
    """Returns an integer of at least 0 as a varint of protocol buffers."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def get_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns an integer, and where the next thing begins.

    Raises:
        IndexError, ValueError: there is none.
    """
    value = 0
    for count in range(10):
        byte = data[at + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    raise ValueError("a number is too long")


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("its end is missing")
    footer = data[-_FOOTER:]
    _, at = get_varint(footer, 0)
    _, at = get_varint(footer, at)
    grown = 0
    for _, handle in _block_entries(_checked_block(data, footer[at:])):
        for key, value in _block_entries(_checked_block(data, handle)):
            grown += len(key)
            if grown > _MOST_GROWTH * len(data):
                raise ValueError("its keys are too long")
            yield key, value


def _checked_block(data: bytes, handle: bytes) -> bytes:
    start, at = get_varint(handle, 0)
    size, _ = get_varint(handle, at)
    end = start + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise ValueError("a block lies beyond its end")
    if struct.unpack_from("<I", data, end + 1)[0] != mask(crc32c(data[start : end + 1])):
        raise ValueError("the checksum of a block is wrong")
    if data[end]:
        raise ValueError("a block is compressed, which TensorFlow does not do")
    return data[start:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    at, key = 0, b""
    while at < end:
        shared, at = get_varint(block, at)
        new, at = get_varint(block, at)
        size, at = get_varint(block, at)
        if shared > len(key) or at + new + size > end:
            raise ValueError("an entry lies beyond its block")
        key = key[:shared] + block[at : at + new]
        at += new
        yield key, block[at : at + size]
        at += size


def _block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    out, starts = bytearray(), []
    for key, value in entries:
        # Every entry is a restart: it has its whole key, so that readers may search for it.
        starts.append(len(out))
        out += b"\0" + put_varint(len(key)) + put_varint(len(value)) + key + value
    starts = starts or [0]
    return bytes(out) + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))
