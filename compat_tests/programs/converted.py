"""The estimators of Keras models beside stock's: `model_to_estimator` of either.

    python -m compat_tests.programs.converted CASE WEIGHTED FOLDER

compares one of `JOBS`, weighted or not (1, 0), in a process that imports no other Keras.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.programs import convertible_models, jobs
from estimator_bridge import estimator
from estimator_bridge.canned.keras_models import model_to_estimator

export: Any = estimator.export

# What a job is made with, besides its model.
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("sequential", {}),
    "sequential by name": ("sequential", {"checkpoint_format": "saver"}),
    "v2": ("sequential", {"checkpoint_format": "checkpoint", "use_v2_estimator": True}),
    "functional": ("functional", {}),
    "renamed metrics": (
        "functional",
        {"metric_names_map": {"amount_mae": "off by", "kind_accuracy": "right"}},
    ),
    "signatures": ("functional", {"export_outputs": {"amount": export.RegressionOutput}}),
    "own class": (
        "own class",
        {"checkpoint_format": "saver", "custom_objects": {"Tower": convertible_models.Tower}},
    ),
    "new optimizer": ("new optimizer", {}),
}


def run(
    convert: Callable[..., Any], namespace: Any, case: str, folder: pathlib.Path, weighted: bool
) -> dict[str, Any]:
    """Returns what a model converted and trained for 30 steps saves, predicts and exports."""
    name, options = JOBS[case]
    model = convertible_models.make(name)
    config = namespace.RunConfig(
        tf_random_seed=3, save_summary_steps=10, checkpoint_save_graph_def=False
    )
    job = convert(model, model_dir=str(folder), config=config, **options)
    before = []
    if name != "own class":  # Keras cannot compile a copy of one that was copied to predict.
        before = list(job.predict(lambda: convertible_models.input_fn(name, epochs=1)))
    for _ in range(2):
        job.train(lambda: convertible_models.input_fn(name, weighted), steps=15)
    results = {
        "type": type(job).__name__,
        "saved": jobs.saved(job),
        "evaluated": job.evaluate(lambda: convertible_models.input_fn(name, weighted, 1)),
        "before": before,
        "predicted": list(job.predict(lambda: convertible_models.input_fn(name, epochs=1))),
    }
    if name != "own class":

        def receiver() -> Any:
            fed = {
                each.name: tf.compat.v1.placeholder(each.dtype, each.shape, each.name)
                for each in model.inputs
            }
            return namespace.export.ServingInputReceiver(fed, fed)

        results["signatures"] = jobs.signatures(
            job.export_saved_model(str(folder / "export"), receiver)
        )
    return results


def compare_with_stock(case: str, weighted: bool, tmp_path: pathlib.Path) -> None:
    """Asserts that the bridge's estimator of a model and stock's have equal results and names."""
    stock: Any = importlib.import_module("compat_tests.support.stock")
    ours = run(model_to_estimator, estimator, case, tmp_path / "ours", weighted)
    theirs = run(stock.model_to_estimator, stock.ESTIMATOR, case, tmp_path / "stock", weighted)

    values = [
        # The graph of objects is bytes.
        {key: value for key, value in side["saved"].items() if isinstance(value, np.ndarray)}
        for side in (ours, theirs)
    ]
    difference, name = jobs.largest_difference(*values)
    assert difference == 0.0, name
    assert set(ours["saved"]) == set(theirs["saved"])
    for what in ("before", "predicted"):
        tf.nest.map_structure(np.testing.assert_array_equal, ours[what], theirs[what])
    for what in ("type", "evaluated", "signatures"):
        assert ours.get(what) == theirs.get(what), what


if __name__ == "__main__":
    compare_with_stock(sys.argv[1], sys.argv[2] == "1", pathlib.Path(sys.argv[3]))
