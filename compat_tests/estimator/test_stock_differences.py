"""Stock's estimators behave as known_differences.py says, in cases that no other test shows.

These tests run where stock is installed. Tests on a TPU use the software TPU.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.cases.legacy import Case, Feature, Optimizer, Table
from compat_tests.estimator.test_device_loop import Recorder
from compat_tests.programs import tiny
from compat_tests.support import batches, legacy_specs, side_by_side, stock
from estimator_bridge import estimator
from estimator_bridge.run import software_tpu

SIDES = {"stock": stock.ESTIMATOR, "bridge": estimator}


def case_of(table: Table, settings: Mapping[str, Any] = MappingProxyType({}), **of: Any) -> Case:
    """Returns a case of one table and one feature.

    Args:
        settings: more of the optimizer.
        of: more of the case.
    """
    return Case(
        name="difference",
        optimizer=Optimizer("Adam", {"learning_rate": 0.1, **settings}),
        tables={"t": table},
        features={"f": Feature("t")},
        **of,
    )


def configured(spec: Any) -> Any:
    """Returns the configuration of a device by stock."""
    settings = {"batch_size": 8, "num_hosts": 1, "num_cores": 1}
    return stock.embedding(spec, training=True, **settings).config_proto


def on(side: str) -> contextlib.AbstractContextManager[Any]:
    return software_tpu.stock_on_software_tpu() if side == "stock" else contextlib.nullcontext()


def train(side: str, folder: pathlib.Path, input_fn: Any, steps: int, **options: Any) -> list[int]:
    """Trains the tiny program with use_tpu=True; returns the steps that a hook saw."""
    recorder = Recorder()
    with on(side):
        job = tiny.make(SIDES[side], str(folder / side), [tiny.column()], use_tpu=True, **options)
        job.train(input_fn, steps=steps, hooks=[recorder])
    return recorder.after


def test_stock_reads_no_clipping_limit() -> None:
    """A limit of the spec is not in the configuration of the device."""
    with_limit, without = (
        configured(legacy_specs.build(case_of(Table(), options=options), stock.CLASSES))
        for options in ({"clipping_limit": 0.5}, {})
    )
    assert with_limit == without


def test_stock_takes_zeros_for_unset() -> None:
    """A rate of 0.0 is that of the spec, and a decay of 0.0, multiplied or not, is none."""
    settings = {"weight_decay_factor": 0.0, "multiply_weight_decay_factor_by_learning_rate": True}
    plain, rate, decay = (
        configured(legacy_specs.build(case, stock.CLASSES))
        for case in (
            case_of(Table()),
            case_of(Table(learning_rate=0.0)),
            case_of(Table(), settings),
        )
    )
    assert rate == plain
    assert decay == plain


def test_stock_shifts_samples_with_id_0() -> None:
    """Zeros of dense ids of rank 1 are dropped, and the ids after them belong to other samples."""
    case = Case(**{**vars(batches.CASE), **batches.only(batches.BAG)})
    spec = legacy_specs.build(case, stock.CLASSES)
    _, (results,) = stock.split_inputs(
        spec, {"bag": tf.constant([3, 0, 4, 5])}, num_cores=1, batch_size=4
    )
    assert batches.plain(results["bag"].embedding_indices) == ("int32", [3, 4, 5])


def test_stock_orders_tags_as_functions_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions keep their tags when their tables are exchanged."""
    # Where they want the same of its eight places, a set of two keeps the order in which they came.
    rates = [lambda step: 0.1 for _ in range(1000)]
    other = next(rate for rate in rates if hash(rate) % 8 != hash(rates[0]) % 8)
    monkeypatch.setattr(legacy_specs, "RATES", {"one": rates[0], "other": other})
    tags = []
    for names in (("one", "other"), ("other", "one")):
        case = dataclasses.replace(
            case_of(Table()),
            tables={t: Table(learning_rate_fn=name) for t, name in zip("ab", names, strict=True)},
            features={"f": Feature("a"), "g": Feature("b")},
        )
        proto = configured(legacy_specs.build(case, stock.CLASSES))
        of_tables = [
            t.optimization_parameters.learning_rate.dynamic.tag for t in proto.table_descriptor
        ]
        tags.append(dict(zip(names, of_tables, strict=True)))

    assert tags[0] == tags[1]


def job_of_dicts(folder: pathlib.Path, seen: list[Any], *, use_tpu: bool) -> Any:
    """Returns a job of stock's whose model adds the type of what it is handed to a list."""

    def body(features: Any) -> Any:
        seen.append(type(features["a"]))
        output = features["x"] * tf.get_variable("weight", [1, 1])
        if isinstance(features["a"], tf.SparseTensor):
            return output
        # Without a use, stock's graph does not say that gradients are sent after the lookup.
        return output + tf.reduce_sum(features["a"], 1, keepdims=True)

    spec = stock.CLASSES.EmbeddingConfigSpec(
        table_to_config_dict={"t": stock.CLASSES.TableConfig(tiny.ROWS, 2)},
        feature_to_config_dict={"a": stock.CLASSES.FeatureConfig("t")},
        optimization_parameters=stock.CLASSES.AdagradParameters(0.1),
    )
    options = {"use_tpu": use_tpu, "spec": spec, "export_to_tpu": False}
    return tiny.make(stock.ESTIMATOR, str(folder), (), body, **options)


def test_stock_looks_up_no_dicts_without_a_tpu(tmp_path: pathlib.Path) -> None:
    """With use_tpu=False the model gets the ids of the input_fn."""
    seen: list[Any] = []
    job = job_of_dicts(tmp_path, seen, use_tpu=False)
    job.train(tiny.input_fn, steps=1)

    assert seen == [tf.SparseTensor]
    assert "t" not in job.get_variable_names()


@pytest.mark.full
def test_stock_exports_no_lookup_of_dicts(tmp_path: pathlib.Path) -> None:
    """A model that was trained on activations gets the ids of the receiver when it is exported."""
    seen: list[Any] = []

    with software_tpu.stock_on_software_tpu():
        job = job_of_dicts(tmp_path, seen, use_tpu=True)
        job.train(tiny.input_fn, steps=2)
        assert not issubclass(seen.pop(), tf.SparseTensor)
        job.export_saved_model(str(tmp_path / "export"), tiny.receiver)
    assert seen == [tf.SparseTensor]


@pytest.mark.full
def test_stock_predicts_nothing_with_embeddings(tmp_path: pathlib.Path) -> None:
    """In predictions features are not looked up, so that columns get ids instead of activations."""
    with software_tpu.stock_on_software_tpu():
        job = tiny.make(stock.ESTIMATOR, str(tmp_path), [tiny.column()], use_tpu=True)
        job.train(tiny.input_fn, steps=2)
        inputs = lambda params: tiny.input_fn(params).map(lambda features, _: features)  # noqa: E731
        results = job.predict(inputs)
        with pytest.raises(TypeError, match="SparseTensor"):
            next(results)


@pytest.mark.full
def test_an_input_of_stock_may_not_end_inside_a_loop(tmp_path: pathlib.Path) -> None:
    """With five batches in loops of three stock raises an OutOfRangeError."""
    with pytest.raises(tf.errors.OutOfRangeError):
        train(
            "stock",
            tmp_path,
            lambda params: tiny.input_fn(params).take(5),
            100,
            tpu_options={"iterations_per_loop": 3},
        )


@pytest.mark.full
def test_stock_refuses_weights_that_two_features_share(tmp_path: pathlib.Path) -> None:
    """Once a feature has its weights the other one finds none."""
    columns = [
        tiny.column(tf.feature_column.weighted_categorical_column(tiny.identity(key), "w"))
        for key in ("a", "b")
    ]
    inputs = tiny.inputs("a", "b", w=lambda number: tiny.features_of(number)["b"])
    with (
        software_tpu.stock_on_software_tpu(),
        pytest.raises(ValueError, match="Cannot find weights w"),
    ):
        tiny.make(stock.ESTIMATOR, str(tmp_path), columns, use_tpu=True).train(inputs, steps=2)


@pytest.mark.full
def test_stock_refuses_summaries_of_a_model(tmp_path: pathlib.Path) -> None:
    """A summary in a model_fn is an error in stock's training, and none in the bridge's."""

    def with_summary(output: Any, loss: Any) -> dict[str, Any]:
        tf.summary.scalar("mine", loss)
        return {}

    assert train("bridge", tmp_path, tiny.input_fn, 2, model_options=with_summary) == [2]
    with pytest.raises(ValueError, match=r'must be from the same graph as Tensor\("mine'):
        train("stock", tmp_path, tiny.input_fn, 2, model_options=with_summary)


@pytest.mark.full
@pytest.mark.parametrize("side", SIDES)
def test_the_bridge_logs_the_loss_without_a_tpu(
    side: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With use_tpu=False the bridge logs "loss = ..."; stock's TPUEstimator does not."""
    caplog.set_level(logging.INFO, "tensorflow")
    job = side_by_side.make(SIDES[side], tmp_path, use_tpu=False)
    job.train(job.input_fn, steps=2)

    assert ("loss = " in caplog.text) == (side == "bridge")
    assert "Loss for final step" in caplog.text


@pytest.mark.full
def test_stock_estimates_how_many_steps_a_time_is(tmp_path: pathlib.Path) -> None:
    """In a loop of an hour stock makes one step, to measure it; the bridge makes all."""
    loops = {"iterations_per_loop": "1h"}

    assert train("stock", tmp_path, tiny.input_fn, 6, tpu_options=loops)[0] == 1
    assert train("bridge", tmp_path, tiny.input_fn, 6, tpu_options=loops) == [6]


def test_stock_copies_no_spec() -> None:
    """A copy of stock's EmbeddingConfigSpec is an error: it passes fields for arguments."""
    spec = stock.ESTIMATOR.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[tiny.column(initializer=None)],
        optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
    )
    with pytest.raises(TypeError):
        copy.copy(spec)
