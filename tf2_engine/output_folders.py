"""Creates the folders that checkpoints, events and exports are written to."""

from __future__ import annotations

import os

from tf2_engine import errors


def create(directory: str | bytes | os.PathLike[str], what: str = "checkpoints and events") -> None:
    """Creates a folder if necessary, so that a long training run does not fail at its first save.

    Folders that are not on a local file system are created by the code that writes to them.

    Raises:
        CannotWrite: the folder is a file or read-only, or cannot be created.
    """
    path = os.fsdecode(directory)
    if "://" in path:
        return
    nearest = os.path.abspath(path)
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    fault = _fault(nearest)
    if fault is None:
        try:
            os.makedirs(path, exist_ok=True)
            return
        except OSError as error:
            fault = f"takes no new folder: {error.strerror}"
    raise errors.CannotWrite(
        f"{path}: {what} cannot be written there, because {nearest} {fault}. Give another "
        "directory."
    )


def _fault(folder: str) -> str | None:
    if not os.path.isdir(folder):
        return "is not a directory"
    effective = os.access in os.supports_effective_ids
    is_writable = os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)
    return None if is_writable else "cannot be written to by this process"
