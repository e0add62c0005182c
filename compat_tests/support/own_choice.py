"""Selects Keras 2 for the suite's own process, but not for programs that tests start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from estimator_bridge.run import keras_choice

VARIABLE = "TF_USE_LEGACY_KERAS"
OF_THE_SUITE = "True"
"""Has the same effect as "1", which tests and programs use, but can be distinguished from it."""


class _Popen(subprocess.Popen[Any]):
    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        environment = of_programs(options.get("env") or os.environ)
        super().__init__(args, *more, **{**options, "env": environment})


def of_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the suite's own choice."""
    suites = (VARIABLE, OF_THE_SUITE)
    return {name: value for name, value in environment.items() if (name, value) != suites}


def use_legacy_keras() -> None:
    """Makes TensorFlow load Keras 2 in this process only.

    Programs that the process starts choose Keras as for users: by themselves, or by the command
    that runs them.
    """
    keras_choice.use_legacy_keras()
    if VARIABLE in os.environ:
        os.environ[VARIABLE] = OF_THE_SUITE
    subprocess.Popen = _Popen  # type: ignore[misc]
