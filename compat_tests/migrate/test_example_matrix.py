"""All six examples in all three forms: the new text, and `verify`.

| | bridge | tf2 | keras |
|---|---|---|---|
| short, idempotent | here | here | here |
| verify says EQUAL, from a checkpoint | here | here | test_verify_keras |
| resumes from a converted checkpoint | - | test_tf2_form_runs | test_keras_form_runs |
"""

from __future__ import annotations

import ast
import functools
import io
import pathlib
import re
import tokenize

import pytest

from compat_tests.migrate import test_tf2_form_runs as tf2_runs
from compat_tests.migrate.test_keras_form import CARRIED, GOLDENS
from compat_tests.support.paths import EXAMPLES
from estimator_bridge import migrate
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.tf2 import tf2_rules

MORE_LINES = 60
WIDTH = 100
STEPS = 4

REWRITES = {"bridge": migrate.adopt, "tf2": migrate.migrate}


@functools.cache
def written(name: str, form: str) -> str:
    if form == "keras":
        return (GOLDENS / f"{name}.txt").read_text()  # test_keras_form checks this text
    return str(REWRITES[form]((EXAMPLES / name / "train.py").read_text()).source)


def test_the_matrix_has_all_examples_and_forms() -> None:
    assert sorted(CARRIED) == sorted(tf2_runs.EXAMPLES)
    folders = {each.parent.name for each in EXAMPLES.glob("*/train.py")}
    assert folders - {"census"} == {*CARRIED}  # census is canned: test_canned_as_keras
    assert {*FORMS} == {*REWRITES, "keras"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CARRIED)
def test_an_example_stays_short(name: str, form: str) -> None:
    """No form adds many lines to a program, or overlong lines, or remarks to the reader.

    Migrating the new program again changes nothing.
    """
    old, new = (EXAMPLES / name / "train.py").read_text(), written(name, form)
    assert len(new.splitlines()) <= len(old.splitlines()) + MORE_LINES
    kept = {*old.splitlines()}
    assert [each for each in new.splitlines() if len(each) > WIDTH and each not in kept] == []
    assert "estimator-bridge:" not in new
    assert " as tf2_" not in new
    assert packages.rewrite_text(FORMS[form], new, name).source == new


@pytest.mark.parametrize("name", CARRIED)
def test_comments_survive_in_tensorflow_2(name: str) -> None:
    """The tf2 form keeps every comment, except inside dropped code.

    It names no estimator, and has no empty block.
    """
    old, new = (EXAMPLES / name / "train.py").read_text(), written(name, "tf2")

    assert not re.search(r"^ *pass$", new, re.MULTILINE)
    gone = {
        line
        for node in ast.walk(ast.parse(old))
        if isinstance(node, ast.keyword) and node.arg in tf2_rules.ARGUMENTS
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    others = [each for each in comments(old) if each.start[0] not in gone]
    assert all(each.string in new for each in others)
    for node in ast.walk(ast.parse(new)):
        if isinstance(node, ast.ImportFrom):
            assert "tensorflow_estimator" not in str(node.module)
            assert "estimator" not in {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("tf.estimator", "tf_estimator")


def comments(source: str) -> list[tokenize.TokenInfo]:
    generated = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token for token in generated if token.type == tokenize.COMMENT]


@pytest.mark.full
@pytest.mark.parametrize("form", REWRITES)
@pytest.mark.parametrize("name", CARRIED)
def test_verify_calls_an_example_and_its_form_equal(
    name: str, form: str, tmp_path: pathlib.Path
) -> None:
    """They are equal to the last bit, because both run the same ops on the same engine."""
    tf2_runs.write_example(tmp_path, name)
    (tmp_path / "new.py").write_text(written(name, form))
    side, arguments = FORMS[form].verified_against, tf2_runs.EXAMPLES[name].arguments
    tf2_runs.check_equal(
        tmp_path, side, "new.py", "train.py", *arguments, "--model_dir=model", steps=STEPS
    )
