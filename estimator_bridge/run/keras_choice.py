"""Chooses the Keras that `tf.keras` is: legacy programs are written in Keras 2."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os

from estimator_bridge import errors


def tensorflow_version() -> tuple[int, int]:
    """Returns the version of the installed TensorFlow without importing it."""
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
    """Returns whether TensorFlow is of the last version with estimators, or older."""
    return tensorflow_version() < (2, 16)


def use_legacy_keras() -> None:
    """Makes TensorFlow load Keras 2; raises TooLate if `tf.keras` is Keras 3 already."""
    if is_2_15() or os.environ.get("TF_USE_LEGACY_KERAS") is not None:
        return
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    # TensorFlow decides when the name is first used, once for the process.
    if not tf.keras.layers.Layer.__module__.startswith("tf_keras."):
        raise errors.TooLate(
            "tf.keras is Keras 3 already, and legacy programs are written in Keras 2. Call "
            "`install` before tf.keras is first used, or set the environment variable "
            "TF_USE_LEGACY_KERAS=1."
        )
