"""Training hooks and exporters become Keras callbacks that do the same, or are refused."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.migrate.test_canned_as_keras import TOLERANCE, run_both
from compat_tests.programs import evaluated_as_keras
from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.keras_form.call_sites.training_hooks import HOOKS

PROGRAM = """\
import tensorflow as tf

a = tf.feature_column.numeric_column('a')
config = tf.estimator.RunConfig(save_checkpoints_steps=5)
job = tf.estimator.DNNClassifier([8], [a], model_dir='model', config=config)


def rows():
  return tf.data.Dataset.from_tensors(({'a': [[1.]]}, [1])).repeat()


"""

FUNCTIONS = """

def is_done():
  return True


def better(best_eval_result, current_eval_result):
  return best_eval_result['auc'] < current_eval_result['auc']
"""

TOP = """\
spec = tf.feature_column.make_parse_example_spec([a])
receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
"""
"""Code above a training with exporters."""

STOPS = "run_every_secs=None, run_every_steps=3"

TRAIN_HOOKS = {
    "StopAtStepHook(last_step=9)": "StopAtStep(last_step=9)",
    "StopAtStepHook(4)": "StopAtStep(num_steps=4)",
    "experimental.make_stop_at_checkpoint_step_hook(job, 9)": "StopAtStep(last_step=9)",
    "experimental.make_early_stopping_hook(job, lambda: True)": "StopWhen(lambda: True)",
    f"experimental.make_early_stopping_hook(job, is_done, {STOPS})": (
        "StopWhen(is_done, every_secs=None, every_steps=3)"
    ),
    "NanTensorHook('head/losses/weighted_loss/value:0')": "StopIfNaN()",
    "NanTensorHook('dnn/head/weighted_loss/Sum', fail_on_nan_loss=False)": "StopIfNaN(fail=False)",
    "LoggingTensorHook({'loss': 'n/losses/weighted_loss/value'}, every_n_secs=5)": (
        "StepLog(every_secs=5)"
    ),
    "LoggingTensorHook(['global_step'], 10, at_end=True)": "StepLog(every_steps=10, at_end=True)",
    "StepCounterHook(output_dir='logs')": (
        "tf.keras.callbacks.TensorBoard(\n'logs', update_freq=100, write_graph=False, "
        "write_steps_per_second=True)"
    ),
    "SummarySaverHook(9, output_dir='logs', scaffold=tf.compat.v1.train.Scaffold())": (
        "tf.keras.callbacks.TensorBoard('logs', update_freq=9, write_graph=False)"
    ),
    "ProfilerHook(save_steps=9, output_dir='logs', show_memory=True)": (
        "tf.keras.callbacks.TensorBoard('logs', profile_batch=9, write_graph=False)"
    ),
}
"""Hooks below `tf.estimator`, and their callbacks."""

EVALUATION_HOOKS = {
    f"stop_if_no_decrease_hook(job, 'loss', 10, {STOPS})": (
        "StopIfNoDecrease('loss', 10, every_secs=None, every_steps=3)"
    ),
    "stop_if_no_increase_hook(job, 'auc', max_steps_without_increase=10, min_steps=5)": (
        "StopIfNoIncrease('auc', 10, min_steps=5)"
    ),
    "stop_if_higher_hook(estimator=job, metric_name='auc', threshold=.9)": (
        "StopIfHigher('auc', .9)"
    ),
    "stop_if_lower_hook(job, 'loss', .1, run_every_secs=5)": (
        "StopIfLower('loss', .1, every_secs=5)"
    ),
}
"""Hooks of `tf.estimator.experimental` that read evaluation results."""


def with_evaluations(hooks: str = "", exporters: str = "", more: str = "") -> str:
    return (
        f"{PROGRAM}{TOP * bool(exporters)}tf.estimator.train_and_evaluate(\n"
        f"    job, tf.estimator.TrainSpec(rows, max_steps=20, hooks=[{hooks}]),\n"
        f"    tf.estimator.EvalSpec(rows, steps=1, exporters=[{exporters}]{more}))\n"
    )


def text_of(program: str) -> str:
    return migrate_to_keras(f"{program}{FUNCTIONS}", "train.py").source


def test_every_hook_has_a_case() -> None:
    named = " ".join([*TRAIN_HOOKS, *EVALUATION_HOOKS])
    assert [name for name in HOOKS if name not in named] == []


@pytest.mark.parametrize("hook", TRAIN_HOOKS)
def test_hooks_are_callbacks(hook: str) -> None:
    """Works for a list in the call, a list in a variable, and hooks in variables."""
    made_by = f"tf.estimator.{hook}"
    callback = TRAIN_HOOKS[hook]
    inline = text_of(f"{PROGRAM}job.train(rows, max_steps=9, hooks=[{made_by}])\n")
    assert "".join(callback.split()) in "".join(inline.split())
    listed = text_of(f"{PROGRAM}hooks = [{made_by}]\njob.train(rows, max_steps=9, hooks=hooks)\n")
    assert listed == inline
    named = text_of(f"{PROGRAM}hook = {made_by}\njob.train(rows, max_steps=9, hooks=[hook])\n")
    assert f"hook={''.join(callback.split())}" in "".join(named.split())
    assert "callbacks=[hook])" in named


@pytest.mark.parametrize("hook", EVALUATION_HOOKS)
def test_hooks_that_look_at_evaluations_are_callbacks(hook: str) -> None:
    """The training evaluates each checkpoint."""
    made_by = f"tf.estimator.experimental.{hook}"
    assert f"callbacks=[{EVALUATION_HOOKS[hook]}]" in text_of(with_evaluations(made_by))


def test_no_hooks_are_no_callbacks() -> None:
    """An empty list and None also mean no callbacks."""
    plain = text_of(f"{PROGRAM}job.train(rows, steps=1)\njob.evaluate(rows, steps=1)\n")
    for none in ("[]", "None", "()"):
        calls = f"job.train(rows, hooks={none}, steps=1)\njob.evaluate(rows, 1, hooks={none})\n"
        assert text_of(f"{PROGRAM}{calls}") == plain


TRAINING = "job.train(rows, hooks=[HOOK])\n"

REFUSED = {
    TRAINING.replace("HOOK", "Mine()"): "Write a tf.keras.callbacks.Callback",
    TRAINING.replace("HOOK", "tf.estimator.GlobalStepWaiterHook(9)"): "migrate to the tf2 form",
    TRAINING.replace("HOOK", "tf.estimator.NanTensorHook('other:0')"): "a step of Keras does not",
    TRAINING.replace("HOOK", "tf.estimator.LoggingTensorHook(['logits'], 9)"): "not return this",
    TRAINING.replace("HOOK", "tf.estimator.ProfilerHook(save_secs=9, output_dir='logs')"): (
        "save_secs is not supported"
    ),
    TRAINING.replace("HOOK", "tf.estimator.CheckpointSaverHook('other', save_steps=3)"): (
        "Give CheckpointSaverHook the model_dir"
    ),
    TRAINING.replace("HOOK", "tf.estimator.CheckpointSaverHook('model', save_secs=3)"): (
        "Give CheckpointSaverHook the model_dir"
    ),
    TRAINING.replace("[HOOK]", "make_hooks()"): "Write the list of hooks into the call",
    "hooks = []\nhooks.append(Mine())\njob.train(rows, hooks=hooks)\n": (
        "Write the list of hooks into the call"
    ),
    TRAINING.replace("HOOK", "tf.estimator.experimental.stop_if_lower_hook(job, 'loss', .1)"): (
        "Use train_and_evaluate"
    ),
    "job.train(rows, saving_listeners=[Mine()])\n": "listeners of checkpoints",
    "job.evaluate(rows, hooks=[Mine()])\n": "hooks of evaluations",
    "job.predict(rows, hooks=[Mine()])\n": "hooks of predictions",
}


@pytest.mark.parametrize("use", REFUSED)
def test_other_hooks_are_refused(use: str) -> None:
    """The refusal names the line and a way out."""
    with pytest.raises(Refused) as caught:
        text_of(f"{PROGRAM}{use}")
    assert REFUSED[use] in str(caught.value)
    assert "keras-hook" in {each.rule for each in caught.value.blockers}
    first = PROGRAM.count("\n") + 1
    assert {each.line for each in caught.value.blockers} <= {first, first + 1, first + 2}


EXPORTERS = {
    "LatestExporter('latest', receiver)": (
        "LatestExporter(tf.io.gfile.join('model', 'export', 'latest'), *receiver())"
    ),
    "LatestExporter('latest', receiver, exports_to_keep=None)": (
        "LatestExporter(\n            tf.io.gfile.join('model', 'export', 'latest'),\n"
        "            *receiver(),\n            exports_to_keep=None)"
    ),
    "BestExporter(serving_input_receiver_fn=receiver)": (
        "BestExporter(tf.io.gfile.join('model', 'export', 'best_exporter'), *receiver())"
    ),
    "BestExporter('best', receiver, 'eval/*', better, exports_to_keep=2)": (
        "compare_fn=better, event_file_pattern='eval/*', exports_to_keep=2)"
    ),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_exporters_are_callbacks(exporter: str) -> None:
    """Exporters that export while training become callbacks; a FinalExporter exports afterwards."""
    both = f"tf.estimator.{exporter}, tf.estimator.FinalExporter('last', receiver)"
    program = with_evaluations(exporters=both)
    text = text_of(program)
    assert "".join(EXPORTERS[exporter].split()) in "".join(text.split())
    assert "model.export_saved_model(\n    tf.io.gfile.join('model', 'export', 'last')" in text
    single = text_of(program.replace(f"[{both}]", f"tf.estimator.{exporter}"))
    assert single == text_of(program.replace(f"[{both}]", f"[tf.estimator.{exporter}]"))


def test_the_evaluations_of_a_spec_with_a_name_are_not_those_of_exporters() -> None:
    """A BestExporter and a stopping hook only read evaluations without a name."""
    best = "tf.estimator.BestExporter('best', receiver)"
    program = with_evaluations(exporters=best, more=", name='test'")
    assert "event_file_pattern=None" in text_of(program)
    stop = "tf.estimator.experimental.stop_if_lower_hook(job, 'loss', .1)"
    with pytest.raises(Refused, match="an EvalSpec without a name"):
        text_of(with_evaluations(stop, more=", name='test'"))


NO_EXPORTS = {
    "Mine('latest', receiver)": "Use a FinalExporter, LatestExporter or BestExporter",
    "tf.estimator.LatestExporter('latest', receiver, as_text=True)": "Do without as_text",
    "tf.estimator.FinalExporter('last', receiver, {'a': 'b'})": "Do without assets_extra",
}


@pytest.mark.parametrize("exporter", NO_EXPORTS)
def test_other_exporters_are_refused(exporter: str) -> None:
    """Options that the exports would lose are refused too."""
    program = with_evaluations(exporters=exporter)
    with pytest.raises(Refused) as caught:
        text_of(program)
    assert NO_EXPORTS[exporter] in str(caught.value)
    assert {each.rule for each in caught.value.blockers} == {"keras-exporter"}


@pytest.mark.parametrize("setting", ["max_steps=20, ", "save_checkpoints_steps=5"])
def test_exports_need_evaluations(setting: str) -> None:
    """Exporters need evaluations of checkpoints at known steps."""
    program = with_evaluations(exporters="tf.estimator.LatestExporter('latest', receiver)")
    with pytest.raises(Refused, match="it is not known when checkpoints are evaluated"):
        text_of(program.replace(setting, ""))


@pytest.mark.full
def test_trainings_with_hooks_and_exporters_end_alike(tmp_path: pathlib.Path) -> None:
    """Checkpoints, evaluations and exports are the same, up to the rounding of twenty steps.

    Ops run in one thread: TensorFlow's early-stopping hooks read the step while another op
    increments it, so with more threads they may stop one step early or late.
    """
    results = run_both(evaluated_as_keras, tmp_path, TF_NUM_INTEROP_THREADS="1")
    assert [each["new"]["name"] for each in results] == [*evaluated_as_keras.CASES]
    steps = evaluated_as_keras.END - evaluated_as_keras.BEGIN
    tolerance = TOLERANCE * steps / 8
    for each in results:
        old, new = each["old"], each["new"]
        name = new["name"]
        assert new["error"] == old["error"], name
        assert old["checkpoints"][-1] == evaluated_as_keras.LAST_STEPS[name], name
        # The estimator also has the evaluations before the step from which it resumed.
        there, here = (
            [step for step in side["checkpoints"] if step > evaluated_as_keras.BEGIN]
            for side in (old, new)
        )
        assert here == there, name
        assert new["worst"][0][0] <= tolerance, (name, new["worst"])
        assert new["evaluations"].keys() == old["evaluations"].keys(), name
        for step, metrics in old["evaluations"].items():
            expected = {**metrics, **new["evaluations"][step]}
            assert metrics == pytest.approx(expected, rel=0, abs=tolerance), (name, step)
        assert new["exports"].keys() == old["exports"].keys(), name
        for folder, exports in old["exports"].items():
            assert len(new["exports"][folder]) == len(exports), (name, folder)
            for one, other in zip(exports, new["exports"][folder], strict=True):
                assert one == pytest.approx(other, rel=0, abs=tolerance), (name, folder)
