"""Jobs side by side with stock's TPUEstimator; these tests run where stock is installed."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import legacy_specs, stock
from estimator_bridge import estimator


def make(namespace: Any, model_dir: pathlib.Path, dropout: float, **options: Any) -> Any:
    """Returns a TPUEstimator of either side with use_tpu=False."""
    return jobs.make(
        model_dir,
        tf.tpu.experimental.AdagradParameters(0.1),
        namespace=namespace,
        use_tpu=False,
        model_options={"dropout": dropout},
        params={},
        **options,
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model_dir of stock's after a step."""
    folder = tmp_path_factory.mktemp("stock") / "start"
    make(stock.ESTIMATOR, folder, 0.0).train(clicks.input_fn, max_steps=1)
    return folder


@pytest.mark.parametrize(
    "dropout, steps",
    [
        (0.3, 20),
        pytest.param(0.0, 200, marks=pytest.mark.full),
        pytest.param(0.3, 200, marks=pytest.mark.full),
    ],
)
def test_use_tpu_false_is_stock_to_the_bit(
    dropout: float,
    steps: int,
    start: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After steps from one checkpoint no variable, metric or prediction differs from stock's.

    This includes dropout: the same ops in the same order draw the same numbers.
    """
    saved, evaluated, predicted = {}, {}, {}
    for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator)):
        shutil.copytree(start, tmp_path / name)
        job = make(namespace, tmp_path / name, dropout)
        job.train(clicks.input_fn, steps=steps)
        saved[name] = jobs.saved(job)
        evaluated[name] = job.evaluate(clicks.short_input_fn)
        predicted[name] = [float(sample["p"][0]) for sample in job.predict(clicks.short_input_fn)]

    ours, where = jobs.largest_difference(saved["stock"], saved["bridge"])
    with capsys.disabled():
        print(  # noqa: T201 - the figures are to be seen, also where they are equal
            f"\n  {steps} steps, {len(saved['stock'])} variables, dropout {dropout}: largest "
            f"difference {ours}"
        )
    assert ours == 0.0, where
    assert evaluated["stock"] == evaluated["bridge"]
    assert predicted["stock"] == predicted["bridge"]


def test_a_job_passes_to_the_bridge_and_back(start: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Stock, bridge and stock in one model_dir end where stock alone ends, to the bit."""
    for name in ("turns", "alone"):
        shutil.copytree(start, tmp_path / name)
    for directory, namespace, last in (
        ("turns", estimator, 4),
        ("turns", stock.ESTIMATOR, 7),
        ("alone", stock.ESTIMATOR, 7),
    ):
        job = make(namespace, tmp_path / directory, 0.0)
        first = int(jobs.saved(job)["global_step"])
        job.train(lambda params, n=first: clicks.input_fn(params).skip(n), max_steps=last)

    alone, turns = (
        jobs.saved(make(estimator, tmp_path / name, 0.0)) for name in ("alone", "turns")
    )
    assert turns["global_step"] == 7
    assert jobs.largest_difference(alone, turns)[0] == 0.0


@pytest.mark.parametrize("form", ["mod", "dicts"])
def test_stock_refuses_of_our_spec_what_it_refuses_of_its_own(
    form: str, tmp_path: pathlib.Path
) -> None:
    """Without a TPU stock refuses "mod" and accepts dicts, in our spec as in its own."""
    outcomes = []
    for namespace, classes in ((stock.ESTIMATOR, stock.CLASSES), (estimator, legacy_specs.OURS)):
        columns = clicks.columns()
        settings: dict[str, Any] = {"feature_columns": columns, "partition_strategy": "mod"}
        if form == "dicts":
            settings = {
                "table_to_config_dict": {"t": classes.TableConfig(10, 2)},
                "feature_to_config_dict": {"f": classes.FeatureConfig("t")},
            }
        spec = namespace.tpu.experimental.EmbeddingConfigSpec(
            optimization_parameters=classes.AdagradParameters(0.1), **settings
        )
        outcomes.append(
            stock.raised(make, stock.ESTIMATOR, tmp_path, 0.0, columns=columns, spec=spec)
        )

    assert outcomes[0] == outcomes[1]
    assert outcomes[0] is (ValueError if form == "mod" else None)
