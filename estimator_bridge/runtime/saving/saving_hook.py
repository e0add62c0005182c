"""The base of hooks that save something of their own with each checkpoint."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


class SavingHook(tf.train.SessionRunHook):
    """A hook with a state that belongs to the model's checkpoint.

    Training runs its `after_create_session` before the checkpoint of the first step is saved.

    Attributes:
        listener: a CheckpointSaverListener, which is called around every checkpoint.
    """

    listener: tf.train.CheckpointSaverListener
