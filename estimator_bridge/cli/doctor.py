"""Prints what is installed, and which compiler and ops this machine uses; compiles nothing."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import platform
import shlex
from collections.abc import Callable

from estimator_bridge import progress_line
from estimator_bridge.cli import output
from estimator_bridge.run import keras_choice, public_names


def execute(options: argparse.Namespace) -> None:
    findings = {"Python": f"{platform.python_version()} on {platform.machine()}", **_installed()}
    if public_names.is_installed():
        with progress_line.working("importing TensorFlow", expected=5.0):
            findings |= _of_tensorflow()
    for name, finding in findings.items():
        output.show(f"{name + ':':14s}{finding}")


def _installed() -> dict[str, str]:
    missing = {
        "TensorFlow": "pip install estimator-bridge (audit and migrate work without it)",
        "libcst": "pip install 'estimator-bridge[migrate]' (for audit and migrate)",
        "numpy": "pip install estimator-bridge",
    }
    if public_names.is_installed() and not keras_choice.is_2_15():
        missing["tf_keras"] = f"{keras_choice.how_to_install_keras()} (for legacy programs)"
    return {name: _version(name) or f"none: {command}" for name, command in missing.items()}


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _of_tensorflow() -> dict[str, str]:
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
    from tf2_engine.native import build, gpu_ops, loading

    if loading.setting() == "0":
        return "not used, because the environment variable turns them off"
    on_gpu = loading.on_gpu()
    source = gpu_ops.SOURCE if on_gpu else loading.SOURCE
    try:
        compiled_by = f", with GPU kernels from NVRTC {gpu_ops.nvrtc_version()}" if on_gpu else ""
        if build.existing(source) is None:
            build.library_path(source)  # raises an error with the reason if it cannot be compiled
            return (
                "not compiled yet; the first engine or `estimator-bridge build-native` compiles "
                "them"
            )
    except build.CannotBuild as error:
        return f"not used, because {error}"
    loaded = gpu_ops.load(()) if on_gpu else loading.load()
    if loaded.ops is None:
        return f"not used, because {loaded.reason}"
    return f"loaded from {loaded.reason}{compiled_by}"


def _software_tpu() -> str:
    from tf2_engine import soft_tpu
    from tf2_engine.native import build

    if soft_tpu.ops_with_kernels() and not soft_tpu.is_loaded():
        return "not possible, because this TensorFlow has TPU kernels of its own"
    try:
        if (path := build.existing(soft_tpu.SOURCE)) is None:
            build.library_path(soft_tpu.SOURCE)
            return "not compiled yet; the first SoftTPUStrategy or `run --software-tpu` compiles it"
    except build.CannotBuild as error:
        return f"not possible, because {error}"
    return f"loaded on request from {path}"
