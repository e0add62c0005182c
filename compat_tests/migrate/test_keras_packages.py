"""`migrate --form keras` of a folder writes a model that runs the model_fn of a module."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import pytest

from compat_tests.migrate.test_packages import MODULES
from compat_tests.migrate.test_tf2_form_runs import check_equal
from estimator_bridge.cli import main
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.forms import FORMS

IN_PATH = "import sys\nsys.path.append('.')\n"


def sources(modules: Mapping[str, str], folder: pathlib.Path) -> dict[str, str]:
    """Writes the modules of a package into a folder, and returns their new sources by file."""
    folder.mkdir(exist_ok=True)
    for file, text in modules.items():
        (folder / file).write_text(text)
    new = packages.rewrite_all(FORMS["keras"], packages.sources_of(folder), folder)
    return {file: each.source for file, each in new.items()}


def test_the_model_of_a_package_runs_the_model_fn_of_its_module(tmp_path: pathlib.Path) -> None:
    """Each module keeps its part; those without TensorFlow stay to the byte."""
    odd = "x = [1,2 ]\n\n\n\n\n\ny = lambda *a: print(  *a )"
    new = sources({**MODULES, "other.py": odd}, tmp_path / "job")

    assert new["other.py"] == odd
    assert new["settings.py"] == MODULES["settings.py"]
    assert "def input_fn(params):\n" in new["inputs.py"]
    assert "return ModelSpec(" in new["model.py"]
    assert "  estimator = TrainerModel(\n      job.model.model_fn, " in new["train.py"]
    assert sources(new, tmp_path / "job") == new


@pytest.mark.full
def test_verify_calls_a_package_and_its_keras_form_equal(tmp_path: pathlib.Path) -> None:
    """From side A's initial values the new package computes the same numbers in each step."""
    new = sources(MODULES, tmp_path / "job")
    for folder, modules in (("job", MODULES), ("job_keras", new)):
        (tmp_path / folder).mkdir(exist_ok=True)
        for file, text in modules.items():
            code = text.replace("import job", f"import {folder}").replace(
                "from job", f"from {folder}"
            )
            code = code.replace("job.model.", f"{folder}.model.")
            (tmp_path / folder / file).write_text(IN_PATH * (file == "train.py") + code)
    check_equal(tmp_path, "bridge-tpu", "job_keras/train.py", "job/train.py", steps=3)


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
