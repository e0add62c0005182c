"""Writes files atomically, and saves the old contents in an undo file, which restores them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from estimator_bridge import errors

_VERSION = 1


class Output(NamedTuple):
    """A file to write, with the permissions of the file `like`. Symbolic links are followed."""

    path: pathlib.Path
    content: bytes
    like: pathlib.Path


def write(outputs: Sequence[Output], undo: pathlib.Path) -> pathlib.Path | None:
    """Writes files; returns the undo file, or None if nothing was replaced."""
    changed = [each for each in outputs if _content(each.path) != each.content]
    replaced = any(each.path.exists() for each in changed)
    kept = _free(undo) if replaced else None
    if kept is not None:
        _replace(kept, json.dumps(_record(changed, kept.parent), indent=1).encode(), None)
    for each in changed:
        _replace(each.path.resolve(), each.content, each.like)
    return kept


def restore(undo: pathlib.Path) -> list[pathlib.Path]:
    """Restores the old contents, removes the undo file, and returns the restored paths.

    Raises:
        InvalidInput: `undo` is not an undo file, or a file has changed since the migration.
            In this case, nothing is restored.
    """
    entries = _entries(undo)
    paths = [undo.parent / str(each["path"]) for each in entries]
    changed = [
        str(path)
        for path, each in zip(paths, entries, strict=True)
        if _digest(_content(path)) != each["is"]
    ]
    if changed:
        raise errors.InvalidInput(
            f"migrate: {', '.join(changed)} changed since the migration, and --undo would lose "
            f"these changes. The contents before the migration are in {undo}, in base64."
        )
    for path, each in zip(paths, entries, strict=True):
        if each["was"] is None:
            path.unlink()
            continue
        _replace(path, base64.b64decode(str(each["was"])), None)
        path.chmod(int(str(each["mode"])))
    undo.unlink()
    return paths


def _record(outputs: Sequence[Output], folder: pathlib.Path) -> dict[str, object]:
    files = []
    for each in outputs:
        path, before = each.path.resolve(), _content(each.path)
        files.append(
            {
                "path": os.path.relpath(path, folder),
                "was": None if before is None else base64.b64encode(before).decode(),
                "mode": None if before is None else path.stat().st_mode & 0o7777,
                "is": _digest(each.content),
            }
        )
    return {"version": _VERSION, "files": files}


def _entries(undo: pathlib.Path) -> list[dict[str, object]]:
    try:
        record = json.loads(undo.read_text(encoding="utf-8"))
        if record["version"] != _VERSION:
            raise ValueError(f"version {record['version']}")
        entries: list[dict[str, object]] = record["files"]
    except FileNotFoundError as error:
        raise errors.InvalidInput(f"migrate: there is no undo file {undo}.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise errors.InvalidInput(
            f"migrate: {undo} is not an undo file of migrate: {error}."
        ) from error
    return entries


def _content(path: pathlib.Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _free(path: pathlib.Path) -> pathlib.Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}{number}")
    return free


def _replace(path: pathlib.Path, content: bytes, like: pathlib.Path | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    if like is not None:
        shutil.copymode(like, temporary)
    os.replace(temporary, path)
