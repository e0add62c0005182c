"""The example programs, unedited, train on a cluster with the numbers of one process."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from compat_tests.conftest import Array
from compat_tests.programs import jobs
from compat_tests.project.test_docs import write_data
from compat_tests.support.cluster_tasks import PATIENCE, SERVE, ClusterTasks, Command
from compat_tests.support.nursery import Nursery
from compat_tests.support.paths import EXAMPLES

RUN = "import sys; from estimator_bridge.cli.main import main; sys.exit(main(sys.argv[1:]))"
"""A program that does as the command `estimator-bridge`."""

CORES = 2


class Example(NamedTuple):
    """How an example is run.

    Attributes:
        arguments: of every run, but for the folders.
        last: the last step of each of its models, by the folder in its model_dir.
        chief: the job of the chief; "master" evaluates, too, where a program needs the results of
            `train_and_evaluate`.
        reads_data: whether it has a --data_dir.
        exports: whether it writes requests, and what `predict` answers to them.
        tables: parts of the names of its tables.
    """

    arguments: tuple[str, ...]
    last: Mapping[str, int]
    chief: str = "chief"
    reads_data: bool = False
    exports: bool = True
    tables: tuple[str, ...] = ()


OF_TPUS = {
    "movielens": Example(
        (
            *("--train_batch_size=32", "--eval_batch_size=60", "--predict_batch_size=8"),
            # Which units are dropped depends on the numbers of ops in a graph.
            *("--train_steps=20", "--iterations_per_loop=5", "--dropout=0", "--resume"),
        ),
        {"": 20},
        reads_data=True,
        exports=False,
        tables=("items", "user_id", "genres", "age", "occupation", "gender"),
    ),
    "two_tower": Example(
        ("--train_steps=20", "--eval_steps=2", "--batch_size=32", "--iterations_per_loop=5"),
        {"": 20},
        tables=("items", "user", "words", "category"),
    ),
    "wide_and_deep": Example(
        ("--train_steps=20", "--save_checkpoints_steps=10", "--eval_steps=2", "--batch_size=32"),
        {"": 20},
        chief="master",
        reads_data=True,
        tables=("city", "interests"),
    ),
    "sequence": Example(
        ("--train_steps=20", "--eval_steps=2", "--batch_size=16", "--iterations_per_loop=5"),
        {"": 20},
        tables=("baskets", "actions"),
    ),
    "dict_config": Example(
        ("--train_steps=20", "--eval_steps=2", "--batch_size=16", "--iterations_per_loop=5"),
        {"": 20},
        tables=("tasters", "grapes", "words"),
    ),
    "warm_start": Example(
        ("--pretrain_steps=20", "--train_steps=20", "--batch_size=16"),
        {"together": 20, "orders": 20},
        tables=("articles",),
    ),
}

CENSUS = Example(
    ("--train_steps=20", "--save_checkpoints_steps=10", "--dropout=0"),
    {"": 20},
    chief="master",
    reads_data=True,
    exports=False,
    tables=("occupation_embedding",),
)
"""A canned estimator, which trains asynchronously: with its chief alone there is no race."""


ENVIRONMENT = {"ESTIMATOR_BRIDGE_NATIVE": "0"}
"""One process is compared on TensorFlow's ops: powers differ, in the last place, on native ones."""


class Runs:
    """The runs of an example: alone, and on a cluster that goes on from the same first values."""

    def __init__(self, nursery: Nursery, folder: pathlib.Path, name: str, example: Example) -> None:
        self._nursery, self._folder, self._name, self._example = nursery, folder, name, example
        (folder / "run.py").write_text(RUN)
        (folder / "serve.py").write_text(SERVE)
        if name == "movielens":
            write_data(folder / "data")

    def alone(self, *arguments: str) -> pathlib.Path:
        """Returns the model_dir of a run in one process."""
        command = self._command("alone", *arguments)
        task = self._nursery.start(*command, self._folder / "alone.log")
        assert task.wait(PATIENCE) == 0, task.tail()
        return self._folder / "alone"

    def on_cluster(self, alone: pathlib.Path, *arguments: str, **counts: int) -> pathlib.Path:
        """Returns the model_dir of a run on a cluster, which begins as the run alone did."""
        chief = self._example.chief
        model_dir = self._folder / "cluster"
        for model in self._example.last:
            # Initial values depend on the parts of tables, and on ops.
            jobs.continue_from(str(alone / model / "model.ckpt-0"), str(model_dir / model))

        def command(job: str, number: int) -> Command:
            if job == chief:
                return self._command("cluster", *arguments)
            return self._folder / "serve.py", []

        tasks = ClusterTasks(self._nursery, self._folder, command)
        tasks.start_all(**{chief: 1}, **counts)
        tasks.wait(PATIENCE)
        return model_dir

    def _command(self, model_dir: str, *arguments: str) -> Command:
        program = EXAMPLES / self._name / "train.py"
        folders = [f"--model_dir={self._folder / model_dir}"]
        if self._example.reads_data:
            folders.append(f"--data_dir={self._folder / 'data'}")
        every = ["run", program, *self._example.arguments, *arguments, *folders]
        return self._folder / "run.py", every


def sample_of(model_dir: pathlib.Path) -> dict[str, Array]:
    """Returns the requests that an example leaves in its export, and the predictions for them."""
    (exported,) = (model_dir / "export").iterdir()
    return dict(np.load(exported / "sample.npz"))


def assert_same(alone: pathlib.Path, cluster: pathlib.Path, example: Example) -> None:
    """Asserts that variables, metrics and predictions are equal to the bit."""
    for model, last in example.last.items():
        first, one, other = (
            jobs.saved(None, f"{folder / model}/model.ckpt-{step}")
            for folder, step in ((alone, 0), (alone, last), (cluster, last))
        )
        jobs.assert_equal(one, other)
        # Training has changed what is compared.
        changed = [name for name in one if not np.array_equal(first[name], one[name])]
        for table in example.tables:
            # Itself, and its slots.
            assert len([name for name in changed if table in name]) > 1, table
    metrics = [json.loads((each / "metrics.json").read_text()) for each in (alone, cluster)]
    assert metrics[0] == metrics[1]
    assert len(metrics[0]) > 1
    if example.exports:
        jobs.assert_equal(sample_of(alone), sample_of(cluster))


@pytest.mark.full
@pytest.mark.parametrize("name", OF_TPUS)
def test_an_example_trains_as_alone(name: str, nursery: Nursery, tmp_path: pathlib.Path) -> None:
    """On two workers and two parameter servers nothing differs from one process of two cores."""
    runs = Runs(nursery, tmp_path, name, OF_TPUS[name])
    how = ("--use_tpu", f"--num_shards={CORES}")
    alone = runs.alone(*how)
    assert_same(alone, runs.on_cluster(alone, *how, worker=2, ps=2), OF_TPUS[name])


def test_every_example_is_here() -> None:
    programs = {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    assert programs == {*OF_TPUS, "census"}


@pytest.mark.full
def test_a_canned_example_trains_as_alone(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    """On two parameter servers nothing differs from one process."""
    runs = Runs(nursery, tmp_path, "census", CENSUS)
    alone = runs.alone()
    assert_same(alone, runs.on_cluster(alone, ps=2), CENSUS)
