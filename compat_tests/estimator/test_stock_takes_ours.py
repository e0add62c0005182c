"""Stock's TPUEstimator accepts our specs, configs and optimizers. Runs where stock is installed."""

from __future__ import annotations

import copy
import pathlib
import pickle
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import jobs, tiny
from compat_tests.support import legacy_specs, stock
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.run import software_tpu

OPTIMIZERS: dict[str, tuple[Any, ...]] = {
    "AdagradParameters": (0.1,),
    "AdagradMomentumParameters": (0.1, 0.9),
    "AdamParameters": (0.1,),
    "FrequencyEstimatorParameters": (2.0, 1.0, 5.0, 0.5),
    "FtrlParameters": (0.1,),
    "MomentumParameters": (0.1, 0.9),
    "ProximalAdagradParameters": (0.1,),
    "ProximalYogiParameters": (0.1,),
    "RMSPropParameters": (0.1, 0.9, 0.5, 1e-3),
    "StochasticGradientDescentParameters": (0.1,),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_stock_has_a_handler_for_each_of_our_optimizers(kind: str) -> None:
    """Stock accepts our optimizers, also copied and pickled, and names their slots as its own."""
    ours = getattr(parameters, kind)(*OPTIMIZERS[kind])
    theirs = getattr(stock.CLASSES, kind)(*OPTIMIZERS[kind])

    for each in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(each) is getattr(parameters, kind)
        assert isinstance(each, type(theirs))
        assert vars(each) == vars(theirs)
        assert stock.slot_names(each, "table") == stock.slot_names(theirs, "table")
    assert repr(ours).startswith(f"{kind}(")


def spec_of(namespace: Any, classes: Any, form: str) -> tuple[Any, Any, Any]:
    """Returns columns, body and a spec, of one side's classes."""
    columns = [tiny.column(), tiny.column(tiny.identity("b"), combiner="mean")]
    settings: dict[str, Any] = {"feature_columns": columns}
    body = None
    if form == "dicts":
        settings = {
            "table_to_config_dict": {
                "t": classes.TableConfig(tiny.ROWS, 2, tiny.start, "sum", learning_rate=0.2),
                "u": classes.TableConfig(
                    tiny.ROWS,
                    2,
                    tiny.start,
                    "mean",
                    optimization_parameters=classes.AdamParameters(0.01),
                ),
            },
            "feature_to_config_dict": {
                "a": classes.FeatureConfig("t"),
                "b": classes.FeatureConfig("u"),
            },
        }
        body = _of_activations
    spec = namespace.tpu.experimental.EmbeddingConfigSpec(
        optimization_parameters=classes.AdagradParameters(0.1), **settings
    )
    return columns, body, spec


def _of_activations(features: Any) -> Any:
    net = tf.concat([features["a"], features["b"], features["x"]], 1)
    return tf.matmul(net, tf.get_variable("weight", [5, 1], initializer=tf.ones_initializer()))


@pytest.mark.parametrize("form", ["columns", "dicts"])
def test_stock_trains_with_our_spec_on_a_tpu(form: str, tmp_path: pathlib.Path) -> None:
    came_to = []
    inputs = tiny.inputs("a", "b")
    with software_tpu.stock_on_software_tpu():
        for number, (namespace, classes) in enumerate(
            ((stock.ESTIMATOR, stock.CLASSES), (estimator, legacy_specs.OURS))
        ):
            columns, body, spec = spec_of(namespace, classes, form)
            job = tiny.make(
                stock.ESTIMATOR, tmp_path / str(number), columns, body, use_tpu=True, spec=spec
            )
            job.train(inputs, steps=4)
            came_to.append((jobs.saved(job), job.evaluate(inputs, steps=2)))

    assert jobs.largest_difference(came_to[0][0], came_to[1][0])[0] == 0.0
    assert came_to[0][1] == came_to[1][1]
    slots = {name for name in came_to[1][0] if "Adagrad" in name or "Adam" in name}
    assert len(slots) == (2 if form == "columns" else 3)
