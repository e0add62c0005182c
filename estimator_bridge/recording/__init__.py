"""Reads recordings of training runs, and replays them in another framework.

Needs only NumPy. docs/recording.md describes the files, whose format is open.
"""

from estimator_bridge.recording.files import Recording
from estimator_bridge.recording.replay import Bag, Replay, State

__all__ = ["Bag", "Recording", "Replay", "State"]
