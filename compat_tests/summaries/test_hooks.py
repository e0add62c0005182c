"""The hooks for statistics of tables, in TPUEstimator, Trainer and Keras."""

from __future__ import annotations

import pathlib
from typing import Any

import keras as newest_keras
import numpy as np
import pytest
import tf_keras

from compat_tests.programs import keras_models, tiny
from compat_tests.training import trainers
from estimator_bridge import errors as bridge_errors
from estimator_bridge import estimator
from estimator_bridge.hooks import TableSummaryHook
from tf2_engine import errors, training
from tf2_engine.keras import classes
from tf2_engine.summaries.events import scalars_by_step

pytestmark = pytest.mark.full

OF_DIGITS = 5e-7
"""Files of the projector have seven digits: half a unit of the last, relative to the first."""
OF_NORM = 5e-7
"""The norm of a row of two: its squares and their sum are rounded, by 2^-24 each, which the root
halves; the root is within two units. On both sides that is 2 * (1 + 3) * 2^-24 = 4.8e-7."""


def tables_in(folder: pathlib.Path) -> dict[int, dict[str, float]]:
    by_step = scalars_by_step(str(folder)).items()
    steps = {
        step: {tag.removeprefix("tables/"): x for tag, x in values.items() if "tables/" in tag}
        for step, values in by_step
    }
    return {step: values for step, values in steps.items() if values}


def of_batch(number: int) -> dict[str, float]:
    """Returns what `tiny` has in "a" in a batch: 8 ids of 8 samples."""
    ids = (number + np.array([3, 3, 1, 7, 0, 9, 2, 3])) % tiny.ROWS
    return {"ids": 8, "ids_per_sample": 1, "rows_touched": len(set(ids)), "out_of_vocabulary": 0}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("loop", [1, 2])
def test_the_hook_of_estimators(loop: int, cores: int, tmp_path: pathlib.Path) -> None:
    """Statistics are those of the batch of the step that is written; the others cost nothing."""
    job = tiny.make(
        estimator,
        str(tmp_path / "model"),
        [tiny.column()],
        use_tpu=True,
        tpu_options={"iterations_per_loop": loop, "num_shards": cores},
    )
    hook = TableSummaryHook(str(tmp_path / "tables"), every_n_steps=4, projector_rows=3)

    job.train(tiny.input_fn, hooks=[hook], max_steps=8)

    by_step = tables_in(tmp_path / "tables")
    assert list(by_step) == [loop, loop + 4]
    table = "tbl_a"
    for step, values in by_step.items():
        for name, value in of_batch(step - 1).items() if cores == 1 else ():
            assert values[f"{table}/{name}"] == value, (step, name)
        assert values[f"{table}/gradient_norm"] > 0
        assert f"{table}/clipped_share" not in values
    last = job.get_variable_value(next(n for n in job.get_variable_names() if "embed" in n))
    norms = np.linalg.norm(last, axis=1)
    if loop + 4 == 8:
        assert by_step[8][f"{table}/norm/max"] == pytest.approx(norms.max(), rel=OF_NORM)
    assert (tmp_path / "tables" / "projector_config.pbtxt").is_file()
    rows = np.loadtxt(tmp_path / "tables" / "projector" / "0_rows.tsv", delimiter="\t")
    np.testing.assert_allclose(rows, last[:3], rtol=OF_DIGITS)


def test_an_estimator_without_tables_in_the_engine_is_refused(tmp_path: pathlib.Path) -> None:
    job = tiny.make(estimator, str(tmp_path), [tiny.column()], use_tpu=False)
    with pytest.raises(bridge_errors.InvalidInput, match="use_tpu=True"):
        job.train(tiny.input_fn, hooks=[TableSummaryHook(str(tmp_path))], steps=1)


def test_the_hook_of_a_trainer(tmp_path: pathlib.Path) -> None:
    """Each training has the step traced for it, and the next one without it has none."""
    trainer = trainers.make(trainers.model(trainers.minimized), tmp_path)
    hook = training.TableSummaryHook(every_n_steps=2, projector_rows=2)

    trainer.train(trainers.input_fn, hooks=[hook], max_steps=5)
    trainer.train(trainers.input_fn, max_steps=6)
    trainer.train(trainers.input_fn, hooks=[hook], max_steps=8)

    by_step = tables_in(tmp_path)
    assert list(by_step) == [1, 3, 5, 7]
    for values in by_step.values():
        assert values["words/ids"] == values["words/rows_touched"] == trainers.BATCH
        assert values["words/gradient_norm"] > 0
    rows = np.loadtxt(tmp_path / "projector" / "0_rows.tsv", delimiter="\t")
    now = next(iter(trainer.engine.embedding_tables.values())).numpy()
    np.testing.assert_allclose(rows, now[:2], rtol=OF_DIGITS)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize("keras", [newest_keras, tf_keras], ids=["keras", "tf_keras"])
def test_the_callback_of_keras(
    keras: Any, steps_per_execution: int, tmp_path: pathlib.Path
) -> None:
    """A model that was trained before is traced anew; steps count over epochs."""
    model = keras_models.make_model(
        keras, "functional", keras.optimizers.Adagrad(0.1), arithmetic="tpu"
    )
    model.compile(keras.optimizers.Adagrad(0.1), "mse", steps_per_execution=steps_per_execution)
    batches = keras_models.dataset(keras_models.GLOBAL_BATCH).take(4)
    model.fit(batches, epochs=1, verbose=0)
    kind = classes._FACTORIES["TableSummaryCallback"](keras)

    model.fit(batches, epochs=2, verbose=0, callbacks=[kind(str(tmp_path), every_n_steps=4)])

    by_step = tables_in(tmp_path)
    assert list(by_step) == [1, 5]
    bag = keras_models.data()["bag"][: keras_models.GLOBAL_BATCH]
    for values in by_step.values():  # the first batch of an epoch
        assert values["items/ids"] == (bag >= 0).sum()
        assert values["items/rows_touched"] == len(set(bag[bag >= 0]))
        assert values["items/gradient_norm"] > 0
        assert values["users/accumulators/max"] > values["users/accumulators/min"]

    plain = keras_models.make_model(keras, "functional", keras.optimizers.Adagrad(0.1))
    plain.compile("sgd", "mse")
    with pytest.raises(errors.InvalidInput, match='no TPUEmbedding layer with "tpu" arithmetic'):
        plain.fit(batches, verbose=0, callbacks=[kind(str(tmp_path))])


def test_intervals_are_checked() -> None:
    for make in (training.TableSummaryHook, TableSummaryHook):
        with pytest.raises((errors.InvalidInput, bridge_errors.InvalidInput), match="got 0"):
            make("never", every_n_steps=0)
