"""Prints which TensorFlow, compiler and ops are used here, and why; compiles nothing."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable

from estimator_bridge import progress_line
from estimator_bridge.cli import output


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds no argument."""


def execute(options: argparse.Namespace) -> None:
    """Prints one line per finding."""
    with progress_line.working("importing TensorFlow", expected=5.0):
        findings = _findings()
    for name, finding in findings.items():
        output.show(f"{name + ':':14s}{finding}")


def _findings() -> dict[str, str]:
    import tensorflow as tf

    from tf2_engine.native import build, cache, loading

    gpus = len(tf.config.get_visible_devices("GPU"))
    return {
        "TensorFlow": f"{tf.version.VERSION}, {gpus} GPU(s)",
        "cache": _or_why_not(lambda: f"{cache.folder()} (${cache.VARIABLE} overrides)"),
        "setting": f"${loading.SETTING}={loading.setting()}",
        "compiler": _or_why_not(lambda: shlex.join(build.compiler())),
        "native ops": _native_ops(),
        "software TPU": _software_tpu(),
    }


def _or_why_not(find: Callable[[], str]) -> str:
    from tf2_engine.native import build

    try:
        return find()
    except build.CannotBuild as error:
        return f"none: {error}"


def _native_ops() -> str:
    from tf2_engine.native import build, loading

    if loading.setting() == "0":
        return "not used, because the setting says so"
    if loading.setting() == "auto" and loading.on_gpu():
        return "not used, because there is a GPU"
    try:
        if (path := build.existing(loading.SOURCE)) is None:
            build.library_path(loading.SOURCE)  # which says why it could not be compiled
            return "not compiled yet; the first engine does it, or `estimator-bridge build-native`"
    except build.CannotBuild as error:
        return f"not used, because {error}"
    loaded = loading.load()
    return f"loaded from {path}" if loaded.ops is not None else f"not used, because {loaded.reason}"


def _software_tpu() -> str:
    from tf2_engine import soft_tpu
    from tf2_engine.native import build

    if soft_tpu.ops_with_kernels() and not soft_tpu.is_loaded():
        return "not possible, because this TensorFlow has TPU kernels of its own"
    try:
        if (path := build.existing(soft_tpu.SOURCE)) is None:
            build.library_path(soft_tpu.SOURCE)
            return "not compiled yet; the first SoftTPUStrategy, or `run --software-tpu`, does it"
    except build.CannotBuild as error:
        return f"not possible, because {error}"
    return f"loaded on request from {path}"
