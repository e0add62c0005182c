"""Estimator compared with stock's: equal values, signatures and error classes."""

from __future__ import annotations

import logging
import os
import pathlib
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import houses, jobs
from compat_tests.support.base_jobs import events, make, several_outputs, started
from estimator_bridge.runtime.estimator.base_estimator import Estimator

if HAS_STOCK:
    from compat_tests.support import stock


@pytest.mark.stock
def test_training_is_stocks_to_the_bit(tmp_path: pathlib.Path) -> None:
    """After 20 steps every variable, metric, prediction and file name is stock's; so are events."""
    config = {
        "save_summary_steps": 5,
        "save_checkpoints_steps": 10,
        "checkpoint_save_graph_def": True,
    }
    pair = [
        make(tmp_path, kind, name, config=config)
        for kind, name in ((stock.ESTIMATOR.Estimator, "stock"), (Estimator, "bridge"))
    ]
    for job in pair:
        job.train(houses.data, steps=20)
    theirs, ours = pair

    assert jobs.largest_difference(jobs.saved(theirs), jobs.saved(ours))[0] == 0.0
    assert theirs.evaluate(lambda: houses.data(3)) == ours.evaluate(lambda: houses.data(3))
    assert [float(s["price"][0]) for s in theirs.predict(lambda: houses.data(2))] == [
        float(s["price"][0]) for s in ours.predict(lambda: houses.data(2))
    ]
    # When summaries are due depends on a read of the global step, which on either side may come
    # before the step is counted or after; so the kinds of events are compared, not their steps.
    kinds = [{each[1] for each in events(job.model_dir)} for job in pair]
    assert kinds[0] == kinds[1]
    assert "loss" in kinds[1]
    assert events(theirs.eval_dir()) == events(ours.eval_dir())
    assert ("checkpoint_path", "tensor") in {each[1:] for each in events(ours.eval_dir())}
    names = [
        sorted(name for name in os.listdir(job.model_dir) if not name.startswith("events"))
        for job in pair
    ]
    assert names[0] == names[1]
    assert {"checkpoint", "graph.pbtxt", "model.ckpt-20.index", "eval"} <= set(names[1])


@pytest.mark.stock
@pytest.mark.parametrize("outputs", [pytest.param(None, marks=pytest.mark.full), several_outputs])
def test_exported_signatures_are_stocks(outputs: Any, tmp_path: pathlib.Path) -> None:
    """All signatures of all modes have stock's names, methods, tensor names, types and shapes."""
    exports = []
    for kind, name in ((stock.ESTIMATOR.Estimator, "stock"), (Estimator, "bridge")):
        job = make(tmp_path, kind, name, outputs=outputs)
        job.train(houses.data, steps=1)
        path = job.experimental_export_all_saved_models(
            str(tmp_path / f"{name} exported"),
            {
                "train": houses.supervised_receiver,
                "eval": houses.supervised_receiver,
                "infer": houses.serving_receiver,
            },
        )
        files = sorted(
            str(file.relative_to(os.fsdecode(path)))
            for file in pathlib.Path(os.fsdecode(path)).rglob("*")
            if file.name != "fingerprint.pb"
        )
        variables = tf.train.list_variables(os.path.join(os.fsdecode(path), "variables/variables"))
        exports.append(
            (*(jobs.signatures(path, tag) for tag in ("serve", "eval", "train")), files, variables)
        )
    assert exports[0] == exports[1]


@pytest.mark.stock
def test_stock_warm_starts_from_ours_and_the_other_way_round(tmp_path: pathlib.Path) -> None:
    """Variables start the same from either side's export or checkpoint."""
    kinds = {"stock": stock.ESTIMATOR.Estimator, "bridge": Estimator}
    sources = {}
    for name, kind in kinds.items():
        job = make(tmp_path, kind, f"{name} source").train(houses.data, steps=3)
        sources[name] = job.export_saved_model(
            str(tmp_path / f"{name} exported"), houses.serving_receiver
        )
    starts = [
        started(make(tmp_path, kind, f"{name} from {other}", warm_start_from=sources[other]))
        for name, kind in kinds.items()
        for other in kinds
    ]
    for values in starts[1:]:
        assert jobs.largest_difference(starts[0], values)[0] == 0.0


@pytest.mark.stock
def test_stocks_errors(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where stock's methods raise an error, ours raise one that the same `except` catches."""
    caplog.set_level(logging.ERROR)

    def outcomes(kind: Any, name: str) -> list[Any]:
        job = make(tmp_path, kind, name)

        def raised(function: Any) -> type[BaseException]:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - compared below
                function()
            return caught.type

        before = [
            raised(lambda: job.export_saved_model(str(tmp_path / "e"), houses.serving_receiver)),
            raised(lambda: next(job.predict(houses.data, predict_keys=["cost"]))),
        ]
        job.train(houses.data, steps=1)
        renamed = make(tmp_path, kind, name, prefix="renamed")
        return [
            *before,
            raised(
                lambda: renamed.export_saved_model(str(tmp_path / "e"), houses.serving_receiver)
            ),
            raised(lambda: job.export_saved_model(str(tmp_path / "e"), None)),
            raised(lambda: job.experimental_export_all_saved_models(str(tmp_path / "e"), {})),
        ]

    theirs = outcomes(stock.ESTIMATOR.Estimator, "stock")
    ours = outcomes(Estimator, "bridge")
    for position, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert issubclass(actual, expected), position
