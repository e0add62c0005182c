"""`run`, with `-m` and without, starts programs as Python itself does."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest

from compat_tests.support import fresh
from estimator_bridge import errors
from estimator_bridge.run.script import program_of

_SHOW = """
import os, sys
import beside
spec = None if __spec__ is None else (__spec__.name, __spec__.parent)
print(__name__, __package__ or None, spec, beside.WHERE)
print([os.path.basename(sys.argv[0]), *sys.argv[1:]])
print(os.path.realpath(sys.path[0] or "."))
print(sys.modules["__main__"].__dict__ is globals())
"""
_RELATIVE = "from . import other\nfrom .. import beside as above\nprint(other.NAME, above.WHERE)\n"
_FILES = {
    "script.py": _SHOW,
    "beside.py": "WHERE = 'the folder itself'\n",
    "package/__init__.py": "import sys\nARGUMENTS = list(sys.argv)\n",
    "package/beside.py": "WHERE = 'the package'\n",
    "package/__main__.py": _SHOW
    + "if __package__:\n    import package as p\n    print(p.ARGUMENTS)\n",
    "package/jobs/__init__.py": "",
    "package/jobs/other.py": "NAME = __name__\n",
    "package/jobs/train.py": _SHOW + _RELATIVE,
    # Namespace packages have no __init__.py: alone, and in a package.
    "spaces/train.py": _SHOW,
    "package/spaces/train.py": _SHOW,
    "ends.py": "import sys\nsys.exit(int(sys.argv[1]))\n",
    "ends_with_text.py": "import sys\nsys.exit('why it ends')\n",
    "fails.py": "raise ValueError('the cause')\n",
    "broken/__init__.py": "raise ValueError('of the package')\n",
    "broken/train.py": "",
    "lacks.py": "import package.nothing\n",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a folder with programs, and a link to one of them from another folder."""
    home = tmp_path_factory.mktemp("home")
    for name, text in _FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (home / "links").mkdir()
    (home / "links/script.py").symlink_to(home / "script.py")
    return home


_RUN = """
import sys
from estimator_bridge.run import script
is_module = sys.argv[1] == "-m"
name, *arguments = sys.argv[1 + is_module:]
script.run_program(script.program_of(name, is_module), arguments)
"""


def _python(home: pathlib.Path, *words: str) -> Any:
    return subprocess.run([sys.executable, *words], cwd=home, capture_output=True, text=True)


@pytest.mark.parametrize(
    "words",
    [
        ("script.py", "a", "--b=1"),
        ("links/script.py",),
        ("package", "a"),
        ("package/__main__.py",),
        ("-m", "script", "--steps", "3"),
        ("-m", "package", "a"),
        ("-m", "package.__main__"),
        ("-m", "package.jobs.train", "-m", "--s=1", "--tf1"),
        ("-m", "spaces.train"),
        ("-m", "package.spaces.train"),
    ],
    ids=" ".join,
)
def test_a_program_is_started_as_python_starts_it(
    words: tuple[str, ...], home: pathlib.Path
) -> None:
    """Its name, package, spec, arguments, search path and relative imports are Python's."""
    plain, ran = _python(home, *words), _python(home, "-c", _RUN, *words)

    assert plain.returncode == 0, plain.stderr
    assert (ran.stdout, ran.returncode) == (plain.stdout, 0), ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "package.jobs.train", "--steps", "3", "--s=1"),
        ("ends.py", "3"),
        ("-m", "ends", "3"),
        pytest.param(("-m", "ends_with_text"), marks=pytest.mark.full),
        ("-m", "fails"),
        ("-m", "broken.train"),
        pytest.param(("-m", "lacks"), marks=pytest.mark.full),
        pytest.param(("fails.py",), marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_run_ends_as_the_program_does(words: tuple[str, ...], home: pathlib.Path) -> None:
    """Output, exit status and error are Python's, and the traceback shows the program alone."""
    plain = _python(home, *words)
    ran = fresh.module("estimator_bridge", "run", *words, cwd=home)

    assert (ran.stdout, ran.returncode) == (plain.stdout, plain.returncode), ran.stderr
    ours, last = plain.stderr.splitlines()[-1:], ran.stderr.splitlines()[-1:]
    assert ours == last or not ours
    assert "estimator_bridge/" not in ran.stderr


@pytest.mark.parametrize(
    "name, is_module, cause",
    [
        ("nothing.py", False, "there is no program 'nothing.py'"),
        ("package/jobs", False, "'package/jobs' has no __main__.py to run"),
        ("nothing", True, "there is no module 'nothing'"),
        ("package.nothing", True, "there is no module 'package.nothing'"),
        ("script.below", True, "there is no module 'script.below'"),
        ("script.py", True, "there is no module 'script.py'. Leave out .py"),
        ("package.jobs", True, "'package.jobs' has no __main__.py to run"),
        ("", True, "there is no module ''"),
        (".jobs", True, "there is no module '.jobs'"),
    ],
)
def test_what_cannot_be_run_is_named(
    name: str,
    is_module: bool,
    cause: str,
    home: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that is not there is an error of its own, which names the way out."""
    monkeypatch.chdir(home)

    with pytest.raises(errors.InvalidInput) as caught:
        program_of(name, is_module)
    assert cause in str(caught.value)


def test_a_module_is_found_without_its_packages_being_imported(
    home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package may import tensorflow.estimator, which is not there before the bridge is."""
    monkeypatch.chdir(home)

    assert program_of("broken.train", is_module=True).file == str(home / "broken/train.py")
