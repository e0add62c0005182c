"""Lazy packages have all promised names, and import nothing heavy to list them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re

import pytest

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT

LAZY = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for package in ("estimator_bridge", "tf2_engine")
    for path in (ROOT / package).rglob("__init__.py")
    if "lazy.exports(" in path.read_text()
)


def test_install_is_a_name_of_the_package() -> None:
    """Programs that `migrate` writes import `estimator_bridge.install`, without a warning."""
    program = """
from estimator_bridge import install
import estimator_bridge.install, sys
from estimator_bridge.run import install as implementation

assert "tensorflow" not in sys.modules
for name in ("install", "installed", "uninstall"):
    assert getattr(install, name) is getattr(implementation, name)
assert estimator_bridge.install is install
"""
    fresh.python("-W", "error", "-c", program, check=True, cwd=ROOT)


def checked_names(package: str) -> set[str]:
    """Returns the names that a package imports for type checkers."""
    names = set()
    source = inspect.getsource(importlib.import_module(package))
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                assert isinstance(statement, ast.ImportFrom)
                names |= {alias.name for alias in statement.names}
    return names


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_package_has_the_names_that_type_checkers_see(package: str) -> None:
    """`__all__`, `dir` and the imports for type checkers agree, and every name can be imported."""
    module = importlib.import_module(package)
    names = checked_names(package)

    assert names
    assert set(module.__all__) == names
    assert names <= set(dir(module))
    for name in names:
        assert getattr(module, name) is vars(module)[name], "a name is looked up once"
    namespace: dict[str, object] = {}
    exec(f"from {package} import *", namespace)
    assert names <= set(namespace)
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'never'"):
        _ = module.never


def test_names_are_read_without_tensorflow() -> None:
    """Importing the packages, and asking for their names, loads no TensorFlow.

    Nor do the modules of `verify` that compare and report.
    """
    program = f"""
import importlib, sys
from estimator_bridge.verification import api, procedure
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.record import processes
from estimator_bridge.verification.report import page
for package in {LAZY!r}:
    print(*dir(importlib.import_module(package)))
assert "tensorflow" not in sys.modules
"""
    ran = fresh.python("-c", program, check=True, cwd=ROOT)

    assert re.search(r"\bAdam\b.*\bTPUEmbedding\b", ran.stdout.replace("\n", " "))
