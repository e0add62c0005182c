"""Compiles a library of ops, once for a machine, into a cache that belongs to the user.

The cache is $ESTIMATOR_BRIDGE_CACHE, else $XDG_CACHE_HOME/estimator-bridge, else
~/.cache/estimator-bridge. The name of a library holds a digest of all that it depends on, and it
appears under that name complete: processes may start at the same time, one of them compiles and
the others wait for it. What is damaged is compiled again, and what others could have written is
refused; see `cache`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile
import time

import tensorflow as tf

from tf2_engine import log
from tf2_engine.native import SOURCES, cache

CannotBuild = cache.CannotBuild
"""Raised where a library could not be made, or is not to be trusted; the message says why."""

SANITIZE = "ESTIMATOR_BRIDGE_SANITIZE"
"""The environment variable with the value of -fsanitize, for tests; see `make sanitize`."""

FLAGS = (
    *("-shared", "-fPIC", "-O3", "-march=native"),
    # Nothing here has 16-bit floats, and Eigen's code for them does not compile in TensorFlow 2.21.
    "-U__AVX512FP16__",
    # Every operation rounds by itself, as in TensorFlow's ops.
    "-ffp-contract=off",
    # These two change no value, and let loops vectorise.
    *("-fno-math-errno", "-fno-trapping-math"),
)

_log = log.PlainLogger(__name__)


def flags() -> tuple[str, ...]:
    """Returns the compiler's flags besides TensorFlow's own."""
    chosen = (*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))
    sanitizers = os.environ.get(SANITIZE)
    debugging = ("-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}")
    return (*chosen, *debugging) if sanitizers else chosen


def compiler() -> tuple[str, ...]:
    """Returns the command of the C++ compiler, $CXX or g++, with the arguments that $CXX has.

    Raises CannotBuild if there is no such program.
    """
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    path = shutil.which(command[0])
    if path is None:
        raise CannotBuild(f"there is no C++ compiler {command[0]!r} in the PATH")
    return (path, *command[1:])


def library_path(source: str) -> pathlib.Path:
    """Returns the path of the library of a source file of this folder; it need not exist."""
    parts = [tf.version.VERSION, tf.version.GIT_VERSION, _version(compiler()), _processor()]
    parts += flags()
    parts += [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    for path in sorted([SOURCES / source, *SOURCES.rglob("*.h")]):
        parts += [path.name, path.read_text(encoding="utf-8")]
    digest = hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:20]
    return cache.folder() / f"{pathlib.Path(source).stem}-tf{tf.version.VERSION}-{digest}.so"


def library(source: str, *, again: bool = False) -> pathlib.Path:
    """Returns the library of a source file of this folder, compiled if it is not there, or `again`.

    Raises CannotBuild if there is no compiler, it fails, the cache cannot be written, or another
    user could have written to it.
    """
    path = library_path(source)
    try:
        if not again and cache.has(path):
            return path
        with cache.locked(path):
            if again or not cache.has(path):  # another process may have compiled it meanwhile
                _compile(SOURCES / source, path)
    except OSError as error:
        raise CannotBuild(f"the cache cannot be written: {error}") from error
    return path


def _compile(source: pathlib.Path, path: pathlib.Path) -> None:
    handle, temporary = tempfile.mkstemp(suffix=".so", prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    command = [*compiler(), str(source), f"-I{SOURCES}", *tf.sysconfig.get_compile_flags()]
    command += [*flags(), "-o", temporary, *tf.sysconfig.get_link_flags()]
    _log.info("Compiling %s; it takes a quarter of a minute, once.", source.name)
    started = time.monotonic()
    try:
        # A library that is preloaded into this process, a sanitizer say, is not for compilers.
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        compilation = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment
        )
        if compilation.returncode:
            complaints = [line for line in compilation.stderr.splitlines() if " error: " in line]
            complaint = (complaints or [f"it ended with status {compilation.returncode}"])[0]
            _log.debug("%s\n%s", shlex.join(command), compilation.stderr)
            raise CannotBuild(f"{command[0]} cannot compile {source.name}: {complaint.strip()}")
        cache.publish(pathlib.Path(temporary), path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _log.info("Compiled %s in %.0f s: %s", source.name, time.monotonic() - started, path)


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
        return "\n".join(lines.get(key, "") for key in ("vendor_id", "model name", "flags"))
    return f"{platform.machine()} {platform.processor()}"
