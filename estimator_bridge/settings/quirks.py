"""Chooses "stock" or "documented" behaviour where stock's code and documentation disagree."""

from __future__ import annotations

from estimator_bridge import errors
from estimator_bridge.defaults import DEFAULTS

QUIRKS = ("stock", "documented")

ARGUMENT = "quirks='stock'"
"""The argument of an EmbeddingConfigSpec that asks for stock's results."""

KEPT = (
    "Settings that are documented but that stock ignores, such as `clipping_limit`, are ignored as "
    "before. Leave the argument out to apply these settings"
)
"""The text that warns users about this argument."""


def set_default_quirks(quirks: str) -> None:
    DEFAULTS.quirks = checked_quirks(quirks)


def default_quirks() -> str:
    return DEFAULTS.quirks


def checked_quirks(quirks: str) -> str:
    if quirks not in QUIRKS:
        raise errors.InvalidSpec(f"`quirks` must be one of {QUIRKS}, got {quirks!r}.")
    return quirks
