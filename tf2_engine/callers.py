"""Finds the code of the program that calls the engine, to which warnings point."""

from __future__ import annotations

import os
import sys


def frames_to_the_caller() -> int:
    """Returns the `stacklevel` at which a warning points at the code that uses the engine.

    A fixed number is not the same in all versions of Python: from 3.12 on comprehensions have no
    frame of their own.
    """
    import tensorflow as tf

    own_folders = (os.path.dirname(__file__), os.path.dirname(tf.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own_folders):
        frame, level = frame.f_back, level + 1
    return level
