"""Puts the failure of a command into words. Not a command itself."""

from __future__ import annotations

import os
import traceback

from estimator_bridge import errors
from estimator_bridge.cli import output

TRACEBACK = "ESTIMATOR_BRIDGE_TRACEBACK"
"""The environment variable that shows where an internal error comes from."""

_EXTRAS = {"libcst": "[migrate]"}
_PACKAGES = (
    *("absl", "google", "google_crc32c", "keras", "ml_dtypes", "numpy", "tensorboard"),
    *("tensorflow", "tf_keras", "tf_slim", *_EXTRAS),
)
"""Packages that pip installs with the bridge. One may be missing after `pip install --no-deps`."""


def cause_of(command: str, error: Exception) -> object:
    if isinstance(error, errors.EngineError):
        return error
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name in _PACKAGES:
        wanted = f"estimator-bridge{_EXTRAS.get(name, '')}"
        needed = "protobuf" if name == "google" else name
        return f"{command} needs {needed}, which is not installed. Type: pip install '{wanted}'"
    if os.environ.get(TRACEBACK):
        output.note(*"".join(traceback.format_exception(error)).splitlines())
    if isinstance(error, OSError) and error.strerror:
        where = " ".join(str(name) for name in (error.filename, error.filename2) if name)
        return f"{command}: {where + ': ' if where else ''}{error.strerror}."
    if isinstance(error, RecursionError):
        return f"{command}: the source is nested too deeply to be read. Split its expressions."
    if isinstance(error, MemoryError):
        return f"{command}: there is not enough memory, or the source is nested too deeply."
    return (
        f"{command}: internal error: {type(error).__name__}: {error}. This is a defect of the "
        f"command: please report it, with what it prints with {TRACEBACK}=1."
    )
