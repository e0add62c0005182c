"""Canned estimators have the same names and values as stock's, in both versions of the API."""

from __future__ import annotations

import inspect
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import census, jobs
from compat_tests.support.base_jobs import events
from compat_tests.support.graph_ops import MODES, Ops, assert_same_ops
from estimator_bridge import estimator
from estimator_bridge.estimator import v2

if HAS_STOCK:
    from compat_tests.support import stock

pytestmark = pytest.mark.stock

OURS = {1: estimator, 2: v2}

QUICK = (2, "DNNLinearCombined", "Classifier", "plain")
PROGRAMS = [
    pytest.param(
        version,
        *rest,
        id="-".join((f"v{version}", *rest)),
        marks=() if (version, *rest) == QUICK else pytest.mark.full,
    )
    for version, *parts in itertools.product((1, 2), census.FAMILIES, census.TASKS, census.SETTINGS)
    for rest in [tuple(parts)]
]


@pytest.mark.parametrize("task", census.TASKS)
@pytest.mark.parametrize("family", census.FAMILIES)
@pytest.mark.parametrize("version", [1, 2])
def test_constructors_take_stocks_arguments(version: int, family: str, task: str) -> None:
    """Names, order and defaults of the arguments are stock's; a wrong call names the class."""
    ours, theirs = (
        getattr(namespaces[version], family + task) for namespaces in (OURS, stock.NAMESPACES)
    )
    described = [
        [
            (each.name, each.kind, each.default)
            for each in inspect.signature(kind).parameters.values()
        ]
        for kind in (ours, theirs)
    ]
    assert described[0] == described[1]
    with pytest.raises(TypeError, match=f"^{family}{task}.*argument"):
        ours(unknown_argument=1)


def run(
    namespace: Any,
    version: int,
    program: tuple[str, str, str],
    folder: pathlib.Path,
    hook: Ops,
) -> Any:
    """Trains for 200 steps, rich programs from a warm start; returns the estimator."""
    family, task, setting = program
    start = None
    if setting == "rich" and family != "Baseline":
        first = census.make(namespace, version, *program, folder / "first")
        first.train(lambda: census.input_fn(task, setting), steps=5)
        start = namespace.WarmStartSettings(
            first.model_dir, vars_to_warm_start=".*(hobbies|hiddenlayer_0|bias_weights).*"
        )
    job = census.make(namespace, version, *program, folder / "job", start)
    return job.train(lambda: census.input_fn(task, setting), steps=200, hooks=[hook])


def exported(job: Any, namespace: Any, folder: pathlib.Path) -> dict[str, Any]:
    receiver = namespace.export.build_parsing_serving_input_receiver_fn(census.parsing_spec())
    return jobs.signatures(job.export_saved_model(str(folder), receiver))


@pytest.mark.parametrize("version, family, task, setting", PROGRAMS)
def test_values_are_those_of_stock(
    version: int, family: str, task: str, setting: str, tmp_path: pathlib.Path
) -> None:
    """Variables, metrics and predictions are stock's by 0.0, and all names are, of ops too."""
    namespaces = {"stock": stock.NAMESPACES[version], "ours": OURS[version]}
    program = (family, task, setting)
    graphs = {side: {mode: Ops() for mode in MODES} for side in namespaces}
    estimators = {
        side: run(namespace, version, program, tmp_path / side, graphs[side]["train"])
        for side, namespace in namespaces.items()
    }

    saved = {side: jobs.saved(job) for side, job in estimators.items()}
    difference, name = jobs.largest_difference(saved["ours"], saved["stock"])
    assert difference == 0.0, name
    evaluated = {
        side: job.evaluate(
            lambda: census.input_fn(task, setting, 1), hooks=[graphs[side]["evaluate"]]
        )
        for side, job in estimators.items()
    }
    assert evaluated["ours"] == evaluated["stock"]
    predicted = {
        side: list(
            job.predict(lambda: census.input_fn(task, setting, 1), hooks=[graphs[side]["predict"]])
        )
        for side, job in estimators.items()
    }
    for ours, theirs in zip(predicted["ours"], predicted["stock"], strict=True):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key], value, err_msg=str(key))
    # When summaries are due depends on a read of the global step, which on either side may come
    # before the step is counted or after; so their tags are compared, not their values.
    tags = {side: {event[1] for event in events(job.model_dir)} for side, job in estimators.items()}
    assert tags["ours"] == tags["stock"]
    outputs = {
        side: exported(job, namespaces[side], tmp_path / side / "export")
        for side, job in estimators.items()
    }
    assert outputs["ours"] == outputs["stock"]
    for mode in MODES:
        assert_same_ops(mode, graphs["ours"][mode], graphs["stock"][mode])
