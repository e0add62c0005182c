"""Creates, lists and removes export directories, whose names are the export times in seconds."""

from __future__ import annotations

import os
import time

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


def names_of_exports(base: str) -> list[str]:
    names = (
        [name.rstrip("/") for name in tf.io.gfile.listdir(base)] if tf.io.gfile.exists(base) else []
    )
    return sorted(name for name in names if len(name) == 10 and name.isdigit())


def keep_latest(base: str, count: int) -> None:
    for name in names_of_exports(base)[:-count]:
        tf.io.gfile.rmtree(os.path.join(base, name))
