"""CRC-32C, the checksum of checkpoint files, fast enough for tables.

A register that reads zeros moves by a linear map. So a long buffer is cut into lanes that numpy
advances together, four bytes at a time, and the lanes are folded with maps for their lengths.

Reference: RFC 3720, appendix B.4 (polynomial 0x1EDC6F41, here with its bits reversed).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

_Words = Any  # an array of uint32

_REVERSED_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LOG_LANE = 10  # bytes of a lane, as a power of two
_MAX_LANES = 4096


def crc32c(data: Any, crc: int = 0) -> int:
    """Returns the checksum of bytes that follow others, whose checksum is `crc`.

    Args:
        data: bytes, or anything else with a contiguous buffer.
    """
    left = np.frombuffer(data, np.uint8)
    register = crc ^ 0xFFFFFFFF
    while len(left) >> _LOG_LANE:
        lanes = min(_MAX_LANES, 1 << ((len(left) >> _LOG_LANE).bit_length() - 1))
        size = lanes << _LOG_LANE
        register = _through_lanes(register, left[:size].view("<u4").reshape(lanes, -1))
        left = left[size:]
    table = _shift(0)[0]
    for byte in left.tolist():
        register = int(table[(register ^ byte) & 0xFF]) ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    """Returns a checksum as it is stored: the checksum of data that holds its own is no use."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _through_lanes(register: int, words: _Words) -> int:
    low, high = _four_bytes()
    state = np.zeros(len(words), np.uint32)
    state[0] = register
    for column in np.ascontiguousarray(words.T):
        state ^= column
        state = low[state & 0xFFFF] ^ high[state >> 16]
    log_length = _LOG_LANE
    while len(state) > 1:
        state = _apply(_shift(log_length), state[0::2]) ^ state[1::2]
        log_length += 1
    return int(state[0])


def _apply(linear: _Words, values: _Words) -> _Words:
    """Applies a linear map, given by its values for each of the four bytes: [4, 256]."""
    parts = [linear[byte][(values >> np.uint32(8 * byte)) & 0xFF] for byte in range(4)]
    return parts[0] ^ parts[1] ^ parts[2] ^ parts[3]


@functools.cache
def _shift(log_bytes: int) -> _Words:
    """Returns the map of a register that reads 2 ** log_bytes zero bytes."""
    if log_bytes:
        half = _shift(log_bytes - 1)
        return _apply(half, half)
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(_REVERSED_POLYNOMIAL), values >> 1)
    higher = [np.arange(256, dtype=np.uint32) << np.uint32(8 * byte) for byte in range(3)]
    return np.stack([values.astype(np.uint32), *higher])


@functools.cache
def _four_bytes() -> tuple[_Words, _Words]:
    """Returns the map of four zero bytes by the lower and the upper half of the register."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    return _apply(_shift(2), halves), _apply(_shift(2), halves << np.uint32(16))
