"""Chooses an allocator for parameter servers that returns freed memory to the system.

oneDNN's allocator takes memory in regions, each twice as large as the last, never returns any, and
keeps a 32nd of them to itself. A parameter server has no layers that oneDNN could speed up.
"""

from __future__ import annotations

import json
import os
import sys

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
"""TensorFlow's setting, which it reads when it is loaded."""


def choose_allocator() -> None:
    if "tensorflow" not in sys.modules and _is_server(os.environ.get("TF_CONFIG", "")):
        os.environ.setdefault(VARIABLE, "0")


def _is_server(tf_config: str) -> bool:
    try:
        return bool(json.loads(tf_config)["task"]["type"] == "ps")
    except (ValueError, KeyError, TypeError):
        return False
