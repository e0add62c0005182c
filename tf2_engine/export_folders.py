"""Creates, lists and removes export directories, whose names are the export times in seconds."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine import log, output_folders


def new_directories(base: str) -> tuple[str, str]:
    output_folders.create(base, "exports")
    while True:
        name = str(int(time.time()))
        # Servers ignore directories whose name is not a number.
        paths = os.path.join(base, name), os.path.join(base, f"temp-{name}")
        if not any(map(tf.io.gfile.exists, paths)):
            return paths
        log.info(
            "The export folder %s exists already; waiting for the next second, which gives another "
            "name.",
            paths[0],
        )
        time.sleep(1)


@contextlib.contextmanager
def new_export(base: str, assets_extra: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the path of a new export, and a temporary folder in which to write the export.

    On exit, the files of `assets_extra` are copied and the folder is renamed to the path, so a
    server never sees an incomplete export. After an error, the folder is deleted.
    """
    final, temporary = new_directories(base)
    try:
        yield final, temporary
        for name, source in assets_extra.items():
            target = os.path.join(temporary, "assets.extra", os.fsdecode(name))
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(source, target)
        tf.io.gfile.rename(temporary, final)
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)


def names_of_exports(base: str) -> list[str]:
    names = (
        [name.rstrip("/") for name in tf.io.gfile.listdir(base)] if tf.io.gfile.exists(base) else []
    )
    return sorted(name for name in names if len(name) == 10 and name.isdigit())


def keep_latest(base: str, count: int) -> None:
    for name in names_of_exports(base)[:-count]:
        tf.io.gfile.rmtree(os.path.join(base, name))
