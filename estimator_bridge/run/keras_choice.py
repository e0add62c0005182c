"""Chooses Keras 2 as `tf.keras`, because legacy programs need it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os

from estimator_bridge import errors


def tensorflow_version() -> tuple[int, int]:
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            break
    else:
        import tensorflow as tf

        version = tf.__version__
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_2_15() -> bool:
    return tensorflow_version() < (2, 16)


def how_to_install_keras() -> str:
    # There is no tf_keras 2.22. Version 2.21 works if pip ignores its dependencies.
    if tensorflow_version() < (2, 22):
        return "pip install tf_keras"
    return "pip install --no-deps tf_keras==2.21.0"


def use_legacy_keras() -> None:
    """Makes TensorFlow load Keras 2.

    Raises:
        InvalidInput: tf_keras is not installed.
        TooLate: `tf.keras` is already Keras 3.
    """
    if is_2_15() or os.environ.get("TF_USE_LEGACY_KERAS") is not None:
        return
    package = importlib.util.find_spec("tf_keras")
    if package is None:
        raise errors.InvalidInput(
            "tf_keras is not installed, but legacy programs need Keras 2. Type: "
            + how_to_install_keras()
        )
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    # `import tensorflow.keras` searches folders that TensorFlow chose when it was imported.
    folder = os.path.join(*package.submodule_search_locations or (), "api", "_v2")
    if folder not in tf.__path__:
        tf.__path__.insert(0, folder)
    # `tf.keras` is chosen when the name is first used, once per process.
    if not tf.keras.layers.Layer.__module__.startswith("tf_keras."):
        raise errors.TooLate(
            "tf.keras is already Keras 3, but legacy programs need Keras 2. Call `install` before "
            "tf.keras is first used, or set the environment variable TF_USE_LEGACY_KERAS=1."
        )
