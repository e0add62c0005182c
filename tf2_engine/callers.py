"""Finds the line of the program that calls the engine, for warnings."""

from __future__ import annotations

import os
import sys


def frames_to_the_caller() -> int:
    """Computes the `stacklevel` for a warning about the line that calls the engine."""
    import tensorflow as tf

    own_folders = (os.path.dirname(__file__), os.path.dirname(tf.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own_folders):
        frame, level = frame.f_back, level + 1
    return level
