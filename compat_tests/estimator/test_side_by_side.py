"""One program on stock's TPUEstimator and on the bridge's: files, calls and results are compared.

Collected where stock is installed. Without a TPU, and on the software TPU; both sides start from
one checkpoint of stock's.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.estimator.test_estimator import TABLES
from compat_tests.programs import jobs
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from compat_tests.support import side_by_side
from compat_tests.support.side_by_side import LAST, LOOP, STEPS, Side

Sides = tuple[Side, Side]

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


# --- What is left in the model_dir --------------------------------------------------------


def test_files_have_the_same_names(sides: Sides) -> None:
    """Files of checkpoints, graphs and evaluations have the same names.

    Beside a TPU stock writes a checkpoint's data in two files, one of them for the device of the
    TPU's host, which is the same machine.
    """
    stock, bridge = (
        sorted({re.sub(r"data-0000\d-of-0000[12]$", "data", name) for name in side.files})
        for side in sides
    )
    assert stock == bridge
    assert {"graph.pbtxt", "checkpoint", f"model.ckpt-{LAST}.index", "eval_earlier"} <= set(bridge)


def test_data_of_a_checkpoint_is_in_fewer_files(tpu: Sides) -> None:
    """Beside a TPU stock writes two files of data, the bridge one."""
    last = f"model.ckpt-{LAST}.data"
    stock, bridge = ([name for name in side.files if name.startswith(last)] for side in tpu)
    assert (len(stock), len(bridge)) == (2, 1)


def test_the_same_checkpoints_are_kept(sides: Sides) -> None:
    """`keep_checkpoint_max` and `save_checkpoints_steps` keep the same checkpoints."""
    texts = [pathlib.Path(side.job.model_dir, "checkpoint").read_text() for side in sides]
    assert texts[0] == texts[1]
    assert texts[1].count("all_model_checkpoint_paths") == 3


def test_checkpoints_have_the_same_keys(sides: Sides) -> None:
    """Every checkpoint has the same tables, slots, weights of the model, and slots of dummies."""
    for step in (STEPS, STEPS + 1, LAST):
        keys = [
            [name for name, _ in tf.train.list_variables(f"{side.job.model_dir}/model.ckpt-{step}")]
            for side in sides
        ]
        assert keys[0] == keys[1], step
        assert set(keys[1]) >= TABLES


def test_checkpoints_have_the_same_shapes(sides: Sides) -> None:
    """Shapes in checkpoints are those of whole tables on both sides."""
    stock, bridge = (dict(tf.train.list_variables(side.job.model_dir)) for side in sides)
    assert stock == bridge


def test_checkpoints_have_the_same_types(sides: Sides) -> None:
    """All variables in checkpoints are float32 on both sides, but for the global step."""
    stock, bridge = (
        {name: value.dtype for name, value in jobs.saved(side.job).items()} for side in sides
    )
    assert stock == bridge
    assert bridge["global_step"] == np.int64


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


def test_checkpoints_store_tables_in_the_same_slices(sides: Sides) -> None:
    """Slices have the same whole shape and offset, so that any sharding can restore them."""
    stock, bridge = (side.slices for side in sides)
    assert stock == bridge


def test_training_writes_the_same_kinds_of_events(sides: Sides) -> None:
    """Both sides write the loss, global_step/sec and examples/sec."""
    stock, bridge = (
        {event[1] for event in side_by_side.events(side.job.model_dir)} for side in sides
    )
    assert stock == bridge == {"loss", "global_step/sec", "examples/sec"}


def test_training_writes_events_of_the_same_steps(tpu: Sides) -> None:
    """Events are of the ends of loops; without a TPU the step that a hook reads is a race."""
    stock, bridge = (
        [event[:2] for event in side_by_side.events(side.job.model_dir)] for side in tpu
    )
    assert stock == bridge
    assert {step for step, _ in bridge} == {3, 5, 6, 8}


def test_the_loss_of_events_is_the_same(sides: Sides, request: Any) -> None:
    """Each loss in the events is the same."""
    stock, bridge = (
        [value for _, tag, value in side_by_side.events(side.job.model_dir) if tag == "loss"]
        for side in sides
    )
    assert len(bridge) >= 3
    np.testing.assert_allclose(bridge, stock, rtol=0, atol=allowed(request))


@pytest.mark.parametrize("name", [None, "earlier"])
def test_evaluations_write_the_same_events(sides: Sides, name: str | None, request: Any) -> None:
    """Metrics, the loss and the checkpoint's path are written at the evaluated step."""
    stock, bridge = (list(side_by_side.events(side.job.eval_dir(name))) for side in sides)
    assert [event[:2] for event in stock] == [event[:2] for event in bridge]
    for theirs, ours in zip(stock, bridge, strict=True):
        if isinstance(ours[2], float):
            assert abs(theirs[2] - ours[2]) <= allowed(request), ours
        else:
            assert theirs == ours


# --- Variables and collections ------------------------------------------------------------


def test_global_variables_have_the_same_names(sides: Sides) -> None:
    """Names and order of global variables are the same, with `part_0` for tables on a TPU."""
    stock, bridge = (side.collections["variables"] for side in sides)
    assert stock == bridge


def test_table_variables_are_parts(tpu: Sides) -> None:
    """A table and its slot are `<name>/part_0`, as stock's partitioned variables are."""
    for side in tpu:
        for table in TABLES:
            assert f"{table}/part_0:0" in side.collections["variables"]
            assert f"{table}/Adagrad/part_0:0" in side.collections["variables"]


def test_trainable_variables_have_the_same_names(sides: Sides) -> None:
    """Trainable variables are those of the model; on a TPU no table is among them."""
    stock, bridge = (side.collections["trainable_variables"] for side in sides)
    assert stock == bridge


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


def test_variables_are_listed_the_same(sides: Sides) -> None:
    """`get_variable_names` returns the same."""
    stock, bridge = (side.job.get_variable_names() for side in sides)
    assert stock == bridge


def test_a_variable_is_read_the_same(sides: Sides, request: Any) -> None:
    """`get_variable_value` of a table returns the same."""
    stock, bridge = (side.job.get_variable_value("items") for side in sides)
    np.testing.assert_allclose(bridge, stock, rtol=0, atol=allowed(request))


def test_the_latest_checkpoint_is_the_same(sides: Sides) -> None:
    """`latest_checkpoint` is the path of the last step's."""
    stock, bridge = (side.job.latest_checkpoint() for side in sides)
    assert os.path.basename(stock) == os.path.basename(bridge) == f"model.ckpt-{LAST}"


@pytest.mark.full
def test_tpu_checkpoints_hold_all_that_those_without_a_tpu_hold(cpu: Sides, tpu: Sides) -> None:
    """On a TPU the model's optimizer lacks slots of tables; everything else is in both."""
    for without, with_tpu in zip(cpu, tpu, strict=True):
        slots = {f"{table}/Adam{number}" for table in TABLES for number in ("", "_1")}
        names = set(without.job.get_variable_names()) - slots
        assert names < set(with_tpu.job.get_variable_names())


# --- Hooks --------------------------------------------------------------------------------


def test_hooks_and_listeners_are_called_in_the_same_order(sides: Sides) -> None:
    """Hooks of the caller and of the model_fn, and listeners, are called in the same order."""
    stock, bridge = ([call[:2] for call in side.calls] for side in sides)
    assert stock == bridge
    assert bridge[0] == ("listener", "begin")


def test_hooks_see_the_same_global_steps(sides: Sides) -> None:
    """Global steps before and after every call, and at the end, are the same."""
    stock, bridge = ([call for call in side.calls if len(call) == 3] for side in sides)
    assert stock == bridge


def test_hooks_see_one_loop_as_one_step(tpu: Sides) -> None:
    """The global step rises by `iterations_per_loop`, in the last loop by the remaining steps."""
    for side in tpu:
        after = [call[2] for call in side.calls if call[:2] == ("caller", "after_run")]
        assert after == [1 + LOOP, 1 + 2 * LOOP, 1 + STEPS]


def test_checkpoints_are_announced_at_the_same_steps(sides: Sides) -> None:
    """Listeners are called before and after every checkpoint."""
    stock, bridge = ([call for call in side.calls if call[0] == "listener"] for side in sides)
    assert stock == bridge
    assert ("listener", "after_save", STEPS + 1) in bridge


def test_evaluations_call_hooks_the_same(sides: Sides) -> None:
    """Hooks of the caller and of the model_fn are called with the evaluated step."""
    stock, bridge = (side.eval_calls for side in sides)
    assert stock == bridge


@pytest.mark.full
def test_an_evaluation_is_one_call_on_a_tpu(cpu: Sides, tpu: Sides) -> None:
    """All steps of an evaluation are one call on a TPU; without one each step is a call."""
    for pair, calls in ((cpu, side_by_side.EVALUATED), (tpu, 1)):
        for side in pair:
            assert side.eval_calls.count(("caller", "after_run", LAST)) == calls


# --- Arguments of functions ---------------------------------------------------------------


def calls_of(side: Side, who: str, mode: str) -> list[tuple[Any, ...]]:
    """Returns what a function was called with in a mode."""
    return [call[2:] for call in side.calls_of_functions if call[:2] == (who, mode)]


def test_functions_are_called_as_often(sides: Sides) -> None:
    """Input_fn and model_fn are called as often, in the same order, in every mode."""
    stock, bridge = ([call[:2] for call in side.calls_of_functions] for side in sides)
    assert stock == bridge


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_input_fns_are_told_the_same(sides: Sides, mode: str) -> None:
    """Input_fns get the same params, and on a TPU the same number of the call."""
    stock, bridge = (calls_of(side, "input", mode) for side in sides)
    assert stock == bridge
    assert len(bridge) >= 2


@pytest.mark.full
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_model_fns_are_told_the_same(cpu: Sides, tpu: Sides, mode: str) -> None:
    """Model_fns get the same params, and features and labels of the same shapes and types."""
    for pair in (cpu, tpu):
        stock, bridge = ([call[:3] for call in calls_of(side, "model", mode)] for side in pair)
        assert stock == bridge
    assert calls_of(cpu[1], "model", mode)


def test_activations_take_the_place_of_ids(tpu: Sides) -> None:
    """Activations have stock's static shapes, and the lengths of sequences are beside them."""
    for side in tpu:
        features = dict(calls_of(side, "model", "train")[0][1])
        assert features["clicked"] == ([jobs.BATCH, 3, 4], "float32")
        assert features["clicked_seq_length_"] == ([jobs.BATCH], "int64")
        assert "query_weights" not in features


# --- What methods return ------------------------------------------------------------------


def test_train_returns_the_estimator(sides: Sides) -> None:
    """`train` returns the estimator, so that calls can be chained."""
    for side in sides:
        assert side.results["train"] is side.job


def test_a_training_that_has_been_done_is_skipped(sides: Sides) -> None:
    """`max_steps` below the saved step calls no function."""
    stock, bridge = (side.results["calls of a training that has been done"] for side in sides)
    assert stock == bridge == 0


@pytest.mark.parametrize("what", ["evaluate", "evaluate earlier"])
def test_metrics_are_the_same(sides: Sides, what: str, request: Any) -> None:
    """Metrics of the latest checkpoint and of an earlier one have the same names and values."""
    stock, bridge = (side.results[what] for side in sides)
    assert set(stock) == set(bridge) == {"accuracy", "loss", "global_step"}
    for name, value in bridge.items():
        assert abs(float(value) - float(stock[name])) <= allowed(request), name
        assert type(value) is type(stock[name]), name


@pytest.mark.full
def test_predictions_are_the_same(cpu: Sides) -> None:
    """Predictions are equal to the bit, and in the same order."""
    stock, bridge = (side.results["predict"] for side in cpu)
    assert stock == bridge
    assert len(bridge) == 2 * jobs.BATCH


@pytest.mark.full
def test_predict_keys_choose_the_same(cpu: Sides) -> None:
    """`predict_keys` chooses the same prediction."""
    stock, bridge = (side.results["predict keys"] for side in cpu)
    assert stock == bridge == [["p"]] * (2 * jobs.BATCH)


@pytest.mark.full
def test_batches_of_predictions_are_the_same(cpu: Sides) -> None:
    """With `yield_single_examples=False` batches are the same."""
    stock, bridge = (side.results["predict batches"] for side in cpu)
    assert stock == bridge == [(jobs.BATCH, 1)] * 2


@pytest.mark.full
def test_exported_signatures_are_the_same(cpu: Sides) -> None:
    """Signatures have the same names, methods, tensor names, types and shapes."""
    paths = [side.exported for side in cpu]
    assert all(isinstance(path, bytes) for path in paths)
    assert jobs.signatures(paths[0]) == jobs.signatures(paths[1])


@pytest.mark.full
def test_exported_files_are_the_same(cpu: Sides) -> None:
    """Exported files have the same names, in a directory that is named by the time."""
    files = []
    for side in cpu:
        root = pathlib.Path(os.fsdecode(side.exported or b""))
        assert root.name.isdigit()
        files.append(sorted(str(p.relative_to(root)) for p in root.rglob("*")))
    assert files[0] == files[1]


@pytest.mark.full
def test_exported_variables_are_the_same(cpu: Sides) -> None:
    """Exported variables have the same names and shapes, without the slots of optimizers."""
    stock, bridge = (
        tf.train.list_variables(
            os.path.join(os.fsdecode(side.exported or b""), "variables/variables")
        )
        for side in cpu
    )
    assert stock == bridge
    assert not [name for name, _ in bridge if "Adam" in name]


def test_properties_are_the_same(sides: Sides) -> None:
    """`params`, `eval_dir` and the config are the same."""
    stock, bridge = (side.job for side in sides)
    assert stock.params == bridge.params == {"own": 1}
    for job in (stock, bridge):
        assert job.eval_dir("x") == os.path.join(job.model_dir, "eval_x")
    for name in ("save_checkpoints_steps", "keep_checkpoint_max", "save_summary_steps"):
        assert getattr(stock.config, name) == getattr(bridge.config, name)
