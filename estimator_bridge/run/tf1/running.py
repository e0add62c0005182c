"""Makes a TensorFlow 1 program, and only the program, find TensorFlow 1."""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType

from estimator_bridge import errors
from estimator_bridge.run.namespaces import imports_from, load, refusal
from estimator_bridge.run.program_lines import Libraries
from estimator_bridge.run.tf1 import contrib_names, detection, reading
from tf2_engine import tf_compat
from tf2_engine.types import Object


@contextlib.contextmanager
def as_tf1(script: str | None = None) -> Iterator[None]:
    """Makes a program import TensorFlow 1, and disables TensorFlow 2's behavior for good."""
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    with names_of_tf1(script):
        yield


@contextlib.contextmanager
def names_of_tf1(script: str | None = None) -> Iterator[None]:
    with tf_compat.names_of_tf1(), seen_by_programs(TF1View(), script):
        yield


@contextlib.contextmanager
def as_needed(
    script: str,
    tf1: bool | None,
    tell: Callable[[str], object],
    view: Callable[[str], AbstractContextManager[None]] = as_tf1,
    folder: str | None = None,
) -> Iterator[bool]:
    """Lets a program import TensorFlow 1 in the context if it needs to; yields whether it does.

    If `tf1` is None, the program's source decides, and `tell` is called with the reason. If the
    program fails, `tell` is called with advice. `folder` is where the program imports from, by
    default the script's folder.
    """
    use = None
    if tf1 is None:
        use = detection.find_use(script, folder)
        tf1 = use is not None
        if use is not None:
            tell(
                f"the program names {use}, which TensorFlow 2 lacks, so it runs as with --tf1, "
                "which lets it import TensorFlow 1 (--no-tf1 leaves TensorFlow as it is)."
            )
    if tf1:
        try:
            with view(script):
                yield True
        except Exception as error:
            _explain(error, use, tell)
            raise
        return
    try:
        yield False
    except (AttributeError, ImportError) as error:
        remedy = remedy_for(error)
        if remedy is not None:
            tell(remedy)
        raise


def _explain(error: Exception, use: reading.Use | None, tell: Callable[[str], object]) -> None:
    name = detection.missing_name(error)
    if name is not None:
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        tell(
            f"{file} needs {name}, which only TensorFlow 1 has. The file belongs to an installed "
            "library, and libraries see TensorFlow 2. If the file is part of the program, do not "
            "install it: keep it in the program's folder, or put its folder on PYTHONPATH."
        )
    elif use is not None:
        tell(
            f"the program that failed saw TensorFlow 1, because it names {use}. If it is written "
            "for TensorFlow 2, run it with --no-tf1."
        )


def remedy_for(error: BaseException) -> str | None:
    name = detection.missing_name(error)
    if name is None:
        return None
    return f"the program fails because of {name}, which only TensorFlow 1 has. Run it with --tf1."


VERSION = "1.15.5"
"""The `tf.__version__` that programs see: the last release that has the names of TensorFlow 1."""

_ROOT = "tensorflow"
_CONTRIB = f"{_ROOT}.contrib"

# Packages of TensorFlow that are not attributes of a public module; the view has them unchanged.
_PACKAGES = ("compiler", "core", "lite", "python", "tools")


class ContribModule(ModuleType):
    """The module at a path below `tf.contrib`. Its names are loaded on first use."""

    def __init__(self, path: str, view: TF1View) -> None:
        super().__init__(f"{_CONTRIB}.{path}".removesuffix("."))
        self.__path__: list[str] = []  # imports find only what the view has
        self._path, self._view = path, view
        self.__all__ = sorted(contrib_names.MODULES[path])

    def __getattr__(self, name: str) -> Object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        path = f"{self._path}.{name}".removeprefix(".")
        target = contrib_names.MODULES[self._path].get(name)
        if path in contrib_names.EMPTY and imports_from(sys._getframe(1)):
            return self._view.module(f"{_CONTRIB}.{path}")
        try:
            if target is not None:
                value = _load(target, path)
            elif path in contrib_names.MODULES and path not in contrib_names.EMPTY:
                value = self._view.module(f"{_CONTRIB}.{path}")
            else:
                raise errors.UnsupportedImport(contrib_names.refusal(path), name=name)
        except errors.UnsupportedImport as error:
            raise refusal(str(error), name) from error
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        below = contrib_names.submodules(self._path)
        return sorted({*super().__dir__(), *self.__all__, *below})


class TF1View(ModuleType):
    """`tensorflow` for a TF1 program: `tf.compat.v1` with `contrib` and the version 1.15.

    The submodules are TensorFlow's own: if a program sets an attribute on one, all modules see it.
    """

    def __init__(self) -> None:
        super().__init__(_ROOT, "TensorFlow 1, as far as TensorFlow 2 still has it.")
        self._v1 = importlib.import_module("tensorflow.compat.v1")
        self._modules: dict[str, ModuleType] = {_ROOT: self, f"{_ROOT}.compat.v1": self}
        self.__path__: list[str] = list(importlib.import_module(_ROOT).__path__)
        self.__version__ = self.VERSION = VERSION
        self.compat = _Compat(self)

    def __getattr__(self, name: str) -> Object:
        if name == "contrib":
            return self.module(_CONTRIB)
        if name in _PACKAGES:
            return importlib.import_module(f"{_ROOT}.{name}")
        try:
            return getattr(self._v1, name)
        except AttributeError:
            raise AttributeError(
                f"module 'tensorflow' has no attribute {name!r}. `estimator-bridge run --tf1` "
                "makes the module from tf.compat.v1 of TensorFlow 2, which lacks this name."
            ) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._v1), "contrib"})

    def module(self, path: str) -> ModuleType:
        if path not in self._modules:
            self._modules[path] = self._find(path)
        return self._modules[path]

    def _find(self, path: str) -> ModuleType:
        if f"{path}.".startswith(f"{_CONTRIB}."):
            below = path.removeprefix(_CONTRIB).removeprefix(".")
            if below not in contrib_names.MODULES:
                raise errors.UnsupportedImport(contrib_names.refusal(below), name=path)
            whole = contrib_names.WHOLE.get(below)
            module: ModuleType = _load(whole, below) if whole else ContribModule(below, self)
            return module
        names = path.removeprefix(f"{_ROOT}.").removeprefix("compat.v1.").split(".")
        if names[0] not in (*_PACKAGES, "compat"):
            # The view has public modules in version 1. Many are attributes that cannot be imported.
            root: Object = self
            target = functools.reduce(lambda owner, name: getattr(owner, name, None), names, root)
            if isinstance(target, ModuleType):
                return target
        return importlib.import_module(path)


class _Compat(ModuleType):
    """The view's `tf.compat`. Its `v1` is the view itself, as in TensorFlow 1."""

    def __init__(self, view: TF1View) -> None:
        super().__init__(f"{_ROOT}.compat")
        self.v1 = view
        self._compat = importlib.import_module(f"{_ROOT}.compat")

    def __getattr__(self, name: str) -> Object:
        return getattr(self._compat, name)


def _load(target: str, path: str) -> Object:
    package = target.partition(":")[0].partition(".")[0]
    try:
        return load(target)
    except ModuleNotFoundError as error:
        if error.name != package or package != "tf_slim":
            raise
        raise errors.UnsupportedImport(
            f"`tf.contrib.{path}` needs the package {package}, which is not installed. Install it: "
            f"pip install {package}.",
            name=package,
        ) from error


@contextlib.contextmanager
def seen_by_programs(view: TF1View, script: str | None = None) -> Iterator[None]:
    """Makes `import tensorflow` return `view` in the modules of the program or its project.

    The bridge and libraries still get TensorFlow itself.
    """
    # Only this function learns which module imports. A finder on sys.meta_path, or another entry in
    # sys.modules, would change TensorFlow for libraries too.
    stock_import, stock_import_module = builtins.__import__, importlib.import_module
    libraries = Libraries(script)

    def import_(
        name: str,
        globals: Mapping[str, Object] | None = None,
        locals: Mapping[str, Object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not _is_tensorflow(name) or not _is_of_program(globals, libraries):
            return stock_import(name, globals, locals, fromlist or (), level)
        module = view.module(name)
        if not fromlist:
            return view
        for each in () if isinstance(module, ContribModule) else fromlist:
            if each != "*" and not hasattr(module, each):
                with contextlib.suppress(ImportError):  # the import itself will say what is missing
                    setattr(module, each, view.module(f"{name}.{each}"))
        return module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        caller = sys._getframe(1).f_globals
        if _is_tensorflow(name) and _is_of_program(caller, libraries):
            return view.module(name)
        return stock_import_module(name, package)

    builtins.__import__, importlib.import_module = import_, import_module
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = stock_import, stock_import_module


def _is_tensorflow(name: str) -> bool:
    return name == _ROOT or name.startswith(f"{_ROOT}.")


def _is_of_program(variables: Mapping[str, Object] | None, libraries: Libraries) -> bool:
    path = (variables or {}).get("__file__")
    if (variables or {}).get("__name__") == "__main__":
        return True
    return isinstance(path, str) and not libraries.have(path)
