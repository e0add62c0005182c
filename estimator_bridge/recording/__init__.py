"""Recordings of training runs, in an open format: to read, and to replay in another framework.

Needs NumPy alone. docs/recording.md describes the files.
"""

from estimator_bridge.recording.files import Recording
from estimator_bridge.recording.replay import Bag, Replay, State

__all__ = ["Bag", "Recording", "Replay", "State"]
