"""Conversion of checkpoints of stock's TPU and CPU programs, and back to checkpoints for stock."""

from __future__ import annotations

import inspect
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import legacy_checkpoints, stock
from compat_tests.support.conversions import (
    CPU_SLOTS,
    END,
    OPTIMIZERS,
    spec_of,
    tables_of,
)
from estimator_bridge import convert

pytestmark = pytest.mark.stock

STOCK = [
    pytest.param(
        optimizer, strategy, hosts,
        marks=() if (strategy, hosts) == ("mod", 5) or optimizer == "Adagrad" else pytest.mark.full,
    )
    for optimizer in OPTIMIZERS
    for strategy in ("div", "mod")
    for hosts in (1, 2, 5)
]  # fmt: skip


def graph_of_stock(spec: Any, hosts: int) -> Any:
    """Returns the variables of stock's TPU program, and a Saver of them, without its devices."""
    with tf.Graph().as_default():
        embedding = stock.embedding(
            spec, training=True, batch_size=2 * hosts, num_hosts=hosts, num_cores=hosts
        )
        embedding.create_variables_and_ops()
        names = [variable.op.name for variable in tf.global_variables()]
        saver_def = tf.train.Saver(tf.global_variables()).as_saver_def()
        exported = tf.train.export_meta_graph(clear_devices=True, saver_def=saver_def)
    return exported, names


@pytest.mark.parametrize("optimizer, strategy, hosts", STOCK)
def test_stocks_tpu_checkpoints(
    optimizer: str, strategy: str, hosts: int, tmp_path: pathlib.Path
) -> None:
    """Variables of a TPU job, made by stock and saved by a Saver, convert and come back."""
    values, keys = tables_of(optimizer, "dict")
    spec = spec_of(optimizer, "dict", strategy, stock.CLASSES, stocks(optimizer))
    exported, names = graph_of_stock(spec, hosts)
    old, new = str(tmp_path / "old" / "model.ckpt-3"), str(tmp_path / "new")

    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(exported)
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        assert set(variables) == set(names)
        assert {name.partition("/part_")[0] for name in names} == set(values)
        for name, value in values.items():
            count = min(len(value), hosts)
            parts = np.split(
                legacy_checkpoints.permuted(value, hosts, strategy),
                np.cumsum([len(part) for part in np.array_split(np.arange(len(value)), count)])[
                    :-1
                ],
            )
            for part, rows in enumerate(parts):
                variables[f"{name}/part_{part}"].load(rows, session)
        saver.save(session, old)

        convert.convert(old, str(tmp_path / "objects"), spec=spec, allow=["global_step"])
        convert.convert(str(tmp_path / "objects"), new, spec=spec, to_hosts=hosts, global_step=3)

        saver.restore(session, f"{new}/model.ckpt-3")
        for name, value in values.items():
            parts = [
                session.run(variables[f"{name}/part_{part}"])
                for part in range(min(len(value), hosts))
            ]
            wanted = legacy_checkpoints.permuted(value, hosts, strategy)
            np.testing.assert_array_equal(np.concatenate(parts), wanted, err_msg=name)
    middle = legacy_checkpoints.read(str(tmp_path / "objects"))
    for name, key in keys.items():
        np.testing.assert_array_equal(values[name], middle[key], err_msg=name)


def stocks(kind: str) -> Any:
    """Returns stock's optimizer with the settings of the tests."""
    cls = getattr(stock.CLASSES, f"{kind}Parameters")
    taken = inspect.signature(cls).parameters
    settings = vars(OPTIMIZERS[kind]).items()
    return cls(**{name: value for name, value in settings if name in taken})


CPU_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "StochasticGradientDescent": lambda rate: tf.train.GradientDescentOptimizer(rate),
    "Adagrad": lambda rate: tf.train.AdagradOptimizer(rate),
    "Adam": lambda rate: tf.train.AdamOptimizer(rate),
    "Ftrl": lambda rate: tf.train.FtrlOptimizer(rate),
    "Momentum": lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
    "RMSProp": lambda rate: tf.train.RMSPropOptimizer(rate, 0.9, 0.5),
    "ProximalAdagrad": lambda rate: tf.train.ProximalAdagradOptimizer(rate),
}
"""TF1's optimizers, for both the tables and the model."""


def cpu_job(model_dir: pathlib.Path, optimizer: str, **model_options: Any) -> tuple[Any, Any]:
    """Returns stock's TPUEstimator with use_tpu=False, and its spec.

    Its optimizer trains the tables too.

    Args:
        model_options: of `clicks.make_model_fn`.
    """
    columns = clicks.columns()
    spec = stock.CLASSES.EmbeddingConfigSpec(
        feature_columns=columns, optimization_parameters=stocks(optimizer)
    )
    job = jobs.make(
        model_dir,
        namespace=stock.ESTIMATOR,
        use_tpu=False,
        columns=columns,
        spec=spec,
        model_options={"optimizer": CPU_OPTIMIZERS[optimizer], **model_options},
        params={},
    )
    return job, spec


@pytest.mark.parametrize(
    "optimizer",
    [
        # Two slots, with powers of the betas beside them.
        pytest.param(name, marks=() if name == "Adam" else pytest.mark.full)
        for name in CPU_OPTIMIZERS
    ],
)
def test_stocks_cpu_checkpoints(optimizer: str, tmp_path: pathlib.Path) -> None:
    """What stock's CPU job saved converts and comes back to the byte; stock trains on from it."""
    job, spec = cpu_job(tmp_path / "old", optimizer)
    job.train(clicks.input_fn, max_steps=3)
    before = jobs.saved(job)

    convert.convert(str(tmp_path / "old"), str(tmp_path / "objects"), spec=spec)
    convert.convert(
        str(tmp_path / "objects"),
        str(tmp_path / "new"),
        spec=spec,
        slots="cpu",
        like=str(tmp_path / "old"),
    )

    middle = legacy_checkpoints.read(str(tmp_path / "objects"))
    for slot, suffix in CPU_SLOTS[optimizer].items():
        for table, variable in (
            ("items", "items"),
            ("place", "dense_features/place_embedding/embedding_weights"),
        ):
            np.testing.assert_array_equal(
                before[f"{variable}/{suffix}"], middle[f"embedding/tbl_{table}.S{slot}{END}"]
            )
    assert jobs.largest_difference(before, legacy_checkpoints.read(str(tmp_path / "new")))[0] == 0.0
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    ends = []
    for directory in ("copy", "new"):
        job, _ = cpu_job(tmp_path / directory, optimizer)
        job.train(clicks.input_fn, steps=2)
        ends.append(jobs.saved(job))
    assert ends[0]["global_step"] == 5
    assert jobs.largest_difference(*ends)[0] == 0.0
