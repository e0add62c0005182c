"""The Keras layer on a software TPU: training, checkpoints to and from a CPU, exports.

Oracles: the float64 model, and the same models on a CPU.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.keras import test_keras_generations as generations
from compat_tests.programs import keras_models as models
from compat_tests.programs import keras_on_tpu as program
from compat_tests.references.tolerance import allowed
from tf2_engine import soft_tpu


@pytest.fixture(scope="module", params=["tf.keras", "tf_keras"])
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], pathlib.Path]:
    """The results of the program with a Keras, and the folder with its exports."""
    folder = tmp_path_factory.mktemp("keras_on_tpu")
    return generations.results_of("keras_on_tpu", request.param, folder), folder


def test_two_cores_train_as_one() -> None:
    """A loop on one core and on two ends at the tables of the float64 model."""
    expected = generations.reference(0.0)
    for cores in (1, 2):
        strategy = soft_tpu.SoftTPUStrategy(cores)
        with strategy.scope():
            optimizer = tf.keras.optimizers.Adagrad(
                models.RATE, initial_accumulator_value=models.START
            )
            model = models.make_model(tf.keras, "subclass", optimizer)
        models.train(strategy, model, optimizer, "loop")
        for name, actual in models.state_of(model).items():
            generations.assert_near(actual, expected[name], 1, f"{cores} cores, {name}")


@pytest.mark.full
def test_training_on_a_tpu_is_that_of_the_float64_model(ran: Any) -> None:
    """Loops and `fit`, models of both forms, on one core and on two end at the reference."""
    results, _ = ran
    expected = generations.reference(0.0)
    for cores, form, how in program.RUNS:
        run = f"{cores}/{form}/{how}"
        generations.assert_trained(results, run, expected)
        assert json.loads(str(results[f"{run}/of the layer"])) == [[]], run
        assert sorted(json.loads(str(results[f"{run}/of the model"]))) == [[], [10, 1]], run


@pytest.mark.full
def test_a_separate_optimizer_works_on_a_tpu_and_on_a_cpu(ran: Any) -> None:
    """A program that partitions variables by `id` trains the tables that it trains on a CPU.

    With Keras 2 the first step makes the variables, as it is written; or they are made before.
    """
    results, _ = ran
    runs = {key.rsplit("/", 1)[0] for key in results if key.startswith("separate/")}
    assert {"separate/1/1", "separate/2/1", "separate/cpu"} <= runs
    for run in runs:
        for name in ("users", "items", "kernel"):
            expected = results[f"separate/cpu/{name}"]
            assert np.abs(expected - models.start()[name]).max() > 0.1
            # As on a CPU: Adam divides by the root of few squares.
            generations.assert_near(results[f"{run}/{name}"], expected, 10, f"{run}, {name}")


@pytest.mark.full
def test_tables_of_a_tpu_are_stand_ins(ran: Any) -> None:
    """The tables of the layer are sharded, and stale until a checkpoint is written."""
    results, _ = ran
    assert results["checkpoints/stand-in/shards"] == 1
    np.testing.assert_array_equal(results["checkpoints/stand-in/before"], models.start()["items"])
    after = results["checkpoints/stand-in/after"]
    np.testing.assert_array_equal(after, results["checkpoints/of_tpu/tpu/items"])
    assert np.abs(after - models.start()["items"]).max() > 0.01


@pytest.mark.full
@pytest.mark.parametrize("arithmetic", ["tpu", "keras"])
def test_checkpoints_pass_between_a_tpu_and_a_cpu(ran: Any, arithmetic: str) -> None:
    """A checkpoint of a TPU is restored on a CPU, in both arithmetics, and back on another TPU."""
    results, _ = ran
    for name in ("users", "items"):
        saved = results[f"checkpoints/of_tpu/tpu/{name}"]
        np.testing.assert_array_equal(results[f"checkpoints/of_tpu/{arithmetic}/{name}"], saved)
        np.testing.assert_array_equal(results[f"checkpoints/back/{arithmetic}/{name}"], saved)
    back = f"checkpoints/back/{arithmetic}"
    np.testing.assert_allclose(
        results[f"{back}/predict"], results[f"{back}/model"], rtol=0, atol=allowed(20, 0, 10.0)
    )


@pytest.mark.full
def test_exports_from_a_tpu_answer_without_us(ran: Any, tmp_path: pathlib.Path) -> None:
    """A process that imports TensorFlow alone answers serialized Examples."""
    results, folder = ran
    answers = generations.scores(folder, ["trained", "restored"], tmp_path)
    for name in ("trained", "restored"):
        np.testing.assert_allclose(
            answers[name], results[f"exports/{name}"], rtol=0, atol=allowed(20, 0, 10.0)
        )
