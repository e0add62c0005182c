"""No statement that trains, evaluates, predicts, exports or saves is lost in the Keras form."""

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
    "export_saved_model": "  print(estimator.export_saved_model(model_dir, receiver_fn))\n",
}
NEW = {
    "train": ".fit(",
    "evaluate": ".evaluate(",
    "predict": ".predictions(",
    "export_saved_model": ".export_saved_model(",
}
_RECEIVER = """\
def receiver_fn():
  examples = tf.placeholder(tf.string, [None], 'examples')
  features = tf.parse_example(examples, {'x': tf.VarLenFeature(tf.int64)})
  return tf_estimator.export.ServingInputReceiver(features, {'examples': examples})


"""
OF_FUNCTION = PROGRAMS["plain"].source.replace("def main(", f"{_RECEIVER}def main(")
OF_FUNCTION = OF_FUNCTION.replace(CALLS["predict"], CALLS["predict"] + CALLS["export_saved_model"])
_SPEC = "  return tf_estimator.tpu.TPUEstimatorSpec(\n      mode, loss=loss, train_op="
_TRAINED = """\
  step = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
  return tf_estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)
"""
OF_CLASS = re.sub(r"def make_train_op(?s:.*?)\n\n", "", OF_FUNCTION).replace(", params)", ")")
OF_CLASS = OF_CLASS.replace(f"{_SPEC}make_train_op(loss))\n", _TRAINED)
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
    if "TrainerModel" in new.source:  # It has the methods of the estimator, too.
        assert all(new.source.count(each) or NEW[each] in new.source for each in methods)
        return
    if "estimator_bridge" in new.source:
        assert ast.dump(ast.parse(new.source)) == ast.dump(ast.parse(bridge(source)))
        assert [*left_to_do({"it.py": new})]
        return
    for method in methods:
        assert new.source.count(NEW[method]) >= 1, new.source


@pytest.mark.parametrize("program", [OF_CLASS, OF_FUNCTION], ids=["class", "function"])
def test_the_programs_have_two_forms(program: str) -> None:
    """Below, the calls of a class of Keras are tested, and those of a function."""
    new = packages.rewrite_text(FORMS["keras"], program, "it.py").source
    assert ("class Model(TableModel)" in new, "TrainerModel(" in new) == (
        program is OF_CLASS,
        program is OF_FUNCTION,
    )
    assert all(each in new or f".{method}(" in new for method, each in NEW.items())


@pytest.mark.parametrize("program", [OF_CLASS, OF_FUNCTION], ids=["class", "function"])
@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("method", CALLS)
def test_a_call_survives_or_the_estimator_does(method: str, mutation: str, program: str) -> None:
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
    assert line in program
    assert_nothing_is_lost(program.replace(line, MUTATIONS[mutation].format(**texts)), [*CALLS])


_SAVER = "tf.train.CheckpointSaverHook({}, save_steps=7)"
SAVES = {
    "in the call": ("  estimator.train(input_fn, hooks=[HOOK])\n", "model_dir"),
    "by a name": ("  hook = HOOK\n  estimator.train(input_fn, hooks=[hook])\n", "model_dir"),
    "in a list": ("  hooks = [HOOK]\n  estimator.train(input_fn, hooks=hooks)\n", "model_dir"),
    "appended": (
        "  hooks = []\n  hooks.append(HOOK)\n  estimator.train(input_fn, hooks=hooks)\n",
        "model_dir",
    ),
    "elsewhere": ("  estimator.train(input_fn, hooks=[HOOK])\n", "'other'"),
}


@pytest.mark.parametrize("program", [OF_CLASS, OF_FUNCTION], ids=["class", "function"])
@pytest.mark.parametrize("what", SAVES)
def test_a_checkpoint_is_saved_as_often(what: str, program: str) -> None:
    """The steps between checkpoints stay, those of a hook and those of the config."""
    code, folder = SAVES[what]
    source = program.replace(CALLS["train"], code.replace("HOOK", _SAVER.format(folder)))
    new = packages.rewrite_text(FORMS["keras"], source, "it.py")

    assert re.search(r"save_(every|steps)=7", new.source)
    assert re.search(r"save_(checkpoints_)?steps=100", new.source)


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
