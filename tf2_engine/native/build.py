"""Finds a library of ops in the user's cache or the wheel, or compiles it into the cache.

A library that was compiled for this machine's processor takes precedence over the wheel's library.
With extra flags or sanitizers, the wheel's libraries are not used. The cache is
$ESTIMATOR_BRIDGE_CACHE, else $XDG_CACHE_HOME/estimator-bridge, else ~/.cache/estimator-bridge. A
library has a temporary name until it is complete. Its final name contains a digest of everything
that the library depends on.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.native import SOURCES, cache
from tf2_engine.types import Object

CannotBuild = cache.CannotBuild

SANITIZE = "ESTIMATOR_BRIDGE_SANITIZE"
"""The environment variable with the value of -fsanitize, for tests; see `make sanitize`."""

_PROCESSOR = "-march=native"

FLAGS = (
    *("-shared", "-fPIC", "-O3", _PROCESSOR),
    # No 16-bit floats are used, and Eigen's code for them does not compile in TensorFlow 2.21.
    "-U__AVX512FP16__",
    # Every operation rounds separately, as in TensorFlow's ops.
    "-ffp-contract=off",
    # These two flags do not change results, and allow loops to be vectorised.
    *("-fno-math-errno", "-fno-trapping-math"),
)

_log = log.PlainLogger(__name__)


def flags() -> tuple[str, ...]:
    chosen = (*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))
    sanitizers = os.environ.get(SANITIZE)
    debugging = ("-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}")
    return (*chosen, *debugging) if sanitizers else chosen


def compiler() -> tuple[str, ...]:
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    path = shutil.which(command[0])
    if path is None:
        raise CannotBuild(f"there is no C++ compiler {command[0]!r} in the PATH")
    return (path, *command[1:])


def library_path(source: str) -> pathlib.Path:
    machine = _version(compiler()), _processor()
    return cache.folder() / _name(source, [*machine, *flags()])


def prebuilt_path(source: str) -> pathlib.Path | None:
    asked = os.environ.get("CXXFLAGS", "") or os.environ.get(SANITIZE)
    return None if asked else cache.find_prebuilt(_name(source, _prebuilt_flags()))


def library(source: str, *, again: bool = False) -> pathlib.Path:
    if not again:
        path = existing(source)
        if path is not None:
            return path
    return _compiled(source, again)


def existing(source: str) -> pathlib.Path | None:
    try:
        path = library_path(source)
    except CannotBuild:  # No compiler or no cache.
        return prebuilt_path(source)
    try:
        return path if cache.has(path) else prebuilt_path(source)
    except OSError as error:
        raise CannotBuild(f"the cache cannot be read: {error}") from error


def load(source: str) -> tuple[Object, pathlib.Path]:
    """Loads the library of a source file, and returns the module of its ops and the path.

    If the wheel's library needs a newer C++ runtime than this system's, the source is compiled.
    """
    path = library(source)
    try:
        return tf.load_op_library(str(path)), path
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        if path != prebuilt_path(source):
            raise
        _log.info("%s cannot be loaded, and is compiled instead: %s", path, error)
    path = _compiled(source, again=False)
    return tf.load_op_library(str(path)), path


def prebuild(folder: pathlib.Path) -> list[pathlib.Path]:
    """Compiles all sources into a folder of a wheel, for this TensorFlow. Returns the libraries.

    The same sources, TensorFlow and compiler give the same bytes in any folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    include = tf.sysconfig.get_include()
    # Error messages contain file names, so these must not depend on the folder.
    places = (f"-ffile-prefix-map={SOURCES}=native", f"-ffile-prefix-map={include}=tensorflow")
    libraries = []
    for source in sorted(SOURCES.rglob("*.cc")):
        path = folder / _name(str(source.relative_to(SOURCES)), _prebuilt_flags())
        _run_compiler(source, path, (*_prebuilt_flags(), "-s", *places))
        cache.write_digest(path)
        libraries.append(path)
    return libraries


def _prebuilt_flags() -> tuple[str, ...]:
    level = cache.LEVELS.get(platform.machine())
    chosen = [f"-march={level}"] if level else []
    return (*(flag for flag in FLAGS if flag != _PROCESSOR), *chosen)


def _name(source: str, more: Sequence[str]) -> str:
    parts = [tf.version.VERSION, tf.version.GIT_VERSION, *more]
    parts += [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    for path in sorted([SOURCES / source, *SOURCES.rglob("*.h")]):
        parts += [path.name, path.read_text(encoding="utf-8")]
    digest = hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:20]
    return f"{pathlib.Path(source).stem}-tf{tf.version.VERSION}-{digest}.so"


def _compiled(source: str, again: bool) -> pathlib.Path:
    path = library_path(source)
    try:
        with cache.locked(path):
            if again or not cache.has(path):  # Another process may have compiled the library.
                _compile(SOURCES / source, path)
    except OSError as error:
        raise CannotBuild(f"the cache cannot be written: {error}") from error
    return path


def _compile(source: pathlib.Path, path: pathlib.Path) -> None:
    handle, temporary = tempfile.mkstemp(suffix=".so", prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    _log.info("Compiling %s; this takes up to half a minute, once.", source.name)
    started = time.monotonic()
    try:
        _run_compiler(source, pathlib.Path(temporary), flags())
        cache.publish(pathlib.Path(temporary), path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _log.info("Compiled %s in %.0f s: %s", source.name, time.monotonic() - started, path)


def _run_compiler(source: pathlib.Path, path: pathlib.Path, chosen: Sequence[str]) -> None:
    command = [*compiler(), str(source), f"-I{SOURCES}", *tf.sysconfig.get_compile_flags()]
    command += [*chosen, "-o", str(path), *tf.sysconfig.get_link_flags()]
    # A library that is preloaded into this process, such as a sanitizer, must not be preloaded into
    # the compiler.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    compilation = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment
    )
    if compilation.returncode:
        complaints = [line for line in compilation.stderr.splitlines() if " error: " in line]
        complaint = (complaints or [f"it ended with status {compilation.returncode}"])[0]
        _log.debug("%s\n%s", shlex.join(command), compilation.stderr)
        raise CannotBuild(f"{command[0]} cannot compile {source.name}: {complaint.strip()}")


def _version(command: tuple[str, ...]) -> str:
    asked = [*command, "--version"]
    try:
        process = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shown = shlex.join(command)
        raise CannotBuild(f"the C++ compiler {shown} does not run: {error}") from error
    return process.stdout.splitlines()[0] if process.stdout else ""


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = {line.split(":")[0].strip(): line.strip() for line in file if ":" in line}
        x86 = ("vendor_id", "model name", "flags")
        arm = ("CPU implementer", "CPU variant", "CPU part", "Features")
        return "\n".join(lines.get(key, "") for key in (*x86, *arm))
    return f"{platform.machine()} {platform.processor()}"


def load_kernels(what: str, source: str, taken: Sequence[str]) -> ctypes.CDLL:
    """Loads kernels for ops that TensorFlow's wheels register without kernels.

    `taken` lists ops that already have a kernel. If there are any, this raises an error that
    starts with `what`, because an op with two kernels cannot run.
    """
    if taken:
        raise errors.InvalidSpec(
            f"{what} cannot be made: this TensorFlow already has kernels for "
            f"{', '.join(taken[:3])}{', ...' if len(taken) > 3 else ''}, for example because there "
            "is a TPU, or another copy was loaded."
        )
    try:
        _, path = load(source)
    except CannotBuild as error:
        raise CannotBuild(f"{what} cannot be made: {error}.") from error
    return ctypes.CDLL(str(path))
