"""What to do where stock and its documents disagree: "stock" or "documented"."""

from __future__ import annotations

from estimator_bridge import errors

QUIRKS = ("stock", "documented")

HONOURED = (
    "What stock ignores though it is documented is honoured now; `run` ignores it. For the "
    "numbers of stock pass quirks='stock' to the spec"
)
"""What a program that imports the bridge by itself should know, whose numbers were stock's."""

_default = "documented"


def set_default_quirks(quirks: str) -> None:
    """Sets the quirks of specs that are made without; for errors see `checked_quirks`."""
    global _default
    _default = checked_quirks(quirks)


def default_quirks() -> str:
    """Returns the quirks of specs that are made without."""
    return _default


def checked_quirks(quirks: str) -> str:
    """Returns `quirks`; raises InvalidSpec if they are neither "stock" nor "documented"."""
    if quirks not in QUIRKS:
        raise errors.InvalidSpec(f"`quirks` must be one of {QUIRKS}, got {quirks!r}.")
    return quirks
