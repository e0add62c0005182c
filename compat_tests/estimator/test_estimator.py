"""TPUEstimator on the engine: training, checkpoints, settings and reports."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs, tiny
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters
from tf2_engine.backends import HostDriver

SGD = parameters.StochasticGradientDescentParameters


TABLE = "dense_features/a_embedding/embedding_weights"
"""The table of `of_one_table`."""


def of_one_table(
    model_dir: pathlib.Path,
    optimizer: Any = None,
    spec_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns a job whose variables start with the same values each time."""
    columns = [tiny.column()]
    spec = estimator.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=columns,
        optimization_parameters=optimizer or SGD(0.1),
        **(spec_options or {}),
    )
    return tiny.make(estimator, str(model_dir), columns, use_tpu=True, spec=spec, **options)


VERBS = ("configure", "load", "retrieve", "enqueue", "dequeue", "send_gradients")


class RecordingDriver(HostDriver):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in VERBS:
            self.calls.append(name)
        return super().__getattribute__(name)


def test_every_mode_goes_through_the_verbs_of_a_driver(tmp_path: pathlib.Path) -> None:
    """Training, evaluation and prediction call the engine's verbs, in their order."""
    driver = RecordingDriver()
    pipelining = {"pipeline_execution_with_tensor_core": True}
    job = of_one_table(tmp_path, spec_options=pipelining, engine=driver)

    job.train(tiny.input_fn, steps=2)
    assert driver.calls == [
        "configure",
        "load",
        "enqueue",
        "dequeue",
        "send_gradients",
        "retrieve",  # before a checkpoint
        "retrieve",  # at the end of a loop
    ]

    three_batches = lambda params: tiny.input_fn(params).take(3)  # noqa: E731
    for run in (job.evaluate, lambda input_fn: list(job.predict(input_fn))):
        driver.calls.clear()
        run(three_batches)
        assert driver.calls == ["configure", "load", "enqueue", "dequeue"]


def test_predictions_come_in_order_to_the_last_sample(tmp_path: pathlib.Path) -> None:
    """Samples of a partial last batch are predicted too, and all keep their order."""
    job = jobs.make(tmp_path).train(clicks.input_fn, steps=2)

    def few(params: dict[str, Any]) -> Any:
        samples = clicks.short_input_fn(params).unbatch().take(2 * jobs.BATCH + 5)
        return samples.batch(params["batch_size"])

    some = [float(sample["p"][0]) for sample in job.predict(few)]
    batches = list(job.predict(clicks.short_input_fn, yield_single_examples=False))
    every = np.concatenate([batch["p"][:, 0] for batch in batches])

    assert len(some) == 2 * jobs.BATCH + 5
    np.testing.assert_allclose(some, every[: len(some)], rtol=1e-6)
    assert [len(batch["p"]) for batch in batches] == [jobs.BATCH] * 5


def test_gradient_multiplier_sees_the_step_before_it_is_counted(tmp_path: pathlib.Path) -> None:
    multiplier = {
        "experimental_gradient_multiplier_fn": lambda step: tf.cast(tf.equal(step, 1), tf.float32)
    }
    only_second = of_one_table(tmp_path, SGD(0.5), multiplier)
    only_second.train(tiny.input_fn, steps=1)
    first = jobs.saved(only_second, jobs.first_checkpoint(only_second))[TABLE]
    after = jobs.saved(only_second)[TABLE]
    only_second.train(tiny.input_fn, steps=1)

    np.testing.assert_array_equal(first, after)
    assert np.any(after != jobs.saved(only_second)[TABLE])


LIMIT, LIMIT_OF_OPTIMIZER = np.float32(0.01), np.float32(0.05)


@pytest.mark.parametrize(
    "quirks, optimizer, largest",
    [
        ("documented", SGD(0.5), LIMIT),
        ("stock", SGD(0.5), None),
        (
            "documented",
            SGD(
                0.5,
                clip_weight_min=-float(LIMIT_OF_OPTIMIZER),
                clip_weight_max=float(LIMIT_OF_OPTIMIZER),
            ),
            LIMIT_OF_OPTIMIZER,
        ),
    ],
    ids=["documented", "stock", "limits of the optimizer"],
)
def test_clipping_limit_follows_the_quirks(
    quirks: str, optimizer: Any, largest: Any, tmp_path: pathlib.Path
) -> None:
    """Weights stay within `clipping_limit` if quirks="documented"; stock ignores the limit."""
    limit = {"clipping_limit": float(LIMIT), "quirks": quirks}
    job = of_one_table(tmp_path, optimizer, limit)
    job.train(tiny.input_fn, steps=2)

    before, after = jobs.saved(job, jobs.first_checkpoint(job))[TABLE], jobs.saved(job)[TABLE]
    moved = after[np.any(before != after, axis=1)]
    assert len(moved) > 0
    if largest is None:
        assert np.max(np.abs(moved)) > LIMIT_OF_OPTIMIZER
    else:
        # Rows start at 0.1 and more, so those that moved are at the limit.
        assert np.max(np.abs(moved)) == largest


def test_pipelined_training_is_saved_up_to_date(tmp_path: pathlib.Path) -> None:
    pipelining = {"pipeline_execution_with_tensor_core": True}
    plain = of_one_table(tmp_path / "plain")
    pipelined = of_one_table(tmp_path / "pipelined", None, pipelining)
    for job in (plain, pipelined):
        job.train(tiny.input_fn, steps=1)

    # One step has nothing to overlap with, so the order of execution makes no difference.
    assert jobs.largest_difference(jobs.saved(plain), jobs.saved(pipelined))[0] == 0.0


def test_progress_is_logged(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loss, step and global_step/sec are logged, and one line says which engine runs where."""
    job = of_one_table(tmp_path)
    job._config = job._config.replace(log_step_count_steps=2)
    caplog.set_level(logging.INFO, "tensorflow")
    job.train(tiny.input_fn, steps=5)
    job.evaluate(tiny.input_fn, steps=2)

    text = caplog.text
    for part in ("loss = ", "step = 2", "global_step/sec: ", "examples/sec: ", "Loss for final"):
        assert part in text, part
    lines = [record.getMessage() for record in caplog.records if "use_tpu=" in record.getMessage()]
    assert len(lines) == 1
    assert "host driver on CPU" in lines[0]
    assert "1 TPU core(s) emulated" in lines[0]
