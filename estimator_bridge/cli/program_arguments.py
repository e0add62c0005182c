"""Arguments that the commands have in common which run a user's program, or a part of one."""

from __future__ import annotations

import argparse

_TF1 = (
    "whether {} sees TensorFlow 1: tf.contrib, and without what TensorFlow 2 changed "
    "(default: if its source names what only TensorFlow 1 has)"
)


def configure(parser: argparse.ArgumentParser, subject: str = "the program") -> None:
    """Adds `--tf1`, which is True, False, or None: the program's source tells.

    Args:
        subject: what sees TensorFlow 1, for the help.
    """
    action = argparse.BooleanOptionalAction
    parser.add_argument("--tf1", action=action, default=None, help=_TF1.format(subject))
