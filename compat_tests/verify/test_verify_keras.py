"""`verify` compares programs with their Keras form: each step, and the outcomes after training."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.migrate import test_tf2_form_runs as tf2_runs
from compat_tests.migrate.test_keras_form import CARRIED, written
from compat_tests.support import migrate_corpus, recordings
from compat_tests.support.paths import EXAMPLES as PROGRAMS
from compat_tests.support.whole_forms import keras_form
from compat_tests.verify.test_verify_command import run_verify
from estimator_bridge.verification.compare.network_rounding import relative_error
from estimator_bridge.verification.record.description import rule_of
from tf2_engine.keras import ByStep
from tf2_engine.optimizers import SGD

STEPS = 6


def verified(
    folder: pathlib.Path,
    name: str,
    wrong: tuple[str, str] = ("", ""),
    changes: tf2_runs.Changes = (),
    flags: Sequence[str] = (),
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Compares an example with its Keras form; returns the run and the report.

    Args:
        wrong: a text of the new program, and its replacement.
        changes: texts of both programs and their replacements, applied before the migration.
        flags: further arguments of both.
    """
    source = tf2_runs.write_example(folder, name, changes)
    migrated = keras_form(source, name).source
    assert migrated.count(wrong[0]) == 1 or not wrong[0], wrong
    new = migrated.replace(*wrong) if wrong[0] else migrated
    arguments = (*tf2_runs.EXAMPLES[name].arguments, "--model_dir=model", *flags)
    options = ("--a", "bridge-tpu", "--steps", str(STEPS))
    return beside_keras_form(folder, source, new, *options, arguments=arguments)


def beside_keras_form(
    folder: pathlib.Path, source: str, keras: str, *options: str, arguments: Sequence[str] = ()
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Compares a program with its Keras form; returns the run and the report."""
    (folder / "train.py").write_text(source)
    (folder / "train_keras.py").write_text(keras)
    sides = ("--against", "train_keras.py", "--json", "report.json", "train.py")
    ran = run_verify(*options, *sides, *arguments, cwd=folder)
    report = folder / "report.json"
    return ran, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.full
@pytest.mark.parametrize("name", CARRIED)
def test_an_example_is_its_keras_form(name: str, tmp_path: pathlib.Path) -> None:
    """Each step is compared from the same state, then the evaluation, predictions and exports.

    Keras's optimizers order their ops differently, so the sides are equal within rounding.
    """
    ran, result = verified(tmp_path, name)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    version = f"TensorFlow {tf.__version__}"
    of_trainer = f"B: a program of TensorFlow 2, {version}:"  # It makes the steps.
    of_class = f"B: a Keras model, {version}, Keras 2."
    assert (of_trainer if "TrainerModel(" in written(name) else of_class) in ran.stdout
    assert result["steps"] == [*range(STEPS + 1)]
    assert result["only"] == {"a": [], "b": []}
    roles = {series["role"].partition(" ")[0] for series in result["series"]}
    assert roles == {"activation", "loss", "gradient", "table", "slot", "dense"}
    assert kinds_of(result) == AFTER.get(name, {*AFTER["orders"]})


AFTER = {
    "movielens": {"evaluation", "prediction"},
    "warm_start": {"evaluation"},  # of the model that trains first
    "orders": {"evaluation", "prediction", "export", "served"},
}
"""What each example does with its trained model."""

ALONE = (
    """\
  first.train(make_input_fn(1, 'together'), max_steps=FLAGS.pretrain_steps)
  together = first.evaluate(make_input_fn(2, 'together'), steps=4)
""",
    "  together = {'auc': 0.}\n",
)
"""Removes the training of the first model of warm_start."""


def kinds_of(result: dict[str, Any]) -> set[str]:
    """Returns the kinds of outcomes after a training."""
    return {outcome["kind"].partition("-")[0] for outcome in result["outcomes"]}


@pytest.mark.full
def test_a_second_model_is_its_keras_form(tmp_path: pathlib.Path) -> None:
    """The model that trains first is compared, here the second of two that a helper creates.

    The comparison covers batch normalization, an evaluation, a partial batch and the export.
    """
    ran, result = verified(tmp_path, "warm_start", changes=[ALONE], flags=["--warm_start=False"])

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "EQUAL" in ran.stdout
    assert kinds_of(result) == AFTER["orders"]


OF_CORPUS = (
    *("clipped_gradients", "gradients_of_variables", "two_optimizers", "regularized"),
    *("weight_decay", "metric_ops", "two_specs", "decayed_rate", "falling_rate", "warm_up"),
    "input_tensor",
)
"""Programs whose train_op, rates, losses or specs are rewritten in parts."""


@pytest.mark.full
@pytest.mark.parametrize("name", OF_CORPUS)
def test_a_program_of_the_corpus_is_its_keras_form(name: str, tmp_path: pathlib.Path) -> None:
    """The comparison covers changed gradients, and loss terms that only training has."""
    source = migrate_corpus.programs()[name].source
    keras, options = keras_form(source, name).source, ("--a", "bridge-tpu", "--steps", "4")
    ran, _ = beside_keras_form(tmp_path, source, keras, *options, arguments=["model"])

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "EQUAL" in ran.stdout


FAULTS = {
    "rate of a table": (
        ("embedding.Adagrad(0.3)", "embedding.Adagrad(0.33)"),
        ["first in table tasters", "learning rate: Table tasters"],
    ),
    "combiner": (
        ("combiner='sqrtn'", "combiner='mean'"),
        ["activation words, step 1", "combiner: Table words, feature words"],
    ),
    "frozen table": (
        ("* features['taster']", "* tf.stop_gradient(features['taster'])"),
        ["lost gradient: Side A computes gradients of taster", "only side A has gradients taster"],
    ),
    "rate of the model": (
        ("optimizers.Adam(0.01", "optimizers.Adam(0.011"),
        ["dense/kernel", "model optimizer"],
    ),
    "beta of the model": (
        ("optimizers.Adam(0.01", "optimizers.Adam(0.01, beta_2=0.99901"),
        ["dense/kernel/Adam_1", "model optimizer"],
    ),
    "loss": (("tf.square(rating - labels)", "tf.abs(rating - labels)"), ["first in loss"]),
    "metric": (
        (
            "self.error.update_state(labels, rating)",
            "self.error.update_state(labels, 1.1 * rating)",
        ),
        ["evaluation-0 error", "metric functions differ"],
    ),
    "prediction": (
        ("return {'rating': rating}", "return {'rating': 1.01 * rating}"),
        ["prediction-0 rating differs by", "served-0 serving_default: rating differs by"],
    ),
}
"""For each fault: the text to replace, the replacement, and the messages of verify."""


@pytest.mark.full
@pytest.mark.parametrize("wrong, messages", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_keras_model_is_found(
    wrong: tuple[str, str], messages: list[str], tmp_path: pathlib.Path
) -> None:
    ran, _ = verified(tmp_path, "dict_config", wrong=wrong)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    for part in messages:
        assert part in ran.stdout, ran.stdout


@pytest.mark.full
def test_a_keras_model_is_both_sides(tmp_path: pathlib.Path) -> None:
    """A Keras program is side A and also, on other ops from the same start, side B."""
    source = (PROGRAMS / "dict_config" / "train.py").read_text()
    (tmp_path / "train_keras.py").write_text(keras_form(source, "job").source)
    sides = ("--a", "bridge-native", "--b", "bridge-ops", "--steps", "3", "train_keras.py")
    arguments = (*tf2_runs.EXAMPLES["dict_config"].arguments, "--model_dir=model")
    ran = run_verify(*sides, *arguments, cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "tf2_engine, host driver, native ops" in ran.stdout
    assert "tf2_engine, host driver, TensorFlow's ops" in ran.stdout


def keras_side(tmp_path: pathlib.Path, start: Any = None, **changes: Any) -> Any:
    """Compares descriptions of a legacy side, which starts with `start`, and of a Keras model."""
    rows = recordings.rows()
    steps = (recordings.step(rows, activation=rows[:2]),)
    of_keras = {**recordings.SETTINGS, "engine": "keras", "quirks": "none", "settings": []}
    b = {"settings": {**of_keras, **changes}, "steps": steps}
    return recordings.judged(tmp_path, {"steps": steps, "start": start}, b)


def test_what_keras_computes_of_the_step_is_not_compared(tmp_path: pathlib.Path) -> None:
    """Variables that a Keras model does not need are left out, and the report says so."""
    start = {**recordings.state(recordings.rows()), "power": np.float32(0.9)}
    result = keras_side(tmp_path, start, computed=["power"])
    assert result.only == ([], [])
    assert any("power: a Keras model computes" in line for line in result.not_compared)


def test_only_placement_may_differ_in_the_configuration(tmp_path: pathlib.Path) -> None:
    """The order of rows on hosts may differ between devices; other fields may not.

    A Keras model has no spec, so the settings of a legacy spec are no difference.
    """
    config = dict(recordings.SETTINGS["config"])
    result = keras_side(tmp_path / "one", config={**config, "sharding_strategy": "MOD"})
    assert result.equal
    assert not any("Settings that differ" in note for note in result.notes)
    differing = {**config, "table_descriptor.tbl_words.dimension": "3"}
    assert not keras_side(tmp_path / "two", config=differing).equal


def test_the_rule_of_an_optimizer_has_the_rate_of_each_step() -> None:
    """Rates that decay with the step are known at every step; those of other functions are not."""
    rule = rule_of(SGD(ByStep(lambda step: 0.5 / (1.0 + tf.cast(step, tf.float32)))), [0, 1, 3])
    assert (rule["kind"], rule["rates"]) == ("SGD", [0.5, 0.25, 0.125])
    assert rule_of(SGD(0.5), [0, 1])["rates"] == [0.5, 0.5]
    assert rule_of(SGD(lambda: 0.5), [0]) is None


def test_the_powers_of_betas_may_be_off_by_their_roundings() -> None:
    """A product of t factors and the tth power differ by less than the bound at every step."""
    for beta, power, exponent in ((0.9, "beta1_power", 1.0), (0.999, "beta2_power", 0.5)):
        product, base = np.float32(beta), np.float32(beta)
        for step in range(1, 2000):
            before = {"kernel": product, "kernel/Adam": product, power: product}
            allowed = relative_error("kernel", before, [power], step)
            exact = 1.0 - float(base) ** step
            off = abs((1.0 - float(product)) / exact - 1.0) * exponent
            assert off <= allowed < 2e-3 / step**0.5, (beta, step)
            assert relative_error("bias", before, [power], step) == 0.0
            assert relative_error("kernel", before, [], step) == 0.0
            product = np.float32(product * base)
