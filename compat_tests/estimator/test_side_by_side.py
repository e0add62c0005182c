"""One program on stock's TPUEstimator and on the bridge's: files, calls and results are equal.

These tests run where stock is installed, without a TPU and on the software TPU. Both sides start
from the same checkpoint, which stock wrote.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from compat_tests.support import base_jobs, side_by_side
from compat_tests.support.side_by_side import LAST, STEPS, Side

Sides = tuple[Side, Side]

TABLES = {
    "items",
    "dense_features/place_embedding/embedding_weights",
    "dense_features/query_weighted_by_query_weights_embedding/embedding_weights",
}

# Per step each side rounds an element once more, by half a unit of a magnitude of at most 1; this
# model, of bounded activations and small rates, hands errors on without amplifying them.
ALLOWED = 2 * LAST * UNIT_ROUNDOFF


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: Any) -> Sides:
    """Returns stock's side and the bridge's, with use_tpu=False."""
    return side_by_side.both(tmp_path_factory.mktemp("cpu"), use_tpu=False)


@pytest.fixture(scope="module")
def tpu(tmp_path_factory: Any) -> Sides:
    """Returns both sides with use_tpu=True: stock's on the software TPU, ours on the host."""
    return side_by_side.both(tmp_path_factory.mktemp("tpu"), use_tpu=True)


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.full), "tpu"])
def sides(request: pytest.FixtureRequest) -> Sides:
    """Returns stock's side and the bridge's, with either setting."""
    return request.getfixturevalue(request.param)


def allowed(request: pytest.FixtureRequest) -> float:
    """Returns the tolerance of values; it is 0 without a TPU."""
    return 0.0 if request.node.callspec.params["sides"] == "cpu" else ALLOWED


def names_of_files(side: Side) -> Any:
    """Returns the names of files; for a TPU stock writes a checkpoint's data in two, not one."""
    return sorted({re.sub(r"data-0000\d-of-0000[12]$", "data", name) for name in side.files})


def keys_of_checkpoints(side: Side) -> Any:
    """Returns what each checkpoint has: tables, slots, weights of the model, slots of dummies."""
    return {
        step: [
            name for name, _ in tf.train.list_variables(f"{side.job.model_dir}/model.ckpt-{step}")
        ]
        for step in (STEPS, STEPS + 1, LAST)
    }


def properties(side: Side) -> Any:
    job, names = side.job, ("save_checkpoints_steps", "keep_checkpoint_max", "save_summary_steps")
    relative = os.path.relpath(job.eval_dir("x"), job.model_dir)
    return job.params, relative, *(getattr(job.config, name) for name in names)


def calls_of(side: Side, who: str, mode: str) -> list[tuple[Any, ...]]:
    return [call[2:] for call in side.calls_of_functions if call[:2] == (who, mode)]


SAME: dict[str, tuple[Callable[[Side], Any], Callable[[Any], bool]]] = {
    "files": (
        names_of_files,
        lambda names: {"graph.pbtxt", "checkpoint", f"model.ckpt-{LAST}.index"} <= {*names},
    ),
    "kept checkpoints": (
        lambda side: pathlib.Path(side.job.model_dir, "checkpoint").read_text(),
        lambda text: text.count("all_model_checkpoint_paths") == 3,
    ),
    "keys": (
        keys_of_checkpoints,
        lambda keys: all({*names} >= TABLES for names in keys.values()),
    ),
    "shapes": (
        lambda side: dict(tf.train.list_variables(side.job.model_dir)),
        lambda shapes: shapes["items"] == [clicks.ROWS, 4],
    ),
    "types": (
        lambda side: {name: value.dtype for name, value in jobs.saved(side.job).items()},
        lambda types: types["global_step"] == np.int64,
    ),
    "slices": (lambda side: side.slices, lambda slices: True),
    "kinds of events": (
        lambda side: {event[1] for event in base_jobs.events(side.job.model_dir)},
        lambda kinds: kinds == {"loss", "global_step/sec", "examples/sec"},
    ),
    "global variables": (lambda side: side.collections["variables"], bool),
    "trainable variables": (lambda side: side.collections["trainable_variables"], bool),
    "get_variable_names": (lambda side: side.job.get_variable_names(), bool),
    "latest_checkpoint": (
        lambda side: os.path.basename(side.job.latest_checkpoint()),
        lambda name: name == f"model.ckpt-{LAST}",
    ),
    "calls of hooks": (
        lambda side: [call[:2] for call in side.calls],
        lambda calls: calls[0] == ("listener", "begin"),
    ),
    "global steps of hooks": (
        lambda side: [call for call in side.calls if len(call) == 3],
        lambda calls: ("listener", "after_save", STEPS + 1) in calls,
    ),
    "hooks of evaluations": (lambda side: side.eval_calls, bool),
    "calls of functions": (lambda side: [call[:2] for call in side.calls_of_functions], bool),
    "params of input_fn in training": (
        lambda side: calls_of(side, "input", "train"),
        lambda calls: len(calls) >= 2,
    ),
    "params of input_fn in evaluation": (
        lambda side: calls_of(side, "input", "eval"),
        lambda calls: len(calls) >= 2,
    ),
    "train returns the estimator": (lambda side: side.results["train"] is side.job, bool),
    "calls of a training that has been done": (
        lambda side: side.results["calls of a training that has been done"],
        lambda calls: calls == 0,
    ),
    "properties": (properties, lambda values: values[:2] == ({"own": 1}, "eval_x")),
}
"""By name: what a side left behind, and what must be so beside being the same on both sides."""


@pytest.mark.parametrize("what", SAME)
def test_both_sides_have_the_same(sides: Sides, what: str) -> None:
    read, holds = SAME[what]
    stock, bridge = map(read, sides)
    assert stock == bridge
    assert holds(bridge)


@pytest.mark.full
@pytest.mark.parametrize(
    "what, expected",
    [
        ("predict", None),
        ("predict keys", [["p"]] * (2 * jobs.BATCH)),
        ("predict batches", [(jobs.BATCH, 1)] * 2),
    ],
)
def test_predictions_are_the_same(cpu: Sides, what: str, expected: Any) -> None:
    """Predictions, those that `predict_keys` chooses, and batches are equal to the bit."""
    stock, bridge = (side.results[what] for side in cpu)
    assert stock == bridge
    assert bridge == expected if expected else len(bridge) == 2 * jobs.BATCH


# --- What is left in the model_dir --------------------------------------------------------


def test_data_of_a_checkpoint_is_in_fewer_files(tpu: Sides) -> None:
    """Beside a TPU stock writes two files of data, the bridge one."""
    last = f"model.ckpt-{LAST}.data"
    stock, bridge = ([name for name in side.files if name.startswith(last)] for side in tpu)
    assert (len(stock), len(bridge)) == (2, 1)


def test_checkpoints_have_the_same_values(sides: Sides, request: Any) -> None:
    """Values are equal to the bit without a TPU, and within the rounding of eight steps on one."""
    stock, bridge = (jobs.saved(side.job) for side in sides)
    assert stock.keys() == bridge.keys()
    if allowed(request):
        # Batch normalization comes after it: its gradient is nothing but rounding, which Adam blows
        # up to a step of any size.
        stock, bridge = (
            {name: value for name, value in values.items() if not name.startswith("dense/bias")}
            for values in (stock, bridge)
        )
    difference, where = jobs.largest_difference(stock, bridge)
    assert difference <= allowed(request), where


def test_training_writes_events_of_the_same_steps(tpu: Sides) -> None:
    """Events are of the ends of loops; without a TPU the step that a hook reads is a race."""
    stock, bridge = ([event[:2] for event in base_jobs.events(side.job.model_dir)] for side in tpu)
    assert stock == bridge
    assert {step for step, _ in bridge} == {3, 5, 6, 8}


def test_the_loss_of_events_is_the_same(sides: Sides, request: Any) -> None:
    stock, bridge = (
        [value for _, tag, value in base_jobs.events(side.job.model_dir) if tag == "loss"]
        for side in sides
    )
    assert len(bridge) >= 3
    np.testing.assert_allclose(bridge, stock, rtol=0, atol=allowed(request))


@pytest.mark.parametrize("name", [None, "earlier"])
def test_evaluations_write_the_same_events(sides: Sides, name: str | None, request: Any) -> None:
    """Metrics, the loss and the checkpoint's path are written at the evaluated step."""
    stock, bridge = (base_jobs.events(side.job.eval_dir(name)) for side in sides)
    assert [event[:2] for event in stock] == [event[:2] for event in bridge]
    for theirs, ours in zip(stock, bridge, strict=True):
        if isinstance(ours[2], float):
            assert abs(theirs[2] - ours[2]) <= allowed(request), ours
        else:
            assert theirs == ours


# --- Variables and collections ------------------------------------------------------------


# What only the machinery of either side puts into its graph.
MACHINERY = {
    "_tpu_enqueue_ops",
    "_tpu_train_op",
    "iterators",
    "local_variables",
    "losses",
    "tpu_embedding_gradients_table_0",
    "tpu_embedding_gradients_table_1",
    "tpu_embedding_gradients_table_2",
    "tpu_embedding_table_shards",
    "tpu_estimator_iterations_per_loop",
}


def test_collections_hold_the_same(sides: Sides, request: Any) -> None:
    """Collections have the same names, but for those of stock's loops and infeeds on a TPU."""
    left_out = MACHINERY if request.node.callspec.params["sides"] == "tpu" else set()
    stock, bridge = (
        {key: names for key, names in side.collections.items() if key not in left_out}
        for side in sides
    )
    assert stock == bridge
    assert {"summaries", "savers", "global_step", "update_ops"} <= set(bridge)


# --- Arguments of functions ---------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_model_fns_are_told_the_same(cpu: Sides, tpu: Sides, mode: str) -> None:
    """Model_fns get the same params, and features and labels of the same shapes and types."""
    for pair in (cpu, tpu):
        stock, bridge = ([call[:3] for call in calls_of(side, "model", mode)] for side in pair)
        assert stock == bridge
    assert calls_of(cpu[1], "model", mode)


# --- What methods return ------------------------------------------------------------------


@pytest.mark.parametrize("what", ["evaluate", "evaluate earlier"])
def test_metrics_are_the_same(sides: Sides, what: str, request: Any) -> None:
    """Metrics of the latest checkpoint and of an earlier one have the same names and values."""
    stock, bridge = (side.results[what] for side in sides)
    assert set(stock) == set(bridge) == {"accuracy", "loss", "global_step"}
    for name, value in bridge.items():
        assert abs(float(value) - float(stock[name])) <= allowed(request), name
        assert type(value) is type(stock[name]), name
