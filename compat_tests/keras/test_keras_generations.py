"""The Keras layer under every Keras and strategy: training, checkpoints and exports.

Oracle: the same model in float64.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.programs import keras_models as program
from compat_tests.references.tolerance import allowed
from compat_tests.support.paths import ROOT
from compat_tests.support.served import served

OLD = tf.__version__.startswith("2.15")
KERAS_3 = "tf.keras of 2.21"
GENERATIONS = [
    # Keras 2 takes half a minute each time; the other tests of the layer are in it anyway.
    pytest.param("tf.keras of 2.15", marks=pytest.mark.full) if OLD else KERAS_3,
    pytest.param("tf_keras", marks=pytest.mark.full),
]

ROUNDING = allowed(n_terms=40, steps=program.STEPS, scale=1.0)
"""At most 40 terms are summed: ids of a row in a batch and inputs of the dense layer; values and
Adagrad's steps stay below 1."""


@pytest.fixture(scope="module", params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def results_of(program: str, keras: str, folder: pathlib.Path) -> dict[str, Any]:
    """Runs a program of `compat_tests.programs` with a Keras; returns its results."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    subprocess.run(
        [sys.executable, "-m", f"compat_tests.programs.{program}", keras, str(folder)],
        check=True,
        cwd=ROOT,
        env=environment,
        timeout=600,  # a lookup without its batch would wait for ever
    )
    with np.load(folder / "results.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def ran(
    generation: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], pathlib.Path]:
    """The results of the program, and the folder with its exports."""
    folder = tmp_path_factory.mktemp("keras")
    name = "tf_keras" if generation == "tf_keras" else "tf.keras"
    return results_of("keras_models", name, folder), folder


def runs(generation: str) -> list[str]:
    return [
        "/".join(run)
        for run in program.RUNS
        if generation != KERAS_3 or (run[0], run[2]) != ("mirrored", "fit")
    ]


def reference(epsilon: float) -> dict[str, Any]:
    """Trains in float64; `epsilon` is that of the tables' Adagrad.

    Returns tables and kernel, and under "output" what the trained model predicts.
    """
    values = {name: value.astype("f8") for name, value in program.start().items()}
    squares = {name: np.full_like(value, program.START) for name, value in values.items()}
    samples = program.data()
    size = program.GLOBAL_BATCH
    for first in range(0, size * program.STEPS, size):
        rows = {key: value[first : first + size] for key, value in samples.items()}
        inputs = concatenated(values, rows)
        error = 2.0 * (inputs @ values["kernel"] - rows["labels"]) / size
        back = error @ values["kernel"].T
        gradients = {name: np.zeros_like(value) for name, value in values.items()}
        gradients["kernel"] = inputs.T @ error
        for sample in range(size):
            of_bag, of_pair, of_single = np.split(
                back[sample], [program.OTHER_DIM, program.OTHER_DIM + program.DIM]
            )
            gradients["users"][rows["single"][sample]] += of_single
            pair = [one for one in rows["pair"][sample] if one >= 0]
            for one in pair:
                gradients["users"][one] += of_pair / len(pair)
            for one in rows["bag"][sample]:
                if one >= 0:
                    gradients["items"][one] += of_bag
        for name, gradient in gradients.items():
            squares[name] += gradient**2
            inside = 1e-7 if name == "kernel" else epsilon
            values[name] -= program.RATE * gradient / np.sqrt(squares[name] + inside)
    return {**values, "output": concatenated(values, samples) @ values["kernel"]}


def concatenated(values: dict[str, Any], rows: dict[str, Any]) -> Any:
    """Concatenates the activations: sums of bags, means of pairs, and single rows."""
    users = np.vstack([values["users"], np.zeros(program.DIM)])  # an id of -1 finds zeros
    items = np.vstack([values["items"], np.zeros(program.OTHER_DIM)])
    count = np.maximum((rows["pair"] >= 0).sum(1), 1)[:, None]
    return np.hstack(
        [items[rows["bag"]].sum(1), users[rows["pair"]].sum(1) / count, users[rows["single"]]]
    )


def assert_near(actual: Any, expected: Any, times: float, where: str) -> None:
    """Checks that values differ by at most `times` the rounding of a table."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=times * ROUNDING, err_msg=where)


def assert_trained(results: dict[str, Any], run: str, expected: dict[str, Any]) -> None:
    """Compares the variables after a run, and the predictions of a fitted model."""
    for name in ("users", "items", "kernel"):
        assert np.abs(expected[name] - program.start()[name]).max() > 0.01
        assert_near(results[f"{run}/{name}"], expected[name], 1, f"{run}, {name}")
    if run.endswith("fit"):
        # Sums of ten products of values below 2, each with twice the error of a variable.
        assert_near(results[f"{run}/predict"], expected["output"], 80, run)
        off = expected["output"] - program.data()["labels"]
        # The mean of squares moves by twice the mean distance for what an output is off.
        assert_near(results[f"{run}/evaluate"], np.mean(off**2), 160 * np.abs(off).mean(), run)


@pytest.mark.parametrize("arithmetic, epsilon", [("tpu", 0.0), ("keras", 1e-7)])
def test_training_is_that_of_the_float64_model(
    ran: Any, generation: str, arithmetic: str, epsilon: float
) -> None:
    """Loops and `fit`, models of both forms, under all strategies end at the reference."""
    results, _ = ran
    expected = reference(epsilon)
    for run in runs(generation):
        assert_trained(results, f"{arithmetic}/{run}", expected)


def test_trainable_variables(ran: Any, generation: str) -> None:
    """Trainable variables are one virtual scalar with "tpu" arithmetic, the tables with "keras"."""
    results, _ = ran
    kernel = [2 * program.DIM + program.OTHER_DIM, 1]
    tables = [[program.ITEMS, program.OTHER_DIM], [program.USERS, program.DIM]]
    for arithmetic, shapes in (("tpu", [[]]), ("keras", tables)):
        for run in runs(generation):
            of_layer = json.loads(str(results[f"{arithmetic}/{run}/of the layer"]))
            of_model = json.loads(str(results[f"{arithmetic}/{run}/of the model"]))
            assert sorted(of_layer) == shapes, run
            assert sorted(of_model) == sorted([*shapes, kernel]), run


def test_a_separate_optimizer_works_in_both_arithmetics(ran: Any) -> None:
    """A program that partitions variables by `id` trains the same tables in both."""
    results, _ = ran
    # Adagrad's epsilon of 1e-7 beside 0.1 changes a step of at most 0.1 by 5e-8 of itself each.
    for key in ("users", "items", "kernel"):
        of_tpu, of_keras = (results[f"{name}/separate/{key}"] for name in ("tpu", "keras"))
        assert np.abs(of_tpu - program.start()[key]).max() > 0.1
        # Adam divides by the root of few squares, which multiplies what is left of rounding.
        assert_near(of_tpu, of_keras, 10, key)


@pytest.mark.parametrize("saved", ["tpu", "keras"])
@pytest.mark.parametrize("restored", ["tpu", "keras"])
@pytest.mark.parametrize("built", [0, 1])
def test_checkpoints_fit_everything(ran: Any, saved: str, restored: str, built: int) -> None:
    """Either arithmetic and an engine restore what either saved, before or after they are built."""
    results, _ = ran
    name = f"checkpoints/{saved}/{restored}/{built}"

    np.testing.assert_array_equal(results[f"{name}/restored"], results[f"{name}/saved"])
    np.testing.assert_array_equal(results[f"{name}/engine"], results[f"{name}/saved"])
    output = results[f"{name}/output"]
    np.testing.assert_allclose(
        results[f"{name}/output restored"], output, rtol=0, atol=allowed(20, 0, 10.0)
    )
    root = "model/embedding_layer/_tpu_embedding"
    slots = [f"{root}/items.Saccumulators", f"{root}/users.Saccumulators"] if saved == "tpu" else []
    assert list(results[f"{name}/keys"]) == sorted([f"{root}/items", f"{root}/users", *slots])


def test_exports_answer_serialized_examples_without_us(ran: Any, tmp_path: pathlib.Path) -> None:
    """A process that imports TensorFlow alone answers as the model that was exported did."""
    results, folder = ran
    names = [
        f"{form}_{arithmetic}_{source}"
        for form in ("functional", "subclass")
        for arithmetic in ("tpu", "keras")
        for source in ("trained", "restored")
    ]
    for name, of_export in scores(folder, names, tmp_path).items():
        wanted = results[f"exports/{name}"]
        for answer in (of_export, results[f"exports/{name}/model"]):
            np.testing.assert_allclose(
                answer, wanted, rtol=0, atol=allowed(20, 0, 10.0), err_msg=name
            )


def scores(folder: pathlib.Path, names: list[str], work: pathlib.Path) -> dict[str, Any]:
    """Returns the answers of exports in a process that has nothing of this project."""
    examples = np.array(program.examples(program.data()), object)
    answers = served([folder / name for name in names], {"examples": examples}, work)
    return {name: answer["scores"] for name, answer in zip(names, answers, strict=True)}
