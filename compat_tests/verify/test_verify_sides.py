"""`verify` compares drivers, programs and exported models, besides stock and the bridge."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
import tensorflow as tf

import estimator_bridge
from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import clicks, clicks_served, jobs
from compat_tests.support import fresh
from compat_tests.verify.test_verify_command import TRAIN, verify
from estimator_bridge import errors, estimator, migrate
from estimator_bridge.convert import convert
from estimator_bridge.legacy import parameters
from estimator_bridge.migrate import adopt
from estimator_bridge.run.script import imports_bridge
from estimator_bridge.verification.findings import Status
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import Side


def compared(tmp_path: pathlib.Path, **changes: Any) -> Result:
    """Compares the click program on two sides, with evaluation, prediction and export."""
    columns = clicks.columns()
    tpu_options = changes.pop("tpu_options", {})
    optimizer = changes.pop("optimizer", parameters.AdagradParameters(0.1))
    options: dict[str, Any] = {
        "a": "bridge-native",
        "b": "bridge-ops",
        "steps": 3,
        "eval_input_fn": clicks.short_input_fn,
        "predict_input_fn": clicks.short_input_fn,
        "serving_input_receiver_fn": clicks_served.receiver,
        "config": clicks.run_config(estimator, str(tmp_path / "unused"), **tpu_options),
        **changes,
    }
    return estimator_bridge.verify(
        clicks.make_model_fn(estimator, columns, cross_shard=True),
        clicks.input_fn,
        estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns, optimization_parameters=optimizer
        ),
        batch_size=jobs.BATCH,
        **options,
    )


@pytest.mark.full
@pytest.mark.parametrize("cores", [1, 2])
def test_the_host_driver_is_compared_with_the_tpu_driver(
    cores: int, tmp_path: pathlib.Path
) -> None:
    """The software TPU computes the same numbers as the host, with an equal configuration.

    They are equal to the last bit, because the software TPU uses the update rules of the native
    ops.
    """
    predicts = {} if cores == 1 else {"predict_input_fn": None}
    result = compared(
        tmp_path, b="bridge-software-tpu", tpu_options={"num_shards": cores}, **predicts
    )

    assert result.equal, str(result)
    assert result.settings[1]["where"] == "tpu driver, on the software TPU"
    assert result.config == []
    assert max(point.difference for one in result.series for point in one.points) == 0
    roles = {series.role for series in result.series}
    assert roles == {"activation", "loss", "gradient", "table", "slot accumulators", "dense"}
    kinds = {"evaluation-0", "export-0", "served-0", *(["prediction-0"] if cores == 1 else [])}
    assert {outcome.kind for outcome in result.outcomes} == kinds
    assert {"accuracy", "items"} <= {outcome.name for outcome in result.outcomes}


SPARSE_CORES = [
    parameters.AdagradParameters(0.1),
    parameters.StochasticGradientDescentParameters(0.1),
    parameters.AdamParameters(0.1),
    parameters.FtrlParameters(0.1),
    parameters.AdagradParameters(0.1, clip_weight_max=0.01),
]


@pytest.mark.full
@pytest.mark.parametrize("optimizer", SPARSE_CORES, ids=lambda each: type(each).__name__)
def test_the_arithmetic_of_sparse_cores_differs_by_rounding(
    optimizer: Any, tmp_path: pathlib.Path
) -> None:
    """With settings that SparseCores support, they equal the first generation within the bounds."""
    result = compared(tmp_path, a="bridge-ops", b="bridge-sparsecore", optimizer=optimizer)

    assert result.equal, str(result)
    assert result.settings[1]["where"].endswith("arithmetic of SparseCores")
    assert not any(why for _, _, _, why in result.settings[1]["settings"])


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer, setting, why",
    [
        (
            parameters.AdamParameters(0.1, lazy_adam=False),
            "AdamParameters.lazy_adam`=False",
            "only rows of the batch are updated",
        ),
        (
            parameters.AdagradParameters(0.1, clip_gradient_max=1e-5),
            "AdagradParameters.clip_gradient_max`=1e-05",
            "the gradient sum of a row exists only inside the device's op",
        ),
        (
            parameters.AdagradParameters(0.1, use_gradient_accumulation=False),
            "AdagradParameters.use_gradient_accumulation`=False",
            "always one update of a row per global batch",
        ),
    ],
    ids=["lazy_adam", "gradient_limits", "accumulation"],
)
def test_what_sparse_cores_ignore_is_a_cause_by_name(
    optimizer: Any, setting: str, why: str, tmp_path: pathlib.Path
) -> None:
    """The sides differ, and the report names the setting that one side drops."""
    result = compared(
        tmp_path,
        a="bridge-ops",
        b="bridge-sparsecore",
        optimizer=optimizer,
        tpu_options={"num_shards": 2},
        predict_input_fn=None,
    )

    assert result.status == Status.DIFFERENT, str(result)
    (cause,) = (each for each in result.causes if each.name == "SparseCores")
    assert setting in cause.text
    assert f"ignored on B, because SparseCores do not have it: {why}" in str(result)


@pytest.mark.full
@pytest.mark.skipif(tf.__version__ < "2.21", reason="TensorFlow 2.15 has no TPUEmbeddingV2")
def test_stock_on_software_sparse_cores_is_a_side(tmp_path: pathlib.Path) -> None:
    """The migrated program on stock's class equals the legacy program with the host's arithmetic.

    They are equal within verify's bounds of a step, because sums are in another order.
    """
    after, report = tmp_path / "train_sparsecore.py", tmp_path / "report.json"
    program = TRAIN.replace("clipping_limit=0.5,", "")
    after.write_text(migrate.migrate(program, "train.py", target="sparsecore").source)
    options = ("--a", "bridge-sparsecore", "--b", "v2-soft", "--steps", "2")
    ran = verify(tmp_path, program, *options, "--against", str(after), "--json", str(report))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    side = json.loads(report.read_text())["sides"]["b"]
    assert side["where"] == "stock's TPUEmbeddingV2, on software SparseCores"
    assert side["arithmetic"] == "sparsecore"


@pytest.mark.full
def test_stock_on_software_sparse_cores_runs_no_estimator(tmp_path: pathlib.Path) -> None:
    """The side v2-soft refuses an estimator, and names the side or the TensorFlow to use."""
    ran = verify(tmp_path, TRAIN, "--a", "v2-soft", "--steps", "1")

    assert ran.returncode == 2, ran.stdout + ran.stderr
    has_class = tf.__version__ >= "2.21"
    words = "Use side 'bridge-sparsecore'" if has_class else "Use TensorFlow 2.21"
    assert words in ran.stderr


@pytest.mark.full
def test_exported_models_are_compared_by_their_answers(tmp_path: pathlib.Path) -> None:
    """Exports with equal variables but unequal answers are unequal."""
    columns = clicks.columns()
    right = clicks.make_model_fn(estimator, columns, cross_shard=True)

    def wrong(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = right(features, labels, mode, params)
        if mode == "infer":
            predictions = {"p": spec.predictions["p"] * 1.01}
            return estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)
        return spec

    page = tmp_path / "page.html"
    result = compared(tmp_path, model_fn_b=wrong, predict_input_fn=None, html=page)

    assert result.first is None, str(result)
    differ = {(one.kind, one.name) for one in result.outcomes if not one.equal}
    assert differ == {("served-0", "serving_default: p")}
    assert not result.notes
    assert "After its training the program does not predict." in page.read_text()


@pytest.mark.full
def test_exports_that_one_side_cuts_are_named(tmp_path: pathlib.Path) -> None:
    """With other quirks the served models only differ for long sequences."""
    documented = Side("bridge", use_tpu=True, native=False, quirks="documented")
    result = compared(tmp_path, a="bridge-ops", b=documented, predict_input_fn=None)

    differ = {(one.kind, one.name) for one in result.outcomes if not one.equal}
    assert differ == {("served-0", "serving_default: p")}
    (cause,) = [cause for cause in result.causes if cause.name != "quirks"]
    assert cause.name == "sequence length"
    assert cause.text == (
        "The export of side B cuts a sequence to its max_sequence_length, and the other side does "
        f"not: clicked to {clicks.LENGTH}. Cut longer sequences in the serving_input_receiver_fn."
    )


TF2_PROGRAM = """
import tensorflow as tf
import tf2_engine

spec = tf2_engine.EngineSpec(
    (tf2_engine.TableSpec("words", 10, 2, "sum", tf2_engine.SGD(learning_rate=0.1)),),
    (tf2_engine.FeatureSpec("word", "words"),))
tf2_engine.TPUEmbedding(spec)
"""


@pytest.mark.full
def test_a_program_is_compared_with_what_it_is_migrated_to(tmp_path: pathlib.Path) -> None:
    """The bridge form equals its program until it honors a setting that stock ignores."""
    after, report = tmp_path / "train_bridge.py", str(tmp_path / "report.json")
    options = ["--a", "stock" if HAS_STOCK else "bridge", "--steps", "2"]
    options += ["--against", str(after), "--json", report]
    limited = TRAIN.replace("clipping_limit=0.5", "clipping_limit=0.001")
    kept = adopt(limited).source
    honouring, count = re.subn(r"quirks=(['\"])stock\1", 'quirks="documented"', kept)
    assert count == 1, kept
    after.write_text(honouring)
    ran = verify(tmp_path, limited, *options)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "quirks: A runs with quirks=stock, and B with quirks=documented" in ran.stdout

    after.write_text(kept)
    ran = verify(tmp_path, limited, *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(pathlib.Path(report).read_text())
    assert result["sides"]["a"]["program"].startswith("train.py, SHA-256 ")
    assert result["sides"]["b"]["program"].startswith("train_bridge.py, SHA-256 ")
    assert "step 2 of 2" not in ran.stderr  # There is no terminal that shows progress.


@pytest.mark.full
def test_a_program_is_compared_with_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """An object checkpoint equals the last step of a program with the same start."""
    job, objects = tmp_path / "job", str(tmp_path / "tf2" / "ckpt-1")
    options = ["--a", "bridge", "--steps", "3", "--begin-from", str(job / "model.ckpt-0")]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    fresh.python("-m", "estimator_bridge", "run", tmp_path / "train.py", job, "tpu", check=True)
    words = {"tbl_word": "dense_features/word_embedding/embedding_weights"}
    convert(str(job / "model.ckpt-3"), objects, to="object", tables=words, optimizer="Adagrad")
    ran = verify(tmp_path, TRAIN, *options, "--against-checkpoint", objects)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"B: a checkpoint, {objects}" in ran.stdout


@pytest.mark.full
def test_a_program_of_tf2_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    after = tmp_path / "train_tf2.py"
    after.write_text(TF2_PROGRAM)
    ran = verify(tmp_path, TRAIN, "--a", "bridge", "--steps", "1", "--against", str(after))

    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "builds a tf2_engine.TPUEmbedding itself" in ran.stderr


def test_imports_show_that_a_program_is_migrated(tmp_path: pathlib.Path) -> None:
    """A program that imports the bridge runs as it is, and others get the bridge's names."""
    script = tmp_path / "train.py"
    for source, is_migrated in (
        (TRAIN, False),
        (adopt(TRAIN).source, True),
        ("import estimator_bridge_of_others", False),
        ("not python", False),
    ):
        script.write_text(source)
        assert imports_bridge(str(script)) == is_migrated


@pytest.mark.stock
def test_a_spec_of_the_bridge_is_refused_for_stock(tmp_path: pathlib.Path) -> None:
    """A bridge spec on the stock side is refused, with how to write a model_fn for both."""
    with pytest.raises(errors.InvalidInput, match=r"tf\.compat\.v1\.estimator\.tpu\.TPUEst"):
        compared(tmp_path, a="stock-cpu", b="bridge-cpu", config=None, steps=1)
