"""`migrate --form keras` of a folder rewrites modules that import each other as one program."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Mapping

import pytest

from compat_tests.migrate.test_packages import MODULES
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.migrate.keras_form.package import migrate_package
from estimator_bridge.migrate.keras_form.program_text.linked_modules import ModuleText
from estimator_bridge.migrate.rewrite_report import Rewritten

IN_PATH = "import sys\nsys.path.append('.')\n"


def migrated(modules: Mapping[str, str], package: str = "job") -> dict[str, Rewritten]:
    """Rewrites the modules of a package; returns the results by file."""
    texts = []
    for file, text in modules.items():
        if file.endswith(".py"):
            name = file.removesuffix(".py").replace("__init__", "")
            full = ".".join(filter(None, (package, name)))
            texts.append(ModuleText(file, full, file == "__init__.py", text))
    return migrate_package(texts, package)


def sources(modules: Mapping[str, str], package: str = "job") -> dict[str, str]:
    return {file: each.source for file, each in migrated(modules, package).items()}


def test_each_module_has_its_part_and_imports_what_it_needs() -> None:
    """The class takes the place of the model_fn, and other modules refer to it in the same way."""
    new = sources(MODULES)

    assert new["__init__.py"] == new["common.py"] == ""
    assert new["settings.py"] == MODULES["settings.py"]
    assert "def input_fn(batch_size):\n" in new["inputs.py"]
    assert new["inputs.py"].startswith("import tensorflow as tf\n")
    assert "class Model(TableModel):\n" in new["model.py"]
    assert "def spec(" not in new["model.py"]
    assert new["train.py"].startswith("import job.model\nfrom job import inputs, settings\n")
    assert "    model = job.model.Model(embedding)\n" in new["train.py"]
    assert "  model.fit(inputs.input_fn(4), max_steps=3)\n" in new["train.py"]
    assert "from tf2_engine.keras import ColumnEmbedding, tpu_strategy\n" in new["train.py"]
    assert "DenseFeatures" not in new["train.py"]
    assert sources(new) == new


def test_names_that_modules_share_keep_their_meaning() -> None:
    """Each module keeps its own `size`, flags and `main`, also under import aliases."""
    modules = {
        "inputs.py": "from absl import flags\n\nFLAGS = flags.FLAGS\nsize = 5\n\n\ndef main():\n"
        "  return size\n\n\n" + MODULES["inputs.py"].replace("(9)", "(size + main())"),
        "model.py": MODULES["model.py"]
        .replace("from .common import tf", "from .common import tf as t")
        .replace("tf.tpu", "t.tpu")
        .replace("tf.feature", "t.feature")
        .replace("tf.keras", "t.keras")
        .replace("tf.layers", "t.layers")
        .replace("tf.losses", "t.losses")
        .replace("tf.train", "t.train"),
        "train.py": "from absl import flags\n\nfrom .inputs import input_fn as read, size as many\n"
        "from . import model as m, settings\nfrom .common import tf_estimator as est\n\n"
        "FLAGS = flags.FLAGS\nsize = 4\n\n\ndef main(input_fn=3):\n"
        + MODULES["train.py"]
        .partition("def main():\n")[2]
        .replace("job.model", "m")
        .replace("inputs.input_fn", "read")
        .replace("train_batch_size=4", "train_batch_size=size")
        .replace("  estimator.train", "  print(many, input_fn)\n  estimator.train"),
    }
    new = sources({**MODULES, **modules})

    assert "__of_" not in "".join(new.values())
    assert "size = 5\n\n\ndef main():\n  return size\n" in new["inputs.py"]
    assert ".repeat(size + main())" in new["inputs.py"]
    assert "size = 4\n" in new["train.py"]
    assert "from . import model as m, settings\n" in new["train.py"]
    assert "model = m.Model(embedding)" in new["train.py"]
    assert "from .inputs import input_fn as read, size as many\n" in new["train.py"]
    assert "  print(many, input_fn)\n  model.fit(read(size), max_steps=3)\n" in new["train.py"]
    assert "FLAGS = flags.FLAGS\n" in new["train.py"]
    assert "FLAGS = flags.FLAGS\n" in new["inputs.py"]
    for text in new.values():
        compile(text, "it", "exec", dont_inherit=True)


def test_modules_without_tensorflow_stay_to_the_byte() -> None:
    """Modules without TensorFlow are not even read as part of the program."""
    odd = "x = [1,2 ]\n\n\n\n\n\ny = lambda *a: print(  *a )"
    assert sources({**MODULES, "other.py": odd})["other.py"] == odd


@pytest.mark.parametrize(
    ("file", "code", "why"),
    [
        (
            "train.py",
            "def late():\n  from job import model\n  return model\n",
            "imported in a func",
        ),
        ("train.py", "from job.model import *\n", "or all of them"),
        ("train.py", "from job.model import nowhere\nprint(nowhere)\n", "does not bind it"),
    ],
)
def test_names_that_cannot_be_followed_are_refused(file: str, code: str, why: str) -> None:
    """The refusal names the file and the line."""
    changed = {**MODULES, file: code + MODULES[file]}
    with pytest.raises(errors.Untranslatable, match=rf"{file}, line \d: \[keras-import\].*{why}"):
        sources(changed)


def test_blockers_and_the_report_have_files_and_lines() -> None:
    """The lines are those of the package's files, not of the linked program."""
    model = MODULES["model.py"].replace("  optimizer =", "  tf.Variable(0.)\n  optimizer =")
    with pytest.raises(errors.Untranslatable, match=r"model\.py, line 11: \[keras-variable"):
        sources({**MODULES, "model.py": model})
    model = model.replace("tf.Variable(0.)", "tf.add_to_collection('x', loss)")
    new = sources({**MODULES, "model.py": model})["model.py"]
    assert "# TODO(estimator-bridge): keras-no-counterpart: line 11: " in new
    train = MODULES["train.py"].replace("model_dir=", "log_step_count_steps=1, model_dir=")
    (line,) = migrated({**MODULES, "train.py": train})["train.py"].lines
    assert (line.file, line.line) == ("train.py", 9)
    assert "log_step_count_steps is left out" in line.why[:1].lower() + line.why[1:]


@pytest.mark.full
def test_verify_calls_a_package_and_its_keras_form_equal(tmp_path: pathlib.Path) -> None:
    """From side A's initial values the new package computes the same numbers in each step."""
    for folder, modules in (("job", MODULES), ("job_keras", sources(MODULES))):
        (tmp_path / folder).mkdir()
        for file, text in modules.items():
            code = text.replace("import job", f"import {folder}").replace(
                "from job", f"from {folder}"
            )
            code = code.replace("job.model.", f"{folder}.model.")
            (tmp_path / folder / file).write_text(IN_PATH * (file == "train.py") + code)
    command = [sys.executable, "-W", "ignore", "-m", "estimator_bridge", "verify", "--steps", "3"]
    sides = ("--a", "bridge-tpu", "--against", "job_keras/train.py", "job/train.py")
    ran = subprocess.run([*command, *sides], cwd=tmp_path, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "EQUAL" in ran.stdout


def test_a_package_that_needs_an_edit_keeps_its_estimators(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mark is in the module of the statement; migrating the new folder changes nothing."""
    job, new = tmp_path / "job", tmp_path / "job_keras"
    job.mkdir()
    for file, text in MODULES.items():
        (job / file).write_text(text)
    model = MODULES["model.py"].replace(
        "  optimizer =", "  tf.Variable(0.)\n  tf.GradientTape()\n  optimizer ="
    )
    (job / "model.py").write_text(model)

    assert main.main(["migrate", "--form", "keras", str(job)]) == 3
    lines = (new / "model.py").read_text().splitlines()
    number = lines.index("  tf.GradientTape()")
    marked = [
        each
        for each in range(number)
        if "TODO(estimator-bridge): gradient-tape: tf.G" in lines[each]
    ]
    assert len(marked) == 1
    assert all(each.startswith("  #") for each in lines[marked[0] : number])
    assert f"{new / 'model.py'}, line {marked[0] + 1}: gradient-tape" in capsys.readouterr().err
    assert "estimator_bridge" in (new / "train.py").read_text()
    assert main.main(["migrate", "--form", "keras", "--in_place", str(new)]) == 3
    assert (new / "model.py").read_text().splitlines() == lines
