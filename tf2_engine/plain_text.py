"""Escapes unsafe characters in foreign text that is written to a terminal, a log, JSON or HTML.

Such characters move the cursor, reverse the reading direction, or are halves of surrogate pairs.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf2_engine.types import Object

# Control, format, surrogate, private and unassigned characters, and line separators.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


class Lines(str):
    """A text of several lines. `plain` escapes each line, but keeps the line breaks."""

    __slots__ = ()

    def __new__(cls, *lines: object) -> Lines:
        return super().__new__(cls, "\n".join(map(plain, lines)))


def plain(value: object, *, lines: bool = False) -> str:
    r"""Converts a value to text and escapes every invisible character.

    For example, `"a\x1b[2Jb"`, which clears a terminal, becomes `a\x1b[2Jb` with a visible
    backslash. Line breaks are kept only in `Lines`, or with `lines=True`, so a name cannot fake a
    line of a report.
    """
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    text = text if isinstance(text, Lines) else str(text)
    if isinstance(text, Lines) or text.isprintable():
        return text
    if lines:
        # Other carriage returns are escaped: a terminal would show only the end of "50 %\r100 %".
        text = text.replace("\r\n", "\n").expandtabs()
    return "".join(
        one if (lines and one == "\n") or _is_seen(one) else _escaped(one) for one in text
    )


def plain_values(value: Object) -> Object:
    """Escapes all strings in nested dicts and lists; infinities and NaN become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return plain(value, lines=True)
    if isinstance(value, Mapping):
        return {plain(key): plain_values(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(part) for part in value]
    return value


def _is_seen(character: str) -> bool:
    return unicodedata.category(character) not in _HIDDEN


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
