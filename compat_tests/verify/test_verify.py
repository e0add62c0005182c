"""`verify` finds, locates and names ten faults, and compares a checkpoint with a program."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import legacy_checkpoints, recordings
from compat_tests.verify.power import seams
from compat_tests.verify.power.faults import FAULTS as POWER
from estimator_bridge import errors, estimator
from estimator_bridge.convert import convert
from estimator_bridge.legacy import parameters
from estimator_bridge.recording.files import Recording, write_arrays
from estimator_bridge.runtime.step import engine_step
from estimator_bridge.verification.record.checkpoint_side import record_checkpoint
from estimator_bridge.verification.record.recorder import Recorder
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import SIDES, A, RecordingRequest, opened

ITEMS, QUERY = "tbl_items", "tbl_query_weighted_by_query_weights"


def slow(step: Any) -> Any:
    return 0.01 + 0.0 * tf.cast(step, tf.float32)


def fast(step: Any) -> Any:
    return 0.02 + 0.0 * tf.cast(step, tf.float32)


OPTIMIZER: dict[str, Any] = {
    "learning_rate": 0.01,
    "clip_weight_min": -0.15,
    "clip_weight_max": 0.15,
}


def record(
    directory: pathlib.Path,
    *,
    tpu_options: dict[str, Any] | None = None,
    input_fn: Any = clicks.input_fn,
    optimizer: dict[str, Any] | None = None,
    rates: tuple[Any, Any, Any] = (slow, fast, None),
    spec_options: dict[str, Any] | None = None,
    fault: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    **options: Any,
) -> Recording:
    """Trains the click program on the bridge, with TensorFlow's ops, and returns the recording."""
    side = SIDES["bridge-ops"]
    recorder = Recorder(RecordingRequest(A, str(directory), **options), side, steps=3)
    columns = clicks.columns(rates)
    with fault(), opened(side) as kind, recorder.attached(kind):
        job = kind(
            model_fn=clicks.make_model_fn(estimator, columns, cross_shard=True),
            config=clicks.run_config(estimator, str(directory / "unused"), **(tpu_options or {})),
            train_batch_size=jobs.BATCH,
            embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
                feature_columns=columns,
                optimization_parameters=parameters.AdamParameters(
                    **{**OPTIMIZER, **(optimizer or {})}
                ),
                **(spec_options or {}),
            ),
        )
        job.train(input_fn, steps=3)
    return Recording(directory)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("verify") / "a")


def against(sound: Recording, tmp_path: pathlib.Path, **changes: Any) -> Result:
    """Records a side B that starts where the sound side did, and compares."""
    options = {
        "begin_from": str(sound.directory / "start"),
        "replayed": str(sound.directory),
        "followed": str(sound.directory),
        **changes,
    }
    return recordings.explained(sound, record(tmp_path / "b", **options))


def doubled(right: Any) -> Any:
    """Doubles the gradients sent to the engine."""
    return lambda *args: {key: 2 * value for key, value in right(*args).items()}


def in_order_of_two_hosts(name: str, value: Any) -> Any:
    """Puts the rows of the items in the order in which "mod" stores them for two hosts."""
    return legacy_checkpoints.permuted(value, 2, "mod") if name == "items" else value


# For each fault: the changes of side B, the step and the table where it must be found, and the
# names of its causes.
FAULTS: dict[str, tuple[dict[str, Any], int, str | None, set[str]]] = {
    "epsilon": ({"optimizer": {"epsilon": 1e-3}}, 1, None, {"setting epsilon", "update rule"}),
    "missing clip": (
        {"optimizer": {"clip_weight_min": None, "clip_weight_max": None}},
        1,
        None,
        {"setting clip_weight_max", "clipping"},
    ),
    "swapped slots": ({"fault": POWER["swapped slots"].context}, 1, None, {"swapped slots"}),
    "mod read as div": ({}, 0, ITEMS, {"row order"}),
    "lost weight": ({"fault": POWER["lost weights"].context}, 1, QUERY, {"lost weight"}),
    "off-by-one truncation": ({"fault": POWER["cut too early"].context}, 1, ITEMS, {"truncation"}),
    "rate tag swapped": (
        {"rates": (fast, slow, None)},
        1,
        None,
        {"setting learning_rate_fn", "rate tag"},
    ),
    "gradient scaled twice": (
        {"fault": seams.patched(engine_step._Embedding, "_sent", doubled)},
        1,
        None,
        {"gradient scale"},
    ),
    "stale activation": (
        {"spec_options": {"pipeline_execution_with_tensor_core": True}},
        2,
        None,
        {"setting pipeline_execution_with_tensor_core", "stale activation"},
    ),
    "dropped duplicate": (
        {"fault": POWER["duplicates in a sample"].context},
        1,
        ITEMS,
        {"dropped duplicate"},
    ),
}
QUICK = ("epsilon", "lost weight")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in FAULTS]
)
def test_a_fault_is_found_located_and_named(
    name: str, sound: Recording, tmp_path: pathlib.Path
) -> None:
    changes, step, table, expected = FAULTS[name]
    if name == "mod read as div":
        start, permuted = str(sound.directory / "start"), str(tmp_path / "permuted")
        begin_from = legacy_checkpoints.changed(start, permuted, in_order_of_two_hosts)
        changes = {"begin_from": begin_from}
    result = against(sound, tmp_path, **changes)

    assert not result.equal
    assert result.first.first.step == step, str(result)
    assert result.first.table == table if table else result.first.table is not None, str(result)
    assert expected <= {cause.name for cause in result.causes}, str(result)


def three(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return tf.data.Dataset.range(3).map(lambda step: clicks.batch_of(step, size))


# For each case: the changes of both sides, those of side B alone, and the names of the causes.
DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "cores": ({}, {"tpu_options": {"num_shards": 2}, "replayed": None}, {"core count"}),
    "data": (
        {"input_fn": three},
        {"input_fn": lambda params: three(params).skip(1).repeat(), "replayed": None},
        {"data"},
    ),
    # Keras seeds initializers randomly.
    "start": ({}, {"begin_from": None}, {"initializers"}),
}


@pytest.mark.full
@pytest.mark.parametrize("name", DIFFERENT)
def test_another_way_to_run_a_program_is_named(name: str, tmp_path: pathlib.Path) -> None:
    both, alone, expected = DIFFERENT[name]
    result = against(record(tmp_path / "a", **both), tmp_path, **{**both, **alone})

    assert not result.equal
    assert expected <= {cause.name for cause in result.causes}, str(result)


def moved(name: str, value: Any) -> Any:
    """Moves row 5 of the items."""
    if name == "items":
        value[5] += np.float32(1e-3)
    return value


def test_a_checkpoint_of_a_tf2_program_is_a_side(sound: Recording, tmp_path: pathlib.Path) -> None:
    """Tables, slots and variables of an object checkpoint are compared with the last step.

    Evaluations have no counterpart; a note says so, and they are no difference.
    """
    shutil.copytree(sound.directory, tmp_path / "a")
    a = Recording(tmp_path / "a")
    write_arrays(a.directory / "evaluation-0.npz", {"loss": np.float32(1.0)})
    legacy = str(sound.directory / "model-0" / "model.ckpt-3")
    names = {table["name"]: table["variable"] for table in sound.settings["tables"]}
    for name, source in (
        ("same", legacy),
        ("other", legacy_checkpoints.changed(legacy, str(tmp_path / "c"), moved)),
    ):
        objects = str(tmp_path / name / "ckpt-1")
        convert(source, objects, to="object", tables=names, optimizer="Adam")
        record_checkpoint(tmp_path / f"b-{name}", objects, a)
        result = recordings.explained(a, Recording(tmp_path / f"b-{name}"))
        assert result.equal == (name == "same"), str(result)
        assert {"slot momenta", "slot velocities", "dense"} <= {one.role for one in result.series}
        assert not result.outcomes
        assert any("(of side A: evaluation)" in what for what in result.not_compared)
    assert (result.first.table, str(result.first.first)[:17]) == (ITEMS, "step 3, row 5 (id")

    early = str(sound.directory / "start")
    with pytest.raises(errors.InvalidInput, match="is from step 0, but side A ended with step 3"):
        record_checkpoint(tmp_path / "early", early, sound)
