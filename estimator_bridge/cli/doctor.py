"""Says which TensorFlow, compiler and ops are used here, and why. Compiles nothing."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments, of which there are none."""


def execute(options: argparse.Namespace) -> int:
    """Prints one line per finding; returns 0."""
    import tensorflow as tf

    from tf2_engine.native import build, loading

    gpus = len(tf.config.get_visible_devices("GPU"))
    lines = {
        "TensorFlow": f"{tf.version.VERSION}, {gpus} GPU(s)",
        "cache": f"{build.cache_dir()} (${build.CACHE} overrides)",
        "setting": f"${loading.SETTING}={loading.setting()}",
        "compiler": _compiler(),
        "native ops": _native_ops(),
    }
    for name, finding in lines.items():
        print(f"{name + ':':12s}{finding}")
    return 0


def _compiler() -> str:
    from tf2_engine.native import build

    try:
        return build.compiler()
    except build.CannotBuild as error:
        return f"none: {error}"


def _native_ops() -> str:
    from tf2_engine.native import build, loading

    if loading.setting() == "0":
        return "not used, because the setting says so"
    if loading.setting() == "auto" and loading.has_gpu():
        return "not used, because there is a GPU"
    try:
        path = build.library_path(loading.SOURCE)
    except build.CannotBuild as error:
        return f"not used, because {error}"
    if not path.exists():
        return "not compiled yet; the first engine does it, or `estimator-bridge build-native`"
    loaded = loading.load()
    return f"loaded from {path}" if loaded.ops is not None else f"not used, because {loaded.reason}"
