"""Callbacks of a TableModel: stopping, logging and exports."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.tiers import quick
from tf2_engine import errors, export_folders
from tf2_engine import keras as ours
from tf2_engine.summaries.events import scalars_by_step

LOSSES = [5.0, 3.0, 4.0, 2.0, 6.0]
"""Of the evaluations after 2, 4, 6, 8 and 10 steps."""


class Counter(ours.TableModel):  # type: ignore[misc]
    """A model that counts its steps and reports the losses above in evaluations."""

    def __init__(self, loss_of_step: Callable[[Any], Any] = lambda step: 1.0 / step) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, name="dense")
        self.mean_loss = tf.keras.metrics.Mean(name="loss")
        self.loss_of_step = loss_of_step
        self.compile(optimizer=tf.keras.optimizers.SGD(1.0))

    def call(self, features: Any, training: bool = False) -> Any:
        return self.dense(features["x"])

    def train_step(self, batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(batch[0], training=True))
        self.minimize(loss, tape)
        return {"loss": self.loss_of_step(tf.cast(self.with_tables.step, tf.float32))}

    def test_step(self, batch: Any) -> dict[str, Any]:
        del batch
        place = tf.minimum(self.with_tables.step // 2, len(LOSSES)) - 1
        self.mean_loss.update_state(tf.gather(LOSSES, tf.maximum(place, 0)))
        return {"loss": self.mean_loss.result()}

    def predict_step(self, features: Any) -> dict[str, Any]:
        step = tf.cast(self.with_tables.step, tf.int64)
        return {"step": tf.fill([tf.shape(features["x"])[0]], step)}


def data() -> Any:
    return tf.data.Dataset.from_tensors(({"x": tf.ones([2, 1])}, tf.ones([2, 1]))).repeat()


def trained(
    folder: pathlib.Path, callbacks: Sequence[Any], max_steps: int = 10, **options: Any
) -> Counter:
    """Trains a model for at most ten steps, with an evaluation every two steps."""
    model = Counter(**options)
    model.keep_checkpoints(str(folder), save_steps=2, max_to_keep=9)
    model.fit(
        data(),
        max_steps=max_steps,
        validation_data=data(),
        validation_steps=1,
        callbacks=callbacks,
        verbose=0,
    )
    return model


EACH = {"every_secs": None, "every_steps": 1}

STOPS: dict[str, tuple[Any, int]] = {
    "a number of steps": (lambda: ours.StopAtStep(num_steps=3), 3),
    "a step": (lambda: ours.StopAtStep(last_step=7), 7),
    "a function": (lambda: ours.StopWhen(lambda: True), 1),
    "a function that says no": (lambda: ours.StopWhen(lambda: False, **EACH), 10),
    # 4.0 at 6 is no better than 3.0 at 4.
    "no decrease": (lambda: ours.StopIfNoDecrease("loss", 2, **EACH), 6),
    "no decrease for longer": (lambda: ours.StopIfNoDecrease("loss", 3, **EACH), 10),
    "no decrease, looked at seldom": (
        lambda: ours.StopIfNoDecrease("loss", 2, every_secs=None, every_steps=4),
        9,
    ),
    "no decrease after a while": (
        lambda: ours.StopIfNoDecrease("loss", 2, min_steps=6, **EACH),
        10,
    ),
    "no increase": (lambda: ours.StopIfNoIncrease("loss", 4, **EACH), 6),
    "above": (lambda: ours.StopIfHigher("loss", 4.5, **EACH), 2),
    "below": (lambda: ours.StopIfLower("loss", 2.5, **EACH), 8),
}


@pytest.mark.parametrize("what", quick(["a step", "no decrease", "above"], STOPS))
def test_a_training_ends_where_the_callback_says(what: str, tmp_path: pathlib.Path) -> None:
    """The last step has a checkpoint and an evaluation."""
    make, last = STOPS[what]
    model = trained(tmp_path, [make()])
    assert model.global_step == last
    assert str(model.latest_checkpoint()).endswith(f"ckpt-{last}")
    assert [*scalars_by_step(str(tmp_path / "eval"))] == [*range(2, last, 2), last]


def test_endless_data_end_with_the_callback() -> None:
    """A callback ends a training that has no last step, as hooks end an estimator's."""
    model = Counter()
    model.fit(data(), callbacks=[ours.StopAtStep(num_steps=3)], verbose=0)
    assert model.global_step == 3


@pytest.mark.full
def test_evaluations_of_a_training_before_count(tmp_path: pathlib.Path) -> None:
    """The second training stops at its first step, where the first one would have stopped."""
    trained(tmp_path, [ours.StopAtStep(last_step=6)])
    assert trained(tmp_path, [ours.StopIfNoDecrease("loss", 2, **EACH)]).global_step == 7


@pytest.mark.full
def test_a_metric_that_is_missing_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.MissingMetric, match="no metric 'auc', only loss"):
        trained(tmp_path, [ours.StopIfHigher("auc", 0.5, **EACH)])


def test_intervals_and_steps_are_given_once() -> None:
    with pytest.raises(errors.InvalidInput, match="either in seconds or in steps"):
        ours.StopWhen(lambda: True, every_secs=1.0, every_steps=1)
    with pytest.raises(errors.InvalidInput, match="num_steps"):
        ours.StopAtStep()
    with pytest.raises(errors.InvalidInput, match="either in seconds or in steps"):
        ours.StepLog()


def test_without_checkpoints_there_are_no_evaluations_to_look_at() -> None:
    model = Counter()
    with pytest.raises(errors.InvalidInput, match="keep_checkpoints"):
        model.fit(data(), steps=2, callbacks=[ours.StopIfLower("loss", 1.0, **EACH)], verbose=0)


def nan_at_4(step: Any) -> Any:
    return tf.where(step < 4.0, 1.0, float("nan"))


@pytest.mark.full
def test_a_loss_that_is_no_number_ends_a_training(tmp_path: pathlib.Path) -> None:
    """The training ends with or without an error, before step 4 gets a checkpoint."""
    with pytest.raises(errors.LossIsNaN, match="step 4"):
        trained(tmp_path / "fails", [ours.StopIfNaN()], loss_of_step=nan_at_4)
    assert str(tf.train.latest_checkpoint(str(tmp_path / "fails"))).endswith("ckpt-2")
    model = trained(tmp_path / "stops", [ours.StopIfNaN(fail=False)], loss_of_step=nan_at_4)
    assert model.global_step == 4


@pytest.mark.full
def test_steps_are_logged_at_intervals(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first step is logged, then one per interval, and the last one on request."""
    with caplog.at_level(logging.INFO):
        trained(tmp_path / "steps", [ours.StepLog(every_steps=4)])
        trained(tmp_path / "end", [ours.StepLog(at_end=True)])
    logged = [each.getMessage() for each in caplog.records if "loss =" in each.getMessage()]
    assert [each.rpartition(" ")[2] for each in logged] == ["1", "5", "9", "10"]
    assert logged[0] == "loss = 1.0, step = 1"


@pytest.mark.full
def test_checkpoints_of_one_training_may_come_more_often(tmp_path: pathlib.Path) -> None:
    """Evaluations come as often as checkpoints."""
    model = Counter()
    model.keep_checkpoints(str(tmp_path), save_steps=5, max_to_keep=9)
    model.fit(
        data(),
        max_steps=6,
        save_every=3,
        validation_data=data(),
        validation_steps=1,
        verbose=0,
    )
    assert [*scalars_by_step(str(tmp_path / "eval"))] == [3, 6]
    saved = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
    assert [each.rpartition("-")[2] for each in saved] == ["3", "6"]


@pytest.mark.full
def test_tensorboard_is_written_by_the_step(tmp_path: pathlib.Path) -> None:
    """As hooks that count steps, save summaries and profile become it."""
    folder, tensorboard = str(tmp_path / "logs"), tf.keras.callbacks.TensorBoard
    callbacks = [
        tensorboard(folder, update_freq=2, write_graph=False, write_steps_per_second=True),
        tensorboard(folder, profile_batch=3, write_graph=False),
    ]
    model = trained(tmp_path / "model", callbacks)
    assert model.global_step == 10
    assert [*pathlib.Path(folder).glob("train/events.out.tfevents.*")]
    assert [*pathlib.Path(folder).glob("**/plugins/profile/*")]


SPEC = {"x": tf.TensorSpec([None, 1], tf.float32, "x")}


def to_features(received: Any) -> Any:
    return received


def exported(folder: pathlib.Path) -> list[int]:
    steps = []
    for path in sorted(folder.iterdir()):
        serving = tf.saved_model.load(str(path)).signatures["serving_default"]
        steps.append(int(serving(x=tf.ones([1, 1]))["step"][0]))
    return steps


@pytest.fixture
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advances the clock by a second whenever an export asks for the time."""
    seconds = iter(range(1_700_000_000, 1_700_001_000))
    monkeypatch.setattr(export_folders.time, "time", lambda: next(seconds))


def greater(best_eval_result: Any, current_eval_result: Any) -> bool:
    return bool(best_eval_result["loss"] < current_eval_result["loss"])


@pytest.mark.full
def test_models_are_exported_after_evaluations(tmp_path: pathlib.Path, quick_clock: None) -> None:
    """One exporter keeps the latest models, the other those that are better than all before."""
    exporters = [
        ours.LatestExporter(str(tmp_path / "latest"), SPEC, to_features, exports_to_keep=2),
        ours.BestExporter(str(tmp_path / "best"), SPEC, to_features),
        ours.BestExporter(str(tmp_path / "greatest"), SPEC, to_features, compare_fn=greater),
    ]
    trained(tmp_path / "model", exporters)
    assert exported(tmp_path / "latest") == [8, 10]
    assert exported(tmp_path / "best") == [2, 4, 8]
    assert exported(tmp_path / "greatest") == [2, 10]


@pytest.mark.full
def test_the_best_of_earlier_trainings_is_to_be_beaten(
    tmp_path: pathlib.Path, quick_clock: None
) -> None:
    """Only the very first evaluation is exported without a comparison."""
    trained(tmp_path / "model", [ours.StopAtStep(last_step=4)])
    best = ours.BestExporter(str(tmp_path / "best"), SPEC, to_features)
    trained(tmp_path / "model", [best])
    assert exported(tmp_path / "best") == [6, 8]
    trained(tmp_path / "model", [ours.BestExporter(best._folder, SPEC, to_features)], max_steps=12)
    assert exported(tmp_path / "best") == [6, 8]


def test_exporters_that_cannot_work_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.InvalidSpec, match="exports_to_keep"):
        ours.LatestExporter("folder", SPEC, to_features, exports_to_keep=0)
    with pytest.raises(errors.InvalidSpec, match="compare_fn"):
        ours.BestExporter("folder", SPEC, to_features, compare_fn=lambda one, other: True)
    model = Counter()
    exporter = ours.LatestExporter(str(tmp_path), SPEC, to_features)
    with pytest.raises(errors.OutOfOrder, match="validation_data"):
        model.fit(data(), steps=1, callbacks=[exporter], verbose=0)
