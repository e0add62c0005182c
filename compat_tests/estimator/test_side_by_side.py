"""One program on stock's TPUEstimator and on the bridge's: what it leaves, is told and returns.

Collected where stock is installed. Without a TPU, and on the software TPU; both sides go on from
one checkpoint of stock's. Each test is a question that is put to both.
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
from compat_tests.support.base_jobs import signatures
from compat_tests.support.side_by_side import LAST, LOOP, STEPS, Side

Sides = tuple[Side, Side]

# Per step each side rounds an element once more, by half a unit of a magnitude of at most 1; this
# model, of bounded activations and small rates, hands errors on without amplifying them.
ALLOWED = 2 * LAST * UNIT_ROUNDOFF


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: Any) -> Sides:
    """Stock's side and the bridge's, with use_tpu=False."""
    return side_by_side.both(tmp_path_factory.mktemp("cpu"), use_tpu=False)


@pytest.fixture(scope="module")
def tpu(tmp_path_factory: Any) -> Sides:
    """The same with use_tpu=True: stock on the software TPU, the bridge on its host engine."""
    return side_by_side.both(tmp_path_factory.mktemp("tpu"), use_tpu=True)


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.full), "tpu"])
def sides(request: pytest.FixtureRequest) -> Sides:
    """Either pair."""
    return request.getfixturevalue(request.param)


def allowed(request: pytest.FixtureRequest) -> float:
    """Returns how far numbers may be apart: without a TPU not at all."""
    return 0.0 if request.node.callspec.params["sides"] == "cpu" else ALLOWED


# --- What is left in the model_dir --------------------------------------------------------


def test_files_have_the_same_names(sides: Sides) -> None:
    """Checkpoints, their index, the graph and directories of evaluations.

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
    """`keep_checkpoint_max` and `save_checkpoints_steps` come to the same index of checkpoints."""
    texts = [pathlib.Path(side.job.model_dir, "checkpoint").read_text() for side in sides]
    assert texts[0] == texts[1]
    assert texts[1].count("all_model_checkpoint_paths") == 3


def test_checkpoints_have_the_same_keys(sides: Sides) -> None:
    """Tables, slots, weights of the model, slots of dummies, in every checkpoint that is kept."""
    for step in (STEPS, STEPS + 1, LAST):
        keys = [
            [name for name, _ in tf.train.list_variables(f"{side.job.model_dir}/model.ckpt-{step}")]
            for side in sides
        ]
        assert keys[0] == keys[1], step
        assert set(keys[1]) >= TABLES


def test_checkpoints_have_the_same_shapes(sides: Sides) -> None:
    """Those of whole tables."""
    stock, bridge = (dict(tf.train.list_variables(side.job.model_dir)) for side in sides)
    assert stock == bridge


def test_checkpoints_have_the_same_types(sides: Sides) -> None:
    """float32, but for the global step."""
    stock, bridge = (
        {name: value.dtype for name, value in jobs.saved(side.job).items()} for side in sides
    )
    assert stock == bridge
    assert bridge["global_step"] == np.int64


def test_checkpoints_have_the_same_values(sides: Sides, request: Any) -> None:
    """Without a TPU to the bit, on one within the rounding of eight steps."""
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
    """The slices say what the whole is and where they begin, so that any sharding restores them."""
    stock, bridge = (side.slices for side in sides)
    assert stock == bridge


def test_training_writes_the_same_kinds_of_events(sides: Sides) -> None:
    """The loss, global_step/sec and examples/sec."""
    stock, bridge = (
        {event[1] for event in side_by_side.events(side.job.model_dir)} for side in sides
    )
    assert stock == bridge == {"loss", "global_step/sec", "examples/sec"}


def test_training_writes_events_of_the_same_steps(tpu: Sides) -> None:
    """At the ends of loops; without a TPU which step a hook reads is a race, also in stock."""
    stock, bridge = (
        [event[:2] for event in side_by_side.events(side.job.model_dir)] for side in tpu
    )
    assert stock == bridge
    assert {step for step, _ in bridge} == {3, 5, 6, 8}


def test_the_loss_of_events_is_the_same(sides: Sides, request: Any) -> None:
    """Value by value."""
    stock, bridge = (
        [value for _, tag, value in side_by_side.events(side.job.model_dir) if tag == "loss"]
        for side in sides
    )
    assert len(bridge) >= 3
    np.testing.assert_allclose(bridge, stock, rtol=0, atol=allowed(request))


@pytest.mark.parametrize("name", [None, "earlier"])
def test_evaluations_write_the_same_events(sides: Sides, name: str | None, request: Any) -> None:
    """Metrics, the loss and the path of the checkpoint, at the step that was evaluated."""
    stock, bridge = (list(side_by_side.events(side.job.eval_dir(name))) for side in sides)
    assert [event[:2] for event in stock] == [event[:2] for event in bridge]
    for theirs, ours in zip(stock, bridge, strict=True):
        if isinstance(ours[2], float):
            assert abs(theirs[2] - ours[2]) <= allowed(request), ours
        else:
            assert theirs == ours


# --- Variables and collections ------------------------------------------------------------


def test_global_variables_have_the_same_names(sides: Sides) -> None:
    """In the same order, tables and slots with `part_0` on a TPU."""
    stock, bridge = (side.collections["variables"] for side in sides)
    assert stock == bridge


def test_table_variables_are_parts(tpu: Sides) -> None:
    """A table and its slot are `<name>/part_0`, as stock's partitioned variables are."""
    for side in tpu:
        for table in TABLES:
            assert f"{table}/part_0:0" in side.collections["variables"]
            assert f"{table}/Adagrad/part_0:0" in side.collections["variables"]


def test_trainable_variables_have_the_same_names(sides: Sides) -> None:
    """Those of the model; on a TPU no table is among them."""
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
    """Under the same names; on a TPU but for what belongs to stock's loops and infeeds."""
    left_out = MACHINERY if request.node.callspec.params["sides"] == "tpu" else set()
    stock, bridge = (
        {key: names for key, names in side.collections.items() if key not in left_out}
        for side in sides
    )
    assert stock == bridge
    assert {"summaries", "savers", "global_step", "update_ops"} <= set(bridge)


def test_variables_are_listed_the_same(sides: Sides) -> None:
    """`get_variable_names`."""
    stock, bridge = (side.job.get_variable_names() for side in sides)
    assert stock == bridge


def test_a_variable_is_read_the_same(sides: Sides, request: Any) -> None:
    """`get_variable_value` of a table."""
    stock, bridge = (side.job.get_variable_value("items") for side in sides)
    np.testing.assert_allclose(bridge, stock, rtol=0, atol=allowed(request))


def test_the_latest_checkpoint_is_the_same(sides: Sides) -> None:
    """`latest_checkpoint` is the path of the last step's."""
    stock, bridge = (side.job.latest_checkpoint() for side in sides)
    assert os.path.basename(stock) == os.path.basename(bridge) == f"model.ckpt-{LAST}"


@pytest.mark.full
def test_tpu_checkpoints_hold_all_that_those_without_a_tpu_hold(cpu: Sides, tpu: Sides) -> None:
    """But for the slots of the model's optimizer, which has none for tables on a TPU."""
    for without, with_tpu in zip(cpu, tpu, strict=True):
        slots = {f"{table}/Adam{number}" for table in TABLES for number in ("", "_1")}
        names = set(without.job.get_variable_names()) - slots
        assert names < set(with_tpu.job.get_variable_names())


# --- Hooks --------------------------------------------------------------------------------


def test_hooks_and_listeners_are_called_in_the_same_order(sides: Sides) -> None:
    """Of the caller, the model_fn and checkpoints, from begin to end, over both trainings."""
    stock, bridge = ([call[:2] for call in side.calls] for side in sides)
    assert stock == bridge
    assert bridge[0] == ("listener", "begin")


def test_hooks_see_the_same_global_steps(sides: Sides) -> None:
    """Read before and after every call, and at the end."""
    stock, bridge = ([call for call in side.calls if len(call) == 3] for side in sides)
    assert stock == bridge


def test_hooks_see_one_loop_as_one_step(tpu: Sides) -> None:
    """The global step goes up by `iterations_per_loop`, and by what is left in the last loop."""
    for side in tpu:
        after = [call[2] for call in side.calls if call[:2] == ("caller", "after_run")]
        assert after == [1 + LOOP, 1 + 2 * LOOP, 1 + STEPS]


def test_checkpoints_are_announced_at_the_same_steps(sides: Sides) -> None:
    """Listeners are called before and after every checkpoint."""
    stock, bridge = ([call for call in side.calls if call[0] == "listener"] for side in sides)
    assert stock == bridge
    assert ("listener", "after_save", STEPS + 1) in bridge


def test_evaluations_call_hooks_the_same(sides: Sides) -> None:
    """Each hook of the caller and the model_fn, with the step that is evaluated."""
    stock, bridge = (side.eval_calls for side in sides)
    assert stock == bridge


@pytest.mark.full
def test_an_evaluation_is_one_call_on_a_tpu(cpu: Sides, tpu: Sides) -> None:
    """Its steps are made in one; without a TPU each is a call."""
    for pair, calls in ((cpu, side_by_side.EVALUATED), (tpu, 1)):
        for side in pair:
            assert side.eval_calls.count(("caller", "after_run", LAST)) == calls


# --- What functions are told --------------------------------------------------------------


def told(side: Side, who: str, mode: str) -> list[tuple[Any, ...]]:
    """Returns what a function was called with in a mode."""
    return [call[2:] for call in side.told if call[:2] == (who, mode)]


def test_functions_are_called_as_often(sides: Sides) -> None:
    """In the same order, input_fn and model_fn, in every mode."""
    stock, bridge = ([call[:2] for call in side.told] for side in sides)
    assert stock == bridge


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_input_fns_are_told_the_same(sides: Sides, mode: str) -> None:
    """Their params, and on a TPU which of the calls this is."""
    stock, bridge = (told(side, "input", mode) for side in sides)
    assert stock == bridge
    assert len(bridge) >= 2


@pytest.mark.full
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_model_fns_are_told_the_same(cpu: Sides, tpu: Sides, mode: str) -> None:
    """Params, and shapes and types of all features and labels."""
    for pair in (cpu, tpu):
        stock, bridge = ([call[:3] for call in told(side, "model", mode)] for side in pair)
        assert stock == bridge
    assert told(cpu[1], "model", mode)


def test_activations_take_the_place_of_ids(tpu: Sides) -> None:
    """With the static shapes of stock's, and the lengths of sequences beside them."""
    for side in tpu:
        features = dict(told(side, "model", "train")[0][1])
        assert features["clicked"] == ([jobs.BATCH, 3, 4], "float32")
        assert features["clicked_seq_length_"] == ([jobs.BATCH], "int64")
        assert "query_weights" not in features


# --- What methods return ------------------------------------------------------------------


def test_train_returns_the_estimator(sides: Sides) -> None:
    """So that calls can be chained."""
    for side in sides:
        assert side.results["train"] is side.job


def test_a_training_that_has_been_done_is_skipped(sides: Sides) -> None:
    """`max_steps` below the saved step calls no function."""
    stock, bridge = (side.results["calls of a training that has been done"] for side in sides)
    assert stock == bridge == 0


@pytest.mark.parametrize("what", ["evaluate", "evaluate earlier"])
def test_metrics_are_the_same(sides: Sides, what: str, request: Any) -> None:
    """By name and value, of the latest checkpoint and of an earlier one."""
    stock, bridge = (side.results[what] for side in sides)
    assert set(stock) == set(bridge) == {"accuracy", "loss", "global_step"}
    for name, value in bridge.items():
        assert abs(float(value) - float(stock[name])) <= allowed(request), name
        assert type(value) is type(stock[name]), name


@pytest.mark.full
def test_predictions_are_the_same(cpu: Sides) -> None:
    """In their order, to the bit."""
    stock, bridge = (side.results["predict"] for side in cpu)
    assert stock == bridge
    assert len(bridge) == 2 * jobs.BATCH


@pytest.mark.full
def test_predict_keys_choose_the_same(cpu: Sides) -> None:
    """One prediction of those that there are."""
    stock, bridge = (side.results["predict keys"] for side in cpu)
    assert stock == bridge == [["p"]] * (2 * jobs.BATCH)


@pytest.mark.full
def test_batches_of_predictions_are_the_same(cpu: Sides) -> None:
    """With `yield_single_examples=False`."""
    stock, bridge = (side.results["predict batches"] for side in cpu)
    assert stock == bridge == [(jobs.BATCH, 1)] * 2


@pytest.mark.full
def test_exported_signatures_are_the_same(cpu: Sides) -> None:
    """Names, methods, tensor names, types and shapes."""
    paths = [side.exported for side in cpu]
    assert all(isinstance(path, bytes) for path in paths)
    assert signatures(paths[0]) == signatures(paths[1])


@pytest.mark.full
def test_exported_files_are_the_same(cpu: Sides) -> None:
    """By name, in a directory that is named by the time."""
    files = []
    for side in cpu:
        root = pathlib.Path(os.fsdecode(side.exported or b""))
        assert root.name.isdigit()
        files.append(sorted(str(p.relative_to(root)) for p in root.rglob("*")))
    assert files[0] == files[1]


@pytest.mark.full
def test_exported_variables_are_the_same(cpu: Sides) -> None:
    """Names and shapes, without the slots of optimizers."""
    stock, bridge = (
        tf.train.list_variables(
            os.path.join(os.fsdecode(side.exported or b""), "variables/variables")
        )
        for side in cpu
    )
    assert stock == bridge
    assert not [name for name, _ in bridge if "Adam" in name]


def test_properties_are_the_same(sides: Sides) -> None:
    """`params`, `eval_dir` and what the config says."""
    stock, bridge = (side.job for side in sides)
    assert stock.params == bridge.params == {"own": 1}
    for job in (stock, bridge):
        assert job.eval_dir("x") == os.path.join(job.model_dir, "eval_x")
    for name in ("save_checkpoints_steps", "keep_checkpoint_max", "save_summary_steps"):
        assert getattr(stock.config, name) == getattr(bridge.config, name)
