"""Config dicts with use_tpu=False: lookups, training and checkpoints, as with use_tpu=True.

Results with use_tpu=False and True are compared with each other; the tests of the engine compare
those with use_tpu=True with the references.
"""

from __future__ import annotations

import logging
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, dicts, jobs
from compat_tests.references import tolerance
from estimator_bridge import errors
from estimator_bridge.legacy import parameters

SGD = parameters.StochasticGradientDescentParameters
# Up to 4 + 6 + 1 + 3 ids of two numbers each, the length and the bias.
TERMS_OF_A_SAMPLE = 30
# A row of items gets at most 10 gradients of each sample, made of what a sample sums.
MOST_TERMS = dicts.BATCH * 10 + TERMS_OF_A_SAMPLE


@pytest.fixture
def logged_warnings(caplog: pytest.LogCaptureFixture) -> Any:
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


WITH_SLOTS: dict[str, Any] = {
    "optimizer": parameters.AdagradParameters(0.1),
    "model_optimizer": lambda: tf.train.AdagradOptimizer(0.1),
}


def test_a_job_switches_and_keeps_its_tables(tmp_path: pathlib.Path) -> None:
    """Three steps with either setting, or in turn, give the same tables: it is gradient descent."""
    base = dicts.make(str(tmp_path / "base"), use_tpu=True)
    base.train(dicts.input_fn, steps=3)
    start = jobs.first_checkpoint(base)
    without = dicts.make(jobs.continue_from(start, str(tmp_path / "no")), use_tpu=False)
    without.train(dicts.input_fn, steps=3)
    turns = jobs.continue_from(start, str(tmp_path / "turns"))
    for number, use_tpu in enumerate((False, True, False)):
        later = lambda params, n=number: dicts.input_fn(params).skip(n)  # noqa: E731
        in_turn = dicts.make(turns, use_tpu=use_tpu)
        in_turn.train(later, steps=1)

    expected = jobs.saved(base)
    assert expected["items"].shape == (dicts.ROWS["items"], dicts.DIMENSION)
    assert np.any(expected["items"] != jobs.saved(base, start)["items"])
    for job in (without, in_turn):
        values = jobs.saved(job)
        assert set(values) == set(expected) == {*dicts.ROWS, *_OTHERS}
        for name, value in expected.items():
            # Magnitudes stay below 4: a gradient is a residual times a weight.
            tolerance.assert_close(
                np.atleast_1d(value),
                np.atleast_1d(values[name]),
                n_terms=MOST_TERMS,
                steps=3,
                scale=4.0,
                where=name,
            )
        assert float(np.max(np.abs(expected["items"]))) < 4.0


_OTHERS = {"dense/kernel", "dense/bias", "global_step"}


@pytest.mark.parametrize("on_tpu", [pytest.param(True, marks=pytest.mark.full), False])
def test_evaluation_switches(on_tpu: bool, tmp_path: pathlib.Path) -> None:
    """A checkpoint of either setting, with slots of either kind, has the same metrics with all."""
    trained = dicts.make(str(tmp_path), use_tpu=on_tpu, **WITH_SLOTS)
    trained.train(dicts.input_fn, steps=3)
    engine, *others = (
        dicts.make(trained.model_dir, **options, **WITH_SLOTS).evaluate(
            dicts.short_input_fn, checkpoint_path=trained.latest_checkpoint()
        )
        for options in (
            {"use_tpu": True},
            {"use_tpu": False},
            {"use_tpu": True, "eval_on_tpu": False},
        )
    )

    assert "items/Adagrad" in trained.get_variable_names()
    for other in others:
        assert engine["global_step"] == other["global_step"] == 3
        # A loss is a mean over 24 samples, all of it positive, of squares of what a sample sums.
        tolerance.assert_close(
            [engine["loss"]], [other["loss"]], n_terms=24 * TERMS_OF_A_SAMPLE, steps=0, where="loss"
        )


def test_tables_are_trainable_and_start_as_told(tmp_path: pathlib.Path) -> None:
    """Each table is one trainable variable of its name with the values of its initializer.

    The learning rate of the model's optimizer is used, and none of the tables'.
    """
    seen: list[str] = []

    class Hook(tf.train.SessionRunHook):
        def begin(self) -> None:
            seen.extend(variable.op.name for variable in tf.trainable_variables())

    job = dicts.make(
        str(tmp_path),
        use_tpu=False,
        optimizer=SGD(100.0),
        tables={
            "items": {"learning_rate": 50.0},
            "words": {"initializer": tf.constant_initializer(0.25)},
        },
        model_optimizer=lambda: tf.train.GradientDescentOptimizer(0.0),
    )
    job.train(dicts.input_fn, steps=2, hooks=[Hook()])

    assert seen == ["items", "places", "words", "dense/kernel", "dense/bias"]
    first, last = jobs.saved(job, jobs.first_checkpoint(job)), jobs.saved(job)
    assert np.all(first["words"] == 0.25)
    for name in dicts.ROWS:
        np.testing.assert_array_equal(first[name], last[name], err_msg=name)


def test_one_warning_says_what_differs(tmp_path: pathlib.Path, logged_warnings: Any) -> None:
    """Every setting that only use_tpu=True has is named, once for the job."""
    job = dicts.make(
        str(tmp_path),
        use_tpu=False,
        tables={
            "items": {"learning_rate": 0.5},
            "places": {"learning_rate_fn": lambda step: 0.1},
            "words": {"hot_id_replication": True, "optimization_parameters": SGD(0.3)},
        },
        spec_options={
            "partition_strategy": "mod",
            "clipping_limit": 0.5,
            "pipeline_execution_with_tensor_core": True,
            "profile_data_directory": str(tmp_path / "profile"),
            "experimental_gradient_multiplier_fn": lambda step: 2.0,
        },
    )
    for _ in range(2):
        job.train(dicts.input_fn, steps=1)
        job.evaluate(dicts.short_input_fn)

    (line,) = [line for line in logged_warnings() if "config dicts" in line]
    for part in (
        "['items', 'places', 'words'] are trainable variables",
        "`optimization_parameters` (also of the tables ['words'])",
        "`learning_rate` of ['items']",
        "`learning_rate_fn` of ['places']",
        "`hot_id_replication` of ['words']",
        "`clipping_limit`=0.5",
        "`experimental_gradient_multiplier_fn`",
        "`pipeline_execution_with_tensor_core`",
        "`profile_data_directory`=",
        "partition_strategy='mod'",
    ):
        assert part in line, part
    assert [other for other in logged_warnings() if "'mod'" in other and other != line] == []


@pytest.mark.parametrize("program", [pytest.param(jobs, marks=pytest.mark.full), dicts])
def test_mod_works_with_one_warning(
    program: Any, tmp_path: pathlib.Path, logged_warnings: Any
) -> None:
    """partition_strategy="mod" changes no number, of columns or dicts; one warning says so."""
    inputs = clicks if program is jobs else dicts
    saved = []
    program.make(str(tmp_path / "start"), use_tpu=False).train(inputs.input_fn, steps=1)
    for strategy in ("div", "mod"):
        shutil.copytree(tmp_path / "start", tmp_path / strategy)
        options = {"partition_strategy": strategy}
        job = program.make(str(tmp_path / strategy), use_tpu=False, spec_options=options)
        job.train(inputs.input_fn, steps=2)
        job.evaluate(inputs.short_input_fn)
        saved.append(jobs.saved(job))

    assert jobs.largest_difference(*saved)[0] == 0.0
    assert len([line for line in logged_warnings() if "partition_strategy='mod'" in line]) == 1


def test_rows_that_an_optimizer_computes_are_not_trained(tmp_path: pathlib.Path) -> None:
    counter = parameters.FrequencyEstimatorParameters(2.0, 1.0, 5.0, 0.5)
    job = dicts.make(str(tmp_path), use_tpu=False, counter=counter)
    with pytest.raises(errors.InvalidSpec, match=r"'seen'.*FrequencyEstimator.*use_tpu=True"):
        job.train(dicts.input_fn, steps=1)
