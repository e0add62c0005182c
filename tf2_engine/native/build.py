"""Compiles a library of ops, once for a machine, into a cache that belongs to the user.

The cache is $ESTIMATOR_BRIDGE_CACHE, else $XDG_CACHE_HOME/estimator-bridge, else
~/.cache/estimator-bridge. The name of a library holds a digest of all that it depends on, and it
appears under that name complete: processes may start at the same time, one of them compiles and
the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.native import SOURCES

CACHE = "ESTIMATOR_BRIDGE_CACHE"
"""The environment variable with the folder of the libraries."""

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

_log = logging.getLogger(__name__)


class CannotBuild(errors.EngineError, RuntimeError):
    """A library could not be made; the message says why."""


def flags() -> tuple[str, ...]:
    """Returns the compiler's flags besides TensorFlow's own."""
    chosen = (*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))
    sanitizers = os.environ.get(SANITIZE)
    debugging = ("-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}")
    return (*chosen, *debugging) if sanitizers else chosen


def cache_dir() -> pathlib.Path:
    """Returns the folder of the libraries, which need not exist."""
    folder = os.environ.get(CACHE)
    if folder:
        return pathlib.Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "estimator-bridge"


def compiler() -> str:
    """Returns the path of the C++ compiler, $CXX or g++; raises CannotBuild if there is none."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise CannotBuild(f"there is no C++ compiler {name!r} in the PATH")
    return path


def library_path(source: str) -> pathlib.Path:
    """Returns the path of the library of a source file of this folder; it need not exist."""
    parts = [tf.version.VERSION, tf.version.GIT_VERSION, _version(compiler()), _processor()]
    parts += flags()
    parts += [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    for path in sorted([SOURCES / source, *SOURCES.rglob("*.h")]):
        parts += [path.name, path.read_text(encoding="utf-8")]
    digest = hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:20]
    return cache_dir() / f"{pathlib.Path(source).stem}-tf{tf.version.VERSION}-{digest}.so"


def library(source: str, *, again: bool = False) -> pathlib.Path:
    """Returns the library of a source file of this folder, compiled if it is not there, or `again`.

    Raises CannotBuild if there is no compiler, it fails, or the cache cannot be written.
    """
    path = library_path(source)
    if path.exists() and not again:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if again or not path.exists():  # another process may have compiled it meanwhile
                _compile(SOURCES / source, path)
    except OSError as error:
        raise CannotBuild(f"the cache cannot be written: {error}") from error
    return path


def _compile(source: pathlib.Path, path: pathlib.Path) -> None:
    handle, temporary = tempfile.mkstemp(suffix=".so", prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    command = [compiler(), str(source), f"-I{SOURCES}", *tf.sysconfig.get_compile_flags()]
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
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _log.info("Compiled %s in %.0f s: %s", source.name, time.monotonic() - started, path)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, also if the process is killed
        yield


def _version(path: str) -> str:
    try:
        process = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBuild(f"the C++ compiler {path} does not run: {error}") from error
    return process.stdout.splitlines()[0] if process.stdout else ""


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = {line.split(":")[0].strip(): line.strip() for line in file if ":" in line}
        return "\n".join(lines.get(key, "") for key in ("vendor_id", "model name", "flags"))
    return f"{platform.machine()} {platform.processor()}"
