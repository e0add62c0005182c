"""`batch_axis`: batches whose first axis is not that of the samples."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import clicks, jobs
from compat_tests.support import tpu_jobs
from estimator_bridge import errors, estimator
from estimator_bridge.run import software_tpu

if HAS_STOCK:
    from compat_tests.support import stock

SIZE = 4
MODES = estimator.tpu.InputPipelineConfig


def input_fn(params: Any) -> Any:
    """Returns images with their samples along the last axis, and labels along the second of two."""
    image = np.arange(3 * SIZE, dtype=np.float32).reshape([3, SIZE])
    label = np.arange(SIZE, dtype=np.float32).reshape([1, SIZE])
    return tf.data.Dataset.from_tensors(({"image": image, "age": image.T}, label)).repeat(8)


def make(
    model_dir: pathlib.Path,
    batch_axis: Any,
    cores: int | None,
    namespace: Any = estimator,
    mode: int = MODES.PER_HOST_V1,
    seen: list[Any] | None = None,
) -> Any:
    """Returns a job over these inputs, whose loss is linear in each label and pixel."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        if mode == "infer":
            return namespace.tpu.TPUEstimatorSpec(mode, predictions=features)
        if seen is not None:
            seen.append([features["age"].shape, features["image"].shape, labels.shape])
        weight = tf.get_variable("weight", [3], initializer=tf.ones_initializer())
        net = tf.tensordot(weight, features["image"], 1)
        return tpu_jobs.spec(mode, tf.reduce_mean(net * labels[0]), namespace=namespace)

    tpu = {"iterations_per_loop": 2, "num_shards": cores, "per_host_input_for_training": mode}
    return tpu_jobs.make(
        model_fn, model_dir, SIZE, namespace=namespace, tpu=tpu, batch_axis=batch_axis
    )


def test_every_core_gets_its_samples(tmp_path: pathlib.Path) -> None:
    """Two cores get halves along each tensor's axis, and end with the weights of one core."""
    seen: list[Any] = []
    trained = []
    for cores in (1, 2):
        job = make(tmp_path / str(cores), [0, 1, 1], cores, seen=seen)
        job.train(input_fn, steps=4)
        trained.append((job.get_variable_value("weight"), job.evaluate(input_fn, steps=2)["loss"]))

    assert [[shape.as_list() for shape in shapes] for shapes in seen[2:4]] == [
        [[2, 3], [3, 2], [1, 2]]
    ] * 2
    assert np.all(trained[0][0] != 1.0)
    # Sums of four float32 terms, taken in halves.
    np.testing.assert_allclose(trained[0][0], trained[1][0], rtol=1e-6)
    np.testing.assert_allclose(trained[0][1], trained[1][1], rtol=1e-6)


@pytest.mark.stock
@pytest.mark.full
def test_stock_trains_the_same_on_a_tpu(tmp_path: pathlib.Path) -> None:
    weights = [make(tmp_path / "bridge", [0, 1, 1], None).train(input_fn, steps=4)]
    with software_tpu.stock_on_software_tpu():
        theirs = make(tmp_path / "stock", [0, 1, 1], None, stock.ESTIMATOR)
        weights.append(theirs.train(input_fn, steps=4))

    ours, stocks = (job.get_variable_value("weight") for job in weights)
    # Four steps of one rounding each.
    np.testing.assert_allclose(ours, stocks, rtol=1e-6)


@pytest.mark.parametrize(
    ("batch_axis", "message"),
    [
        ([0, 1], r"2 axes.*3 tensors.*features\.age.*labels"),
        ([0, 2, 1], r"2 for features\.image"),
        ([0, -1, 1], r"-1 for features\.image"),
        ([1, 1, 1], r"features\.age has 3 samples along its axis 1"),
    ],
)
def test_axes_that_do_not_fit_are_refused(
    batch_axis: list[int], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, batch_axis, 2).train(input_fn, steps=1)


def test_predictions_have_no_batch_axis(tmp_path: pathlib.Path) -> None:
    """In predictions `batch_axis` is a TypeError for PER_HOST_V1, as in stock, else ignored."""
    with pytest.raises(TypeError, match="predictions"):
        next(make(tmp_path, [0, 1, 1], 1).predict(input_fn))
    job = make(tmp_path, [0, 1, 1], 1, mode=MODES.PER_HOST_V2)
    predictions = job.predict(lambda params: tf.data.Dataset.from_tensors({"row": tf.range(SIZE)}))
    assert [each["row"] for each in predictions] == list(range(SIZE))


@pytest.mark.full
def test_columns_have_their_samples_along_the_first_axis(tmp_path: pathlib.Path) -> None:
    """Ids and weights are not among the axes; the length of a sequence is, as in stock."""
    options = {"num_shards": 2, "per_host_input_for_training": MODES.PER_HOST_V1}

    def make_clicks(name: str, **more: Any) -> Any:
        job = jobs.make(str(tmp_path / name), model_options={"batch_norm": False}, **more)
        tpu = job._config.tpu_config._replace(**options)
        job._config = job._config.replace(tpu_config=tpu)
        return job

    first = make_clicks("first")
    first.train(clicks.input_fn, steps=3)
    jobs.continue_from(jobs.first_checkpoint(first), str(tmp_path / "second"))
    # age, the length of clicked, and the labels
    second = make_clicks("second", batch_axis=[0, 0, 0])
    second.train(clicks.input_fn, steps=3)

    assert jobs.largest_difference(jobs.saved(first), jobs.saved(second))[0] == 0.0
    with pytest.raises(errors.InvalidInput, match=r"1 for features\.clicked_seq_length_"):
        make_clicks("wrong", batch_axis=[0, 1, 0]).train(clicks.input_fn, steps=1)
