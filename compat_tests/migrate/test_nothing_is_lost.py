"""No statement that trains, evaluates or predicts is lost in the Keras form."""

from __future__ import annotations

import ast
import re

import pytest

from compat_tests.support import migrate_corpus
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.rewrite_report import TODO, left_to_do
from estimator_bridge.migrate.selection import ALL
from estimator_bridge.migrate.syntax.modules import ALONE

PROGRAMS = migrate_corpus.programs()
CALLS = {
    "train": "  estimator.train(input_fn, max_steps=4)\n",
    "evaluate": "  print(estimator.evaluate(input_fn, steps=2))\n",
    "predict": "  print(next(estimator.predict(input_fn)))\n",
}
NEW = {"train": ".fit(", "evaluate": ".evaluate(", "predict": ".predictions("}
MUTATIONS = {
    "as it is": "  {call}\n",
    "in a loop": "  for _ in range(1):\n    {call}\n",
    "in a branch": "  if model_dir:\n    {call}\n",
    "in a function": "  def run():\n    return {call}\n  run()\n",
    "in a lambda": "  (lambda: {call})()\n",
    "of another name": "  it = estimator\n  {other}\n",
    "as a value": "  run = estimator.{method}\n  {short}\n",
    "by getattr": "  {dynamic}\n",
    "of a dict": "  them = {{'it': estimator}}\n  {of_dict}\n",
    "of an attribute": "  job = make()\n  job.it = estimator\n  {of_attribute}\n",
    "handed on": "  job(estimator.{method}, input_fn)\n",
}


def bridge(source: str) -> str:
    return FORMS["bridge"].rewrite(source, "it.py", ALL, ALONE).source


def assert_nothing_is_lost(source: str, methods: list[str]) -> None:
    """Asserts that a program keeps its calls, or is the bridge's with comments."""
    new = packages.rewrite_text(FORMS["keras"], source, "it.py")
    if "TrainerModel(" in new.source:  # It has the methods of the estimator, too.
        assert all(new.source.count(each) or NEW[each] in new.source for each in methods)
        return
    if "estimator_bridge" in new.source:
        assert ast.dump(ast.parse(new.source)) == ast.dump(ast.parse(bridge(source)))
        assert [*left_to_do({"it.py": new})]
        return
    for method in methods:
        assert new.source.count(NEW[method]) >= 1, new.source


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("method", CALLS)
def test_a_call_survives_or_the_estimator_does(method: str, mutation: str) -> None:
    """However a program calls its estimator, the call is in the new program."""
    line = CALLS[method]
    call = line.strip()
    other = call.replace("estimator.", "it.")
    texts = {
        "call": call,
        "method": method,
        "other": other,
        "short": call.replace(f"estimator.{method}(", "run("),
        "dynamic": call.replace(f"estimator.{method}(", f"getattr(estimator, '{method}')("),
        "of_attribute": call.replace("estimator.", "job.it."),
        "of_dict": call.replace("estimator.", "them['it']."),
    }
    source = PROGRAMS["plain"].source
    assert line in source
    assert_nothing_is_lost(source.replace(line, MUTATIONS[mutation].format(**texts)), [*CALLS])


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_corpus_loses_nothing(name: str) -> None:
    """A program that keeps its estimators is the bridge's, with marks."""
    assert_nothing_is_lost(PROGRAMS[name].source, [])


def test_marks_are_above_the_statements_that_they_are_about() -> None:
    """A mark has no line number, so that migrating the new program again changes nothing."""
    hook = "@wraps\ndef go(estimator):\n  estimator.get_variable_names(); tf.GradientTape()\n"
    source = PROGRAMS["plain"].source.replace("def main(", f"{hook}\n\ndef main(")
    source = source.replace("  estimator.train(", "  go(estimator); estimator.train(")
    kept = packages.rewrite_text(FORMS["keras"], source, "it.py").source
    marks = re.findall(rf"^( *){re.escape(TODO)} ([\w-]+): .*\n(?:\1#   .*\n)*(.*)\n", kept, re.M)

    assert (
        "  ",
        "gradient-tape",
        "  estimator.get_variable_names(); tf.GradientTape()",
    ) in marks
    assert packages.rewrite_text(FORMS["keras"], kept, "it.py").source == kept
