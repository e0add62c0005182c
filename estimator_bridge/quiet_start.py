"""Hides TensorFlow's startup messages, even those that ignore TensorFlow's log level."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""The environment variable for TensorFlow's C++ log level. A level that is set stays in effect."""

_QUIET = "3"
"""The log level that shows only fatal errors. Errors that are not fatal raise exceptions, too."""

_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|.*\b(port|cudart_stub|cpu_feature_guard|cuda_dnn|cuda_fft|cuda_blas|cuda_executor"
    r"|cuda_platform|cuda_diagnostics|py_utils)\.cc:\d+\]"
    r"|To enable the following instructions"
)


def quieten() -> None:
    """Hides TensorFlow's startup lines from stderr, in this process and its children.

    Does nothing if the user set another log level, or if TensorFlow is already loaded.
    """
    if os.environ.get(LEVEL, _QUIET) != _QUIET or "tensorflow" in sys.modules:
        return
    os.environ[LEVEL] = _QUIET
    sys.meta_path.insert(0, _QuietImport())


class _QuietImport(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _QuietLoader(spec.loader.name, spec.loader.path)
        return spec


class _QuietLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        with _without_noise():
            super().exec_module(module)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (AttributeError, OSError):  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            os.write(2, without_noise(file.read()))


def without_noise(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not _NOISE.match(line.decode("utf-8", "replace")))
