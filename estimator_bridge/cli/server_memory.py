"""The allocator of a parameter server: memory that tables and checkpoints free goes back.

On CPUs for which TensorFlow uses oneDNN, the allocator of oneDNN takes memory in regions, each
twice as large as the last, of which nothing goes back to the system, and keeps a 32nd of them to
itself.
A parameter server has no layers that oneDNN could speed up.
"""

from __future__ import annotations

import json
import os
import sys

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
"""TensorFlow's setting, which it reads when it is loaded."""


def choose_allocator() -> None:
    """Switches oneDNN off in a parameter server of TF_CONFIG.

    Does nothing if the user set the variable, or TensorFlow is loaded already.
    """
    if "tensorflow" not in sys.modules and _is_server(os.environ.get("TF_CONFIG", "")):
        os.environ.setdefault(VARIABLE, "0")


def _is_server(tf_config: str) -> bool:
    """Returns whether TF_CONFIG names a parameter server; what is wrong with it, others say."""
    try:
        return bool(json.loads(tf_config)["task"]["type"] == "ps")
    except (ValueError, KeyError, TypeError):
        return False
