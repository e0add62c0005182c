"""Side by side with stock's TPUEstimator; collected where stock is installed."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests import stock
from compat_tests.programs import clicks, jobs
from estimator_bridge import estimator


def make(namespace: Any, model_dir: pathlib.Path, dropout: float) -> Any:
    """Returns a TPUEstimator of either side with use_tpu=False.

    Stock has no CPU kernel for CrossReplicaSum, so the model does without CrossShardOptimizer.
    """
    columns = clicks.columns()
    return namespace.tpu.TPUEstimator(
        model_fn=clicks.make_model_fn(namespace, columns, cross_shard=False, dropout=dropout),
        use_tpu=False,
        config=clicks.run_config(namespace, str(model_dir)),
        train_batch_size=jobs.BATCH,
        eval_batch_size=jobs.BATCH,
        predict_batch_size=jobs.BATCH,
        params={},
        embedding_config_spec=namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
        ),
    )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_use_tpu_false_is_stock_to_the_bit(
    dropout: float, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After 200 steps from one checkpoint no variable, metric or prediction differs from stock's.

    With dropout too: the same ops in the same order draw the same numbers.
    """
    make(stock.ESTIMATOR, tmp_path / "start", dropout).train(clicks.input_fn, max_steps=1)
    saved, evaluated, predicted = {}, {}, {}
    for name, namespace in (
        ("stock", stock.ESTIMATOR),
        ("stock again", stock.ESTIMATOR),
        ("bridge", estimator),
    ):
        shutil.copytree(tmp_path / "start", tmp_path / name)
        job = make(namespace, tmp_path / name, dropout)
        job.train(clicks.input_fn, steps=200)
        saved[name] = jobs.saved(job)
        evaluated[name] = job.evaluate(clicks.short_input_fn)
        predicted[name] = [float(sample["p"][0]) for sample in job.predict(clicks.short_input_fn)]

    again = jobs.largest_difference(saved["stock"], saved["stock again"])[0]
    ours, where = jobs.largest_difference(saved["stock"], saved["bridge"])
    with capsys.disabled():
        print(  # noqa: T201 - the figures are to be seen, also where they are equal
            f"\n  200 steps, {len(saved['stock'])} variables, dropout {dropout}: largest "
            f"difference stock to stock {again}, stock to bridge {ours}"
        )
    assert ours == 0.0, where
    assert evaluated["stock"] == evaluated["bridge"]
    assert predicted["stock"] == predicted["bridge"]


def test_checkpoints_pass_between_stock_and_bridge(tmp_path: pathlib.Path) -> None:
    """Stock goes on from a checkpoint of the bridge, and ends where the bridge alone ends."""
    make(stock.ESTIMATOR, tmp_path / "a", 0.0).train(clicks.input_fn, max_steps=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for directory, second in (("a", estimator), ("b", stock.ESTIMATOR)):
        make(estimator, tmp_path / directory, 0.0).train(clicks.input_fn, steps=5)
        make(second, tmp_path / directory, 0.0).train(clicks.input_fn, steps=5)

    a, b = (make(estimator, tmp_path / name, 0.0) for name in ("a", "b"))
    assert jobs.saved(b)["global_step"] == 11
    assert jobs.largest_difference(jobs.saved(a), jobs.saved(b))[0] == 0.0
