"""The functions of stock's private module `gc`, with which programs choose exports to delete."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf


class Path(NamedTuple):
    """An export and its version, if it has one."""

    path: str
    export_version: int | None


Filter = Callable[[Sequence[Path]], list[Path]]
"""Returns the exports to keep, in order."""


def _largest_export_versions(n: int) -> Filter:
    """Makes a filter that keeps the n exports with the largest versions."""
    return lambda paths: sorted(_by_version(paths)[-n:] if n > 0 else [])


def _one_of_every_n_export_versions(n: int) -> Filter:
    """Makes a filter that keeps the largest version in each of [0, n], (n, 2n], ..."""

    def keep(paths: Sequence[Path]) -> list[Path]:
        by_interval = {max(_version(each) - 1, 0) // n: each for each in _by_version(paths)}
        return sorted(by_interval.values())

    return keep


def _mod_export_version(n: int) -> Filter:
    """Makes a filter that keeps the versions that are multiples of n."""
    return lambda paths: sorted(each for each in paths if _version(each) % n == 0)


def _union(lf: Filter, rf: Filter) -> Filter:
    return lambda paths: sorted({*lf(paths), *rf(paths)})


def _negation(f: Filter) -> Filter:
    return lambda paths: sorted({*paths}.difference(f(paths)))


def _get_paths(base_dir: str, parser: Callable[[Path], Path | None]) -> list[Path]:
    """Returns the entries of a folder for which `parser` returns a Path, in order."""
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(base_dir))
    paths = (parser(Path(os.path.join(base_dir, name), None)) for name in names)
    return sorted(path for path in paths if path)


def _by_version(paths: Sequence[Path]) -> list[Path]:
    return sorted((each for each in paths if each.export_version is not None), key=_version)


def _version(path: Path) -> int:
    return path.export_version  # type: ignore[return-value]  # the callers have left None out
