"""Runs what is inside of a `with` block as TensorFlow 1 would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from estimator_bridge.run.tf1.program_imports import seen_by_programs
from estimator_bridge.run.tf1.view import TF1View
from tf2_engine import tf_compat


@contextlib.contextmanager
def as_tf1() -> Iterator[None]:
    """While it is open, programs see TensorFlow 1; what TensorFlow 2 changed is off from then on.

    `disable_v2_behavior` holds for the process: it cannot be undone.
    """
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    with tf_compat.names_of_tf1(), seen_by_programs(TF1View()):
        yield
