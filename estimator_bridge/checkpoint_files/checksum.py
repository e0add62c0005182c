"""CRC-32C, the checksum of checkpoint files.

Reference: RFC 3720, appendix B.4; its masked form is that of LevelDB and TensorFlow.
"""

from __future__ import annotations

import google_crc32c

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes, crc: int = 0) -> int:
    """Returns the checksum of bytes that follow others, whose checksum is `crc`."""
    return int(google_crc32c.extend(crc, data))


def mask(crc: int) -> int:
    """Returns a checksum in the form in which files store it.

    A plain CRC-32C is of little use for data that contains its own checksum.
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
