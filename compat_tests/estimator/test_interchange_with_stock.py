"""The bridge and stock use one model_dir in turn; these tests run where stock is installed.

Stock runs on the software TPU, or with use_tpu=False, where both sides are equal to the bit.
"""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.convert.test_stock_checkpoints import CPU_OPTIMIZERS, cpu_job
from compat_tests.programs import clicks, dicts, jobs
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from compat_tests.support import legacy_specs, stock
from estimator_bridge import convert, estimator
from estimator_bridge.run import software_tpu

PARAMETERS = stock.CLASSES
OPTIMIZERS: dict[str, Any] = {
    "Adagrad": PARAMETERS.AdagradParameters(0.05),
    "Adam": PARAMETERS.AdamParameters(0.01),
    "RMSProp": PARAMETERS.RMSPropParameters(0.005, 0.9, 0.5, 1e-3),
    "AdagradMomentum": PARAMETERS.AdagradMomentumParameters(0.02, momentum=0.5, epsilon=0.05),
    "ProximalYogi": PARAMETERS.ProximalYogiParameters(0.02, epsilon=0.1),
    "Momentum and others": PARAMETERS.MomentumParameters(0.02, 0.5),
}
OTHERS = {
    "items": {"optimization_parameters": PARAMETERS.FtrlParameters(0.05)},
    "words": {"optimization_parameters": PARAMETERS.ProximalAdagradParameters(0.05)},
}
"""Optimizers of tables of their own, in "Momentum and others"."""

PROGRAMS = {"columns": clicks, "dicts": dicts}


def make(side: str, form: str, model_dir: pathlib.Path, name: str, strategy: str = "div") -> Any:
    """Returns a TPUEstimator with use_tpu=True, of the bridge or of stock.

    Args:
        form: "columns" or "dicts".
        name: of the optimizer.
    """
    namespace, classes = estimator, legacy_specs.OURS
    if side == "stock":
        namespace, classes = stock.ESTIMATOR, stock.CLASSES
    spec_options = {"partition_strategy": strategy}
    if form == "dicts":
        return dicts.make(
            str(model_dir),
            use_tpu=True,
            optimizer=OPTIMIZERS[name],
            tables=OTHERS if name == "Momentum and others" else None,
            model_optimizer=lambda: tf.train.AdamOptimizer(0.01),
            namespace=namespace,
            classes=classes,
            spec_options=spec_options,
            params={},
        )
    return jobs.make(
        model_dir,
        OPTIMIZERS[name],
        namespace=namespace,
        spec_options=spec_options,
        # Of the bias before a normalisation the gradient is nothing but rounding.
        model_options={"batch_norm": False},
        params={},
    )


def inputs(form: str, first: int) -> Any:
    """Returns an input_fn that starts with the batch of a step."""
    return lambda params: PROGRAMS[form].input_fn(params).skip(first)


def assert_near(expected: Any, values: Any, steps: int) -> None:
    """Compares two checkpoints of which one side rounded differently in some steps."""
    difference, where = jobs.largest_difference(expected, values)
    largest = max(float(np.max(np.abs(v))) for k, v in expected.items() if k != "global_step")
    # Per step each side rounds an element once more, by half a unit of the largest magnitude;
    # these models, of bounded activations and small rates, hand errors on without amplifying them.
    assert difference <= 2 * steps * UNIT_ROUNDOFF * max(1.0, largest), where


@pytest.mark.full
@pytest.mark.parametrize(
    "form, name, strategy",
    [
        ("columns", "Adam", "div"),
        ("columns", "RMSProp", "mod"),
        ("dicts", "Adam", "mod"),
        ("dicts", "AdagradMomentum", "div"),
        ("dicts", "ProximalYogi", "mod"),
        ("dicts", "Momentum and others", "div"),
    ],
)
def test_a_job_passes_to_stock_on_its_tpu_and_back(
    form: str, name: str, strategy: str, tmp_path: pathlib.Path
) -> None:
    """Bridge, stock on its TPU and bridge in one model_dir end where the bridge alone ends."""
    first = make("bridge", form, tmp_path / "turns", name, strategy)
    first.train(inputs(form, 0), steps=5)
    evaluated = [first.evaluate(inputs(form, 0), steps=3)]
    shutil.copytree(tmp_path / "turns", tmp_path / "alone")
    before = jobs.saved(make("bridge", form, tmp_path / "alone", name, strategy))

    with software_tpu.stock_on_software_tpu():
        job = make("stock", form, tmp_path / "turns", name, strategy)
        evaluated.append(job.evaluate(inputs(form, 0), steps=3))
        job.train(inputs(form, 5), steps=5)
    ends = []
    for directory, step in (("turns", 10), ("alone", 5)):
        job = make("bridge", form, tmp_path / directory, name, strategy)
        assert jobs.saved(job)["global_step"] == step
        job.train(inputs(form, step), max_steps=15)
        ends.append(jobs.saved(job))

    assert evaluated[0]["global_step"] == evaluated[1]["global_step"] == 5
    # A mean of three losses of order 1, each of sums of less than a hundred terms.
    assert abs(evaluated[0]["loss"] - evaluated[1]["loss"]) <= 100 * UNIT_ROUNDOFF
    assert ends[0]["global_step"] == 15
    assert_near(ends[1], ends[0], 10)
    tables = dicts.ROWS if form == "dicts" else ["items"]
    for key in before:
        if key.split("/")[0] in tables:
            assert np.any(ends[0][key] != before[key]), key


def without_tpu(namespace: Any, model_dir: pathlib.Path, dropout: float = 0.0) -> Any:
    """Returns a TPUEstimator of either side with use_tpu=False."""
    return jobs.make(
        model_dir,
        tf.tpu.experimental.AdagradParameters(0.1),
        namespace=namespace,
        use_tpu=False,
        model_options={"dropout": dropout},
        params={},
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model_dir of stock's after a step."""
    folder = tmp_path_factory.mktemp("stock") / "start"
    without_tpu(stock.ESTIMATOR, folder).train(clicks.input_fn, max_steps=1)
    return folder


@pytest.mark.parametrize(
    "dropout, steps",
    [
        (0.3, 20),
        pytest.param(0.0, 200, marks=pytest.mark.full),
        pytest.param(0.3, 200, marks=pytest.mark.full),
    ],
)
def test_use_tpu_false_is_stock_to_the_bit(
    dropout: float, steps: int, start: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """After steps from one checkpoint no variable, metric or prediction differs from stock's.

    This includes dropout: the same ops in the same order draw the same numbers.
    """
    saved, evaluated, predicted = {}, {}, {}
    for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator)):
        shutil.copytree(start, tmp_path / name)
        job = without_tpu(namespace, tmp_path / name, dropout)
        job.train(clicks.input_fn, steps=steps)
        saved[name] = jobs.saved(job)
        evaluated[name] = job.evaluate(clicks.short_input_fn)
        predicted[name] = [float(sample["p"][0]) for sample in job.predict(clicks.short_input_fn)]

    jobs.assert_equal(saved["bridge"], saved["stock"])
    assert evaluated["stock"] == evaluated["bridge"]
    assert predicted["stock"] == predicted["bridge"]


def test_a_job_passes_to_the_bridge_and_back(start: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Stock, bridge and stock in one model_dir end where stock alone ends, to the bit."""
    for name in ("turns", "alone"):
        shutil.copytree(start, tmp_path / name)
    for directory, namespace, last in (
        ("turns", estimator, 4),
        ("turns", stock.ESTIMATOR, 7),
        ("alone", stock.ESTIMATOR, 7),
    ):
        job = without_tpu(namespace, tmp_path / directory)
        first = int(jobs.saved(job)["global_step"])
        job.train(lambda params, n=first: clicks.input_fn(params).skip(n), max_steps=last)

    alone, turns = (
        jobs.saved(without_tpu(estimator, tmp_path / name)) for name in ("alone", "turns")
    )
    assert turns["global_step"] == 7
    assert jobs.largest_difference(alone, turns)[0] == 0.0


def bridge_with(name: str, model_dir: pathlib.Path, *, use_tpu: bool) -> Any:
    """Returns a TPUEstimator of the bridge whose model has TF1's optimizer of that name."""
    return jobs.make(
        str(model_dir),
        OPTIMIZERS[name],
        use_tpu=use_tpu,
        model_options={"optimizer": CPU_OPTIMIZERS[name]},
        params={},
    )


@pytest.mark.full
@pytest.mark.parametrize("name", ["Adagrad", "Adam"])
def test_stock_without_a_tpu_goes_on_with_what_the_bridge_trained_as_on_one(
    name: str, tmp_path: pathlib.Path
) -> None:
    """Stock with use_tpu=False ends where the bridge with use_tpu=False ends, to the bit.

    Adagrad's slots have one name everywhere; Adam's are converted first.
    """
    job = bridge_with(name, tmp_path / "tpu", use_tpu=True)
    job.train(clicks.input_fn, steps=3)
    for side in ("stock", "bridge"):
        if name == "Adagrad":
            shutil.copytree(tmp_path / "tpu", tmp_path / side)
        else:
            convert.convert(
                str(tmp_path / "tpu"),
                str(tmp_path / side),
                spec=job._embedding_config_spec,
                to="names",
                slots="cpu",
            )
    theirs, _ = cpu_job(tmp_path / "stock", name)
    theirs.train(inputs("columns", 3), steps=3)
    ours = bridge_with(name, tmp_path / "bridge", use_tpu=False)
    ours.train(inputs("columns", 3), steps=3)

    expected, values = jobs.saved(theirs), jobs.saved(ours)
    # The bridge keeps what the way back to a TPU needs; stock drops it.
    kept = {key: values.pop(key) for key in set(values) - set(expected)}
    assert expected["global_step"] == 6
    assert jobs.largest_difference(expected, values)[0] == 0.0
    assert kept
    assert all(key.startswith("tpu_embedding_dummy_table_variable_") for key in kept)


@pytest.mark.full
def test_from_stocks_cpu_to_its_tpu_the_way_is_over_the_bridge(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stock's checkpoint of a CPU, converted and trained for a step, can be used by stock on a TPU.

    Without that step it lacks the slots of the dummy variables of tables.
    """
    job, spec = cpu_job(tmp_path / "cpu", "Adam", batch_norm=False)
    job.train(clicks.input_fn, steps=3)
    for name in ("alone", "turns"):
        convert.convert(
            str(tmp_path / "cpu"), str(tmp_path / name), spec=spec, to="names", slots="tpu"
        )
    with software_tpu.stock_on_software_tpu():
        theirs = make("stock", "columns", tmp_path / "turns", "Adam")
        with pytest.raises(Exception, match="tpu_embedding_dummy_table_variable_"):
            theirs.train(inputs("columns", 3), steps=1)
    for directory, last in (("turns", 4), ("alone", 7)):
        ours = make("bridge", "columns", tmp_path / directory, "Adam")
        ours.train(inputs("columns", 3), max_steps=last)
    with software_tpu.stock_on_software_tpu():
        theirs.train(inputs("columns", 4), max_steps=7)

    assert_near(jobs.saved(ours), jobs.saved(theirs), 3)
    warnings = [line for line in caplog.messages if "get their initial values" in line]
    assert len(warnings) == 2
    assert not any("'items/Adam" in line for line in warnings)
