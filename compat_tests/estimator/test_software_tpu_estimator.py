"""Stock's own TPUEstimator on the software TPU is the oracle for the bridge.

These tests run where stock is installed. The bridge runs its host driver, which shares no code with
the software TPU except the float32 arithmetic that the references check on both.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, dicts, jobs
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from compat_tests.run.test_run import PROGRAM
from compat_tests.support import fresh, legacy_specs, stock
from estimator_bridge import estimator
from estimator_bridge.run import software_tpu
from tf2_engine.native import loading

STEPS = 200

PARAMETERS = stock.CLASSES
OPTIMIZERS: dict[str, Any] = {
    "SGD": PARAMETERS.StochasticGradientDescentParameters(0.1),
    "Adagrad": PARAMETERS.AdagradParameters(0.1),
    "Adam": PARAMETERS.AdamParameters(0.01),
    "Adam, non-lazy": PARAMETERS.AdamParameters(0.01, lazy_adam=False),
    "Ftrl": PARAMETERS.FtrlParameters(0.1),
    "Momentum": PARAMETERS.MomentumParameters(0.05, 0.5, use_nesterov=True),
    "RMSProp": PARAMETERS.RMSPropParameters(0.01, 0.9, 0.5, 1e-3),
    "ProximalAdagrad": PARAMETERS.ProximalAdagradParameters(
        0.1, l1_regularization_strength=1e-4, l2_regularization_strength=1e-3
    ),
    "clipped and decayed": PARAMETERS.AdagradParameters(
        0.1,
        clip_weight_min=-0.25,
        clip_weight_max=0.3,
        clip_gradient_min=-0.02,
        clip_gradient_max=0.02,
        weight_decay_factor=0.01,
        multiply_weight_decay_factor_by_learning_rate=True,
    ),
    "not accumulated": PARAMETERS.AdagradParameters(0.1, use_gradient_accumulation=False),
}


PATHS = {"TensorFlow's ops": "0", "fused ops": "1"}
"""What the bridge trains on, and how the environment says so."""


def compare(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Any, pathlib.Path], Any],
    inputs: Any,
) -> dict[str, Any]:
    """Trains on both sides from one checkpoint, and compares everything that they save.

    The bridge trains on TensorFlow's ops and on fused ones.

    Args:
        make: returns the job of a namespace in a folder.
        inputs: the program, which has an `input_fn`.

    Returns:
        The jobs: "stock", and those of `PATHS`.
    """
    with software_tpu.stock_on_software_tpu():
        start = make(stock.ESTIMATOR, folder / "start")
        start.train(inputs.input_fn, max_steps=1)
        for side in ("stock", *PATHS):
            shutil.copytree(folder / "start", folder / side)
        trained = {"stock": make(stock.ESTIMATOR, folder / "stock")}
        trained["stock"].train(inputs.input_fn, steps=STEPS)
    for side, setting in PATHS.items():
        monkeypatch.setenv(loading.SETTING, setting)
        trained[side] = make(estimator, folder / side)
        trained[side].train(inputs.input_fn, steps=STEPS)
        judge(capsys, f"{name}, {side}", *map(jobs.saved, (start, trained["stock"], trained[side])))
    return trained


def compare_clicks(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    optimizer: Any,
    loop: int = STEPS,
    **spec_options: Any,
) -> None:
    """Compares jobs of columns, and their metrics.

    Args:
        loop: steps from one call of the hooks to the next.
    """

    def make(namespace: Any, model_dir: pathlib.Path) -> Any:
        options = {"spec_options": spec_options, "tpu_options": {"iterations_per_loop": loop}}
        return jobs.make(model_dir, optimizer, namespace=namespace, params={}, **options)

    trained = compare(folder, capsys, monkeypatch, name, make, clicks)
    with software_tpu.stock_on_software_tpu():
        expected = trained["stock"].evaluate(clicks.short_input_fn, steps=5)
    for side, setting in PATHS.items():
        monkeypatch.setenv(loading.SETTING, setting)
        metrics = trained[side].evaluate(clicks.short_input_fn)
        assert metrics["global_step"] == expected["global_step"] == STEPS + 1
        assert metrics["accuracy"] == expected["accuracy"]
        assert abs(metrics["loss"] - expected["loss"]) <= 2 * STEPS * UNIT_ROUNDOFF


def falling(step: Any) -> Any:
    """Returns the number of hundreds of steps so far."""
    return dicts.step_before(step) / 100.0


OF_DICTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (PARAMETERS.StochasticGradientDescentParameters(0.02), {}),
    "AdagradMomentum": (PARAMETERS.AdagradMomentumParameters(0.02, momentum=0.5, epsilon=0.05), {}),
    "ProximalYogi": (PARAMETERS.ProximalYogiParameters(0.02, epsilon=0.1), {}),
    "a rate for each table": (
        PARAMETERS.AdagradParameters(0.05),
        {"tables": {"items": {"learning_rate": 0.01}, "words": {"learning_rate": 0.03}}},
    ),
    "a rate by a function": (
        PARAMETERS.AdagradParameters(0.05),
        {"tables": {"items": {"learning_rate_fn": lambda step: 0.05 / (1 + falling(step))}}},
    ),
    "gradients multiplied": (
        PARAMETERS.AdagradParameters(0.05),
        {
            "spec_options": {
                "experimental_gradient_multiplier_fn": lambda step: tf.exp(-falling(step))
            }
        },
    ),
    "an optimizer for each table": (
        PARAMETERS.AdagradParameters(0.05),
        {
            "tables": {
                "items": {"optimization_parameters": PARAMETERS.FtrlParameters(0.05)},
                "words": {"optimization_parameters": PARAMETERS.AdamParameters(0.005)},
            }
        },
    ),
    "FrequencyEstimator": (
        PARAMETERS.AdagradParameters(0.05),
        # No number of steps is the threshold times D, where rounding would decide.
        {"counter": PARAMETERS.FrequencyEstimatorParameters(0.3, 6.5, 1.37, 0.75)},
    ),
}
"""Config dicts express more than columns: optimizers, and settings by table.

With `OPTIMIZERS` these are all optimizers of TPUEstimator. It has no class for CenteredRMSProp,
Adadelta and MDLAdagradLight, of which the software TPU and the bridge are held to the references
alone; see `test_no_optimizer_of_stock_is_left_out`.
"""


@pytest.mark.full
@pytest.mark.parametrize("name", OF_DICTS)
def test_config_dicts_train_as_on_stock_on_a_tpu(
    name: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer, options = OF_DICTS[name]

    def make(namespace: Any, model_dir: pathlib.Path) -> Any:
        classes = stock.CLASSES if namespace is stock.ESTIMATOR else legacy_specs.OURS
        return dicts.make(
            str(model_dir),
            use_tpu=True,
            optimizer=optimizer,
            namespace=namespace,
            classes=classes,
            tpu_options={"iterations_per_loop": STEPS},
            params={},
            **options,
        )

    compare(tmp_path, capsys, monkeypatch, f"config dicts, {name}", make, dicts)


def test_no_optimizer_of_stock_is_left_out() -> None:
    """Every class of stock's for an optimizer of tables trains above, beside the bridge."""
    of_dicts = [
        optimizer
        for of_tables, options in OF_DICTS.values()
        for optimizer in (of_tables, options.get("counter"))
    ]
    trained = {type(one) for one in (*OPTIMIZERS.values(), *of_dicts) if one is not None}

    assert {kind.__name__ for kind in trained} == {
        name for name in vars(PARAMETERS) if name.endswith("Parameters") and name[0] != "_"
    }


COUNTS = {"global_step", "seen/FrequencyEstimator"}
"""Numbers of steps, which are never rounded."""


def judge(
    capsys: pytest.CaptureFixture[str],
    name: str,
    start: dict[str, Any],
    theirs: dict[str, Any],
    ours: dict[str, Any],
) -> None:
    """Prints and checks the change of the tables and the difference between the two sides."""
    of_dicts = {*dicts.ROWS, "seen"}
    tables = [key for key in start if key in of_dicts or key.endswith("/embedding_weights")]
    assert len(tables) >= 3
    moved = max(float(np.max(np.abs(theirs[key] - start[key]))) for key in tables)
    largest = max(
        float(np.max(np.abs(value))) for key, value in theirs.items() if key not in COUNTS
    )
    for key in COUNTS & set(theirs):
        np.testing.assert_array_equal(ours[key], theirs[key], key)
    difference, where = jobs.largest_difference(theirs, ours)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are to be seen
            f"\n  {name:60s}{STEPS} steps, {len(theirs):2d} variables, largest difference "
            f"{difference:.1e}, tables moved by {moved:.2f}; at {where}"
        )
    # Per step each side rounds an element once more, by half a unit of the largest magnitude;
    # these models, of bounded activations and small rates, hand errors on without amplifying them.
    assert difference <= 2 * STEPS * UNIT_ROUNDOFF * max(1.0, largest), where
    # How far depends on the initial values, which are drawn; in any case far beyond the difference.
    assert moved > 0.01


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bridge_trains_as_stock_on_a_tpu(
    name: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After 200 steps from one checkpoint all variables and slots are where stock's are."""
    compare_clicks(tmp_path, capsys, monkeypatch, name, OPTIMIZERS[name])


@pytest.mark.full
@pytest.mark.parametrize("loop", [STEPS, 20])
def test_the_bridge_pipelines_as_stock_on_a_tpu(
    loop: int,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variables and slots are stock's when lookups overlap with updates.

    The overlap ends with each loop of the device: stock retrieves the tables then, and the next
    lookup sees every update.
    """
    compare_clicks(
        *(tmp_path, capsys, monkeypatch, f"pipelined, {loop} steps per loop"),
        *(OPTIMIZERS["Adagrad"], loop),
        pipeline_execution_with_tensor_core=True,
    )


def test_shards_are_taken_off_and_said_so(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program with several shards runs on one core with a warning; afterwards all is undone."""
    config = stock.ESTIMATOR.tpu.TPUConfig

    def of_shards(number: int | None) -> Any:
        of_side = {"namespace": stock.ESTIMATOR, "params": {}}
        return jobs.make(tmp_path, OPTIMIZERS["SGD"], tpu_options={"num_shards": number}, **of_side)

    with software_tpu.stock_on_software_tpu():
        assert config(num_shards=8).num_shards is None
        assert config(num_shards=8).num_shards is None
        assert config(3).iterations_per_loop == 3
        of_shards(8).train(clicks.input_fn, steps=50)

    assert caplog.text.count("TPUConfig(num_shards=8) is treated as num_shards=None") == 1
    assert config(num_shards=8).num_shards == 8
    with pytest.raises(RuntimeError, match="Cannot find any TPU cores"):
        of_shards(None).train(clicks.input_fn, steps=50)


def test_the_command_runs_a_program_on_stock(tmp_path: pathlib.Path) -> None:
    """`run --stock --software-tpu` runs a legacy script on stock's TPUEstimator, and says so."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    options = ("--stock", "--software-tpu")
    ran = fresh.module("estimator_bridge", "run", *options, script, tmp_path / "job", "tpu")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "beside __main__ 2"
    assert "with stock's estimator, on a software TPU with one core." in ran.stderr
    reader = tf.train.load_checkpoint(str(tmp_path / "job"))
    assert reader.has_tensor("dense_features/word_embedding/embedding_weights/Adagrad")
