"""A hook that prepares every session of an estimator."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from tf2_engine import tf_compat
from tf2_engine.types import Session


class RememberFetchesHook(tf.train.SessionRunHook):
    """Makes repeated calls of a session with the same fetches quicker; results do not change."""

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Prepares a new session."""
        tf_compat.remember_fetches(session)
