"""TensorFlow as legacy programs have it, to look up their names in it."""

from __future__ import annotations

from types import ModuleType

from estimator_bridge.run import keras_choice


def tensorflow() -> ModuleType:
    """Returns the package; its `tf.keras` is Keras 2.

    TensorFlow chooses when the name is first used, once for the process, and `audit --run` goes on
    to run the program in the same one.
    """
    keras_choice.use_legacy_keras()
    import tensorflow as tf

    return tf
