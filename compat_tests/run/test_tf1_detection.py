"""Which programs get TensorFlow 1, by their unguarded uses, and which files belong to them."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from estimator_bridge.run.program_lines import Libraries
from estimator_bridge.run.tf1 import detection


@pytest.mark.parametrize(
    "text, name",
    [
        ("import tensorflow as tf\ntf.placeholder", "tf.placeholder"),
        ("import tensorflow as tf\ntf.train.AdamOptimizer(1)", "tf.train.AdamOptimizer"),
        ("import tensorflow as t\nt.contrib.layers", "t.contrib.layers"),
        ("import tensorflow.contrib.slim as slim", "tensorflow.contrib.slim"),
        ("def f():\n  from tensorflow.contrib import tpu", "tensorflow.contrib.tpu"),
        ("import tensorflow.compat.v1 as tf\ntf.placeholder", None),
        ("import tensorflow as tf\ntf.keras.layers.Dense(1)\ntf.io.gfile.exists('x')", None),
        ("import tensorflow as tf\ntf.compat.v1.placeholder", None),
        ("import tensorflow as tf\ntf = tf.compat.v1\ntf.placeholder", None),
        ("import other as tf\ntf.placeholder", None),
        ("this is no Python", None),
    ],
)
def test_programs_of_tensorflow_1_are_told_by_their_source(
    text: str, name: str | None, tmp_path: pathlib.Path
) -> None:
    """A use of what only TensorFlow 1 has is found, with its line; other programs have none."""
    script = tmp_path / "job.py"
    script.write_text(text)
    use = detection.find_use(str(script))

    assert (use and use.name) == name
    if use is not None:
        assert use.line == (2 if "\n" in text else 1)


def test_modules_beside_a_script_are_read_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "job.py").write_text("from parts import first\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "first.py").write_text("from . import second\n")
    (tmp_path / "parts" / "second.py").write_text("import tensorflow as tf\n\ntf.flags\n")
    use = detection.find_use(str(tmp_path / "job.py"))

    assert str(use) == "tf.flags (second.py, line 3)"


def test_a_failure_for_a_name_of_tensorflow_1_is_recognized() -> None:
    """Only TensorFlow's own modules, and names that TensorFlow 1 has, are recognised."""
    for owner, name, wanted in (
        (tf, "contrib", "tf.contrib"),
        (tf, "placeholder", "tf.placeholder"),
        (tf.train, "AdamOptimizer", "tf.train.AdamOptimizer"),
        (tf, "nonsense", None),
        (np, "placeholder", None),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        caught.value.obj, caught.value.name = owner, name
        assert detection.missing_name(caught.value) == wanted
    for name, wanted in (("flags", "tensorflow.flags"), ("nonsense", None)):
        with pytest.raises(ImportError) as not_found:
            exec(f"from tensorflow import {name}")
        assert detection.missing_name(not_found.value) == wanted
    missing = ModuleNotFoundError("No module", name="tensorflow.contrib")
    assert detection.missing_name(missing) == "tensorflow.contrib"
    assert detection.missing_name(ModuleNotFoundError("No module", name="other")) is None


TF = "import tensorflow as tf\n"


def _by_heading(text: str) -> dict[str, str]:
    """Takes a text of small programs apart, each below a comment that names it."""
    _, *parts = re.split(r"^# (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


OF_BOTH = _by_heading(
    """
# a name in try
try:
  f = tf.gfile
except AttributeError:
  f = tf.io.gfile
# a new name in try
try:
  f = tf.io.gfile
except AttributeError:
  f = tf.gfile
# any error
try:
  tf.logging.info("a")
except Exception:
  pass
# a bare except
try:
  f = tf.gfile
except:
  f = tf.io.gfile
# an import in try
try:
  from tensorflow.contrib import rnn
except ImportError:
  rnn = None
if rnn is not None:
  tf.contrib.rnn
# a flag in try
try:
  import tensorflow.contrib
  OLD = True
except ImportError:
  OLD = False
x = tf.contrib if OLD else 1
# else of try
try:
  tf.contrib
except AttributeError:
  pass
else:
  tf.contrib.rnn
# compat.v1 in try
try:
  import tensorflow.compat.v1 as tf
  tf.disable_v2_behavior()
except ImportError:
  import tensorflow as tf
tf.placeholder
# suppress
import contextlib
with contextlib.suppress(AttributeError):
  tf.logging.info("a")
# hasattr
if hasattr(tf, "contrib"):
  tf.contrib.layers
# not hasattr
if not hasattr(tf, "placeholder"):
  tf = tf.compat.v1
tf.placeholder
# getattr
contrib = getattr(tf, "contrib", None)
if contrib is not None:
  tf.contrib.layers
# and
x = hasattr(tf, "contrib") and tf.contrib.layers
# and a flag
import args
if hasattr(tf, "contrib") and args.old:
  tf.contrib.layers
# startswith
if tf.__version__.startswith("1."):
  tf.placeholder
# first letter
if "1" == tf.__version__[0]:
  tf.placeholder
# int
if int(tf.__version__.split(".")[0]) < 2:
  tf.placeholder
# map
major, minor = map(int, tf.__version__.split(".")[:2])
OLD = major < 2
def f():
  if OLD:
    return tf.placeholder
# a tuple
V = tuple(int(x) for x in tf.__version__.split(".")[:2])
if V < (2, 0):
  tf.flags
# LooseVersion
from distutils.version import LooseVersion as V
if V(tf.__version__) < V("2.0"):
  tf.placeholder
# a text
import distutils.version
if distutils.version.LooseVersion(tf.__version__) < "2.0":
  tf.placeholder
# packaging
from packaging import version
if version.parse(tf.__version__).major < 2:
  tf.placeholder
# pkg_resources
from pkg_resources import parse_version
if parse_version(tf.__version__) >= parse_version("2"):
  pass
else:
  tf.placeholder
# a flag set later
OLD = False
if hasattr(tf, "contrib"):
  OLD = True
if OLD:
  tf.flags
# a function
def is_new():
  return tf.__version__ >= "2"
if not is_new():
  tf.flags
# return
def f():
  if tf.__version__ >= "2":
    return 1
  return tf.placeholder
# a question of eager execution
if not tf.executing_eagerly():
  tf.placeholder
# VERSION or __version__
v = getattr(tf, "VERSION", None) or tf.__version__
if v.startswith("1"):
  tf.flags
# find_spec
import importlib.util
if importlib.util.find_spec("tensorflow.contrib"):
  tf.contrib.layers
# in dir
if "contrib" in dir(tf):
  tf.contrib.layers
# in sys.modules
import sys
x = tf.contrib.x if "tensorflow.contrib" in sys.modules else None
# a pattern
import re
m = re.match(r"(\\d+)", tf.__version__)
if int(m.group(1)) < 2:
  tf.flags
# a pattern that leaves a loop
import re
for i in range(2):
  if re.match("2", tf.__version__):
    break
  tf.flags
# tf2.enabled
from tensorflow.python import tf2
if not tf2.enabled():
  tf.flags
# a pattern of a module
import flags_of_both
if flags_of_both.MATCHED:
  tf.flags
# a pattern of a module, reversed
import flags_of_both
x = 1 if not flags_of_both.MATCHED else tf.flags
# a walrus
if (v := tf.__version__) < "2":
  tf.flags
# an attribute of a class
class A:
  OLD = tf.__version__ < "2"
  def f(self):
    if self.OLD:
      return tf.flags
A().f()
# an attribute of an object
class A:
  def __init__(self):
    self.old = tf.__version__ < "2"
  def f(self):
    return tf.flags if self.old else 1
A().f()
# a function with an argument
def at_least(*version):
  return tuple(map(int, tf.__version__.split(".")[:2])) >= version
if not at_least(2, 0):
  tf.flags
# a function with names of its own
import re
def is_old():
  version = re.match("1", tf.__version__)
  if version:
    return True
  return False
x = is_old() and tf.flags
# a decorator
import unittest
@unittest.skipIf(tf.__version__ >= "2", "old")
def test():
  tf.flags
# a dict by version
x = {"1": lambda: tf.flags, "2": lambda: 1}[tf.__version__[0]]()
# match
match tf.__version__.split("."):
  case ["1", *_]:
    tf.placeholder
  case _:
    pass
# an old Python
import sys
if sys.version_info < (3,):
  tf.flags
# six
import six
if six.PY2:
  tf.flags
# a version of a distribution
import importlib.metadata as metadata
if metadata.version("tensorflow") < "2":
  tf.flags
# a check of types
from typing import TYPE_CHECKING
if TYPE_CHECKING:
  from tensorflow.contrib import tpu
# an assertion in try
try:
  assert tf.__version__.startswith("1")
  tf.placeholder
except AssertionError:
  pass
# functions
def old():
  return helper()
def helper():
  return tf.flags
def new():
  pass
if tf.__version__ >= "2":
  new()
else:
  old()
# a class
class Old:
  def __init__(self):
    tf.flags
model = Old() if hasattr(tf, "flags") else None
# a function of try
try:
  from tensorflow.contrib import rnn
  def f():
    return tf.contrib.rnn
except ImportError:
  def f():
    return 1
f()
# a module
if hasattr(tf, "contrib"):
  import old
# a module"s function
import old_functions
if hasattr(tf, "contrib"):
  old_functions.run()
# a module"s flag
from flags_of_both import NEW
if not NEW:
  tf.placeholder
# a module"s answer
import flags_of_both
if not flags_of_both.is_new():
  tf.placeholder
# a module"s tf
from flags_of_both import tf
tf.placeholder
# a rest in a program of both
import sys, old_functions
if tf.__version__ >= "2":
  tf = tf.compat.v1
if sys.argv[1:]:
  old_functions.run()
# a rest in a program of both, which tries
import sys, old_functions
try:
  import tensorflow.compat.v1 as tf
except ImportError:
  import tensorflow as tf
def f(x):
  return old_functions.run() if x else 1
if __name__ == "__main__" and sys.argv[1:]:
  f(0)
# a rest in a function that is chosen
import sys, old_functions
v1 = tf.compat.v1 if hasattr(tf, "compat") else tf
def old():
  old_functions.run()
def main():
  {"old": old}[sys.argv[1]]() if len(sys.argv) > 1 else None
# a rest beside another module that adapts
import sys, adapted, old_functions
while sys.argv[1] == "old":
  try:
    adapted.v1.flags
  except ValueError:
    old_functions.run()
"""
)
MODULES = {
    "old": f"{TF}tf.contrib.layers",
    "adapted": f"{TF}if hasattr(tf, 'contrib'):\n  v1 = tf\nelse:\n  v1 = tf.compat.v1",
    "old_functions": f"{TF}def run():\n  tf.contrib.layers",
    "flags_of_both": "try:\n  import tensorflow.compat.v1 as tf\nexcept ImportError:\n"
    "  import tensorflow as tf\nNEW = tf.__version__ >= '2'\ndef is_new():\n  return NEW\n"
    "import re\nMATCHED = re.match('1', tf.__version__)",
}

OF_TF1 = _by_heading(
    """
# an import
from tensorflow import flags
# an imported module
from tensorflow import train
train.AdamOptimizer(1)
# contrib of compat.v1
import tensorflow.compat.v1 as tf
tf.contrib.layers
# an error of its own
try:
  tf.contrib
except AttributeError:
  raise RuntimeError("old")
# an exit
import sys
try:
  tf.flags
except AttributeError:
  print("old")
  sys.exit(1)
# errors that are told
def main():
  tf.flags
try:
  main()
except Exception as e:
  print(e)
# told at once
try:
  tf.placeholder
except Exception as e:
  print(e)
# another error
try:
  tf.placeholder
except ValueError:
  pass
# finally
try:
  tf.placeholder
finally:
  pass
# an assertion
assert tf.__version__.startswith("1.")
tf.placeholder
# a version that is refused
if tf.__version__ >= "2":
  raise ValueError("old")
tf.flags
# an early version
if tf.__version__ < "1.4":
  pass
else:
  tf.flags
# a condition of the run
import sys
if sys.argv[1] == "old":
  tf.placeholder
# a handler for another module
try:
  import not_there
except ImportError:
  tf.flags
# a function used twice
def old():
  tf.flags
if hasattr(tf, "flags"):
  old()
old()
# a loop
first = True
for i in range(3):
  if first:
    first = False
  else:
    tf.flags
# a global
x = None
def f():
  global x
  x = 1
def g():
  if x:
    tf.flags
# an argument
OLD = hasattr(tf, "flags")
def f(OLD):
  if OLD:
    tf.flags
# set by the run
import sys
OLD = False
if sys.argv[1:]:
  OLD = True
if OLD:
  tf.flags
# a helper that is called always
import old_functions
if tf.__version__ >= "2":
  tf = tf.compat.v1
def main():
  for i in range(3):
    with open("f"):
      old_functions.run()
if __name__ == "__main__":
  main()
# a helper of a class
import adapted, old_functions
class A:
  def __init__(self):
    self.build()
  def build(self):
    try:
      old_functions.run()
    finally:
      pass
A()
# an import that every run does
import adapted, old
# compat.v1 for everybody
import sys
try:
  tf.compat.v1.flags
except Exception:
  pass
tf.compat.v1.logging.info("a")
if sys.argv[1:]:
  tf.placeholder
# a method
class A:
  def f(self):
    return tf.flags
A().f()
# a backend that is called tensorflow
import sys
if sys.argv[1] == "tensorflow":
  tf.placeholder
# a name that the run chooses
import sys
optimizer = getattr(tf.train, sys.argv[1], None)
if optimizer:
  tf.placeholder
# a function that happens to ask
def build():
  print(tf.__version__)
  return 3 * len("abc")
if build():
  tf.flags
# an option beside the version
import sys
if sys.argv[1:] or tf.__version__ < "2":
  tf.flags
"""
)


def _use_in(folder: pathlib.Path, text: str) -> detection.Use | None:
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "job.py").write_text(f"{TF}{text}\n")
    return detection.find_use(str(folder / "job.py"))


@pytest.mark.parametrize("guard", OF_BOTH)
def test_a_guarded_use_does_not_count(guard: str, tmp_path: pathlib.Path) -> None:
    """A program that asks for the version, and has another way with TensorFlow 2, stays with it."""
    assert _use_in(tmp_path, OF_BOTH[guard]) is None


@pytest.mark.parametrize("use", OF_TF1)
def test_an_unguarded_use_counts(use: str, tmp_path: pathlib.Path) -> None:
    """A program that needs TensorFlow 1 is found, whatever else it asks or catches."""
    assert _use_in(tmp_path, OF_TF1[use]) is not None


def test_conditions_are_not_executed(tmp_path: pathlib.Path) -> None:
    """To read a program calls nothing of it, and nothing of TensorFlow."""
    there = tmp_path / "there"
    there.write_text("")
    calls = [f"tf.io.gfile.remove({str(there)!r})", f"__import__('os').remove({str(there)!r})"]
    for call in (*calls, "().__class__.__base__.__subclasses__()"):
        assert _use_in(tmp_path, f"if {call} or tf.__version__ < '2':\n  tf.flags") is not None
    assert there.exists()


SEES = """
import tensorflow as tf
def seen():
    return tf.__version__
"""


def _module(folder: pathlib.Path, name: str, text: str = SEES) -> str:
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def _record(folder: pathlib.Path, *files: str) -> None:
    """Writes what `pip install --target` leaves beside files."""
    info = folder / "lib-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{each},,\n" for each in files))


def test_what_an_installer_put_somewhere_is_a_library(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded files are a library wherever they are; what lies beside them is not."""
    job, target = tmp_path / "job", tmp_path / "target"
    script = _module(job, "train")
    monkeypatch.setenv("PYTHONPATH", str(target))
    _record(target, "lib/__init__.py", "google/lib/a.py")
    _record(job, "lib/a.py")
    libraries = Libraries(script)

    for folder, name in [
        (target, "lib.__init__"),
        (target, "google.lib.a"),
        (job, "lib.a"),
        (tmp_path / "conda/lib/python3.10/site-packages", "lib.a"),
        (tmp_path / "usr/lib/python3/dist-packages", "lib"),
        (job / ".venv/lib/python3.11/site-packages", "lib"),
        (pathlib.Path(np.__file__).parent, "x"),
        (pathlib.Path(subprocess.__file__).parent, "x"),
    ]:
        path = folder / f"{name.replace('.', '/')}.py"
        assert libraries.have(str(path)), path
    for folder, name in [
        *((job, "model"), (job, "third_party.lib.a"), (job, "lib.b"), (target, "own")),
        *((target, "google.own.a"), (tmp_path / "elsewhere", "plugin")),
    ]:
        path = folder / f"{name.replace('.', '/')}.py"
        assert not libraries.have(str(path)), path


def test_links_to_installed_files_are_a_library(tmp_path: pathlib.Path) -> None:
    """A file is a library's if it is installed by either name that it has."""
    store, site = tmp_path / "store", tmp_path / "lib" / "site-packages"
    _module(store, "lib.a")
    site.mkdir(parents=True)
    (site / "lib").symlink_to(store / "lib")
    libraries = Libraries(_module(tmp_path, "train"))

    assert libraries.have(str(site / "lib" / "a.py"))
    assert not libraries.have(str(store / "lib" / "a.py"))


@pytest.mark.parametrize("by", ["direct_url.json", ".pth"])
def test_an_editable_install_is_a_library_of_others(
    by: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's own project is none, and what PYTHONPATH names belongs to the program."""
    project, other = tmp_path / "own project", tmp_path / "other"
    for each in (project, other):
        (each / "src").mkdir(parents=True)
        (each / "setup.py").write_text("")
        if by == ".pth":
            monkeypatch.setattr(sys, "path", [*sys.path, str(each / "src")])
        else:
            info = tmp_path / "env" / f"{each.name.partition(' ')[0]}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Name: {each.name}\nVersion: 1.0\n")
            origin = f'{{"url": "{each.as_uri()}", "dir_info": {{"editable": true}}}}'
            (info / "direct_url.json").write_text(origin)
            monkeypatch.syspath_prepend(str(tmp_path / "env"))
    model, lib = str(project / "src" / "model.py"), str(other / "src" / "lib.py")
    of_program = Libraries(str(project / "scripts" / "train.py"))
    elsewhere = Libraries(str(tmp_path / "train.py"))
    monkeypatch.setenv("PYTHONPATH", str(other / "src"))
    named = Libraries(str(project / "scripts" / "train.py"))

    assert (of_program.have(model), of_program.have(lib)) == (False, True)
    assert (elsewhere.have(model), elsewhere.have(lib)) == (True, True)
    assert (named.have(model), named.have(lib)) == (False, False)


def test_a_program_that_is_installed_is_its_package(tmp_path: pathlib.Path) -> None:
    """The package of a script in site-packages is the program; what lies beside it is not."""
    site = tmp_path / "site-packages"
    for name in ("job.__init__", "job.tools.__init__"):
        _module(site, name, "")
    libraries = Libraries(_module(site, "job.tools.train"))

    assert not libraries.have(str(site / "job" / "model.py"))
    assert libraries.have(str(site / "lib" / "model.py"))


@pytest.mark.full
def test_libraries_on_pythonpath_see_tensorflow_2(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two packages on PYTHONPATH, the recorded one sees the installed version."""
    target, folder, job = (tmp_path / name for name in ("target", "own", "job"))
    _module(target, "lib.__init__")
    _record(target, "lib/__init__.py")
    _module(folder, "own_lib")
    text = f"{TF}import lib, own_lib\ntf.flags\nprint(lib.seen(), own_lib.seen())\n"
    script = _module(job, "train", text)
    monkeypatch.setenv("PYTHONPATH", f"{target}:{folder}")
    command = [sys.executable, "-m", "estimator_bridge", "run", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == [tf.__version__, "1.15.5"]
