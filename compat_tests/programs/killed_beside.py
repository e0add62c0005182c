"""What is done beside training, killed again and again.

    python -m compat_tests.programs.killed_beside DIRECTORY KIND KILLS SEED

It comes to its end only if what was made is whole after each kill, and the next one works.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.programs import killed
from compat_tests.support import legacy_checkpoints
from estimator_bridge import convert as conversions
from estimator_bridge import estimator
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.backends.host import profile
from tf2_engine.plan import make_plan

LAST = 8
"""The step at which a job is that is exported or converted."""

IDS = [[3], [10]]


class Work(NamedTuple):
    """Something to kill.

    Attributes:
        do: does it, over and over, in a directory.
        check: does it once more, and sees whether all that is there is whole; may print.
        changes: a life is killed within so many changes of the directory.
    """

    do: Callable[[pathlib.Path], Any]
    check: Callable[[pathlib.Path], Any]
    changes: int


def served(export: pathlib.Path) -> Any:
    """Returns what an exported model predicts."""
    model = tf.compat.v2.saved_model.load(str(export))
    return model.signatures["serving_default"](users=tf.constant(IDS, tf.int64))["p"].numpy()


def exports(base: pathlib.Path) -> list[pathlib.Path]:
    """Returns the exports below a directory, as servers find them."""
    return sorted(path for path in base.glob("*") if path.name.isdigit())


def trained(directory: pathlib.Path) -> Any:
    """Returns a job that is trained."""
    job = killed.make(directory / "job")
    job.train(killed.by_step, max_steps=LAST)
    return job


def export(directory: pathlib.Path) -> None:
    """Exports."""
    job = trained(directory)
    while True:
        job.export_saved_model(str(directory / "made"), killed.receiver)


def check_exports(directory: pathlib.Path) -> None:
    """Every export predicts what one predicts that was never killed."""
    job = trained(directory)
    whole = served(
        pathlib.Path(os.fsdecode(job.export_saved_model(directory / "whole", killed.receiver)))
    )
    job.export_saved_model(directory / "made", killed.receiver)
    made = exports(directory / "made")
    for path in made:
        np.testing.assert_array_equal(served(path), whole, err_msg=str(path))
    left = {path.name for path in (directory / "made").iterdir()} - {path.name for path in made}
    assert all(name.startswith("temp-") for name in left), left


def train_and_evaluate(directory: pathlib.Path, steps: int) -> Any:
    """Trains up to a step; evaluates and exports every checkpoint."""
    job = killed.make(directory)
    exporters = [
        kind(kind.__name__, killed.receiver, exports_to_keep=None)
        for kind in (estimator.LatestExporter, estimator.BestExporter)
    ]
    return estimator.train_and_evaluate(
        job,
        estimator.TrainSpec(killed.by_step, max_steps=steps),
        estimator.EvalSpec(killed.by_step, steps=2, exporters=exporters, throttle_secs=0),
    )


def check_evaluations(directory: pathlib.Path) -> None:
    """The job ends as one that was never killed, in numbers, metrics and exports."""
    latest = tf.train.latest_checkpoint(str(directory / "made"))
    steps = 4 + (0 if latest is None else int(latest.rpartition("-")[2]))
    ends = []
    for name in ("made", "whole"):
        metrics, _ = train_and_evaluate(directory / name, steps)
        newest = exports(directory / name / "export" / "LatestExporter")[-1]
        values = legacy_checkpoints.read(tf.train.latest_checkpoint(str(directory / name)))
        ends.append({**values, **metrics, "served": served(newest)})
    for key in ends[1]:
        np.testing.assert_array_equal(ends[0][key], ends[1][key], err_msg=key)
    for path in (directory / "made" / "export").glob("*/[0-9]*"):
        served(path)


def convert(directory: pathlib.Path) -> None:
    """Converts a checkpoint, each time to another directory."""
    (directory / "made").mkdir(exist_ok=True)
    first = len(converted(directory))
    for number in itertools.count(first):
        convert_to(directory, number)


def convert_to(directory: pathlib.Path, number: int) -> None:
    """Converts a checkpoint, which it makes."""
    job = killed.make(directory / "job", strategy="mod")
    if job.latest_checkpoint() is None:
        job.train(killed.by_step, max_steps=LAST)
    conversions.convert(
        str(directory / "job"),
        str(directory / "made" / str(number)),
        spec=job._embedding_config_spec,
        to="names",
        to_hosts=2,
    )


def converted(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns what conversions made; what they write into at first is hidden."""
    return [path for path in (directory / "made").iterdir() if not path.name.startswith(".")]


def check_conversions(directory: pathlib.Path) -> None:
    """Every directory that a conversion made is whole, and a further one can be made."""
    convert_to(directory, len(converted(directory)))
    wanted = legacy_checkpoints.read(tf.train.latest_checkpoint(str(directory / "job")))
    for path in converted(directory):
        found = legacy_checkpoints.read(tf.train.latest_checkpoint(str(path)))
        assert set(found) == set(wanted), path
        for name, value in wanted.items():
            if name.split("/")[0] in killed.ROWS:
                found[name] = legacy_checkpoints.by_id(found[name], 2, "mod")
            np.testing.assert_array_equal(found[name], value, err_msg=f"{path}: {name}")


COUNTED = profile.Counts(samples=1000, ids=3000, per_shard=(3000,))


def _plan() -> Any:
    table = TableSpec("table", 10, 2, "sum", Adagrad(0.1), tf.zeros_initializer())
    spec = EngineSpec((table,), (FeatureSpec("ids", "table"),))
    return make_plan(spec, [(4,)], num_hosts=1, num_cores=1)


def count(directory: pathlib.Path) -> None:
    """Adds to lookup statistics."""
    plan = _plan()
    while True:
        profile.merge(str(directory / "made"), plan, plan.tables[0], COUNTED)


def check_counts(directory: pathlib.Path) -> None:
    """Statistics are those of so many whole additions, and more can be added."""
    plan = _plan()
    before = profile.read(str(directory / "made"), plan, plan.tables[0]) or profile.Counts(
        0, 0, (0,)
    )
    profile.merge(str(directory / "made"), plan, plan.tables[0], COUNTED)
    after = profile.read(str(directory / "made"), plan, plan.tables[0])
    assert after == before + COUNTED
    assert (after.ids, after.samples % COUNTED.samples) == (3 * after.samples, 0), after
    assert after.per_shard == (after.ids,)


WORKS = {
    "export": Work(export, check_exports, 40),
    "evaluate": Work(
        lambda directory: train_and_evaluate(directory / "made", 1 << 40), check_evaluations, 40
    ),
    "convert": Work(convert, check_conversions, 60),
    "count": Work(count, check_counts, 30),
}


def paths_in(directory: pathlib.Path) -> list[str]:
    """Returns all files and directories, however deep."""

    def walk() -> Iterator[str]:
        for place, directories, files in os.walk(directory):
            yield from (f"{place}/{name}" for name in (*directories, *files))

    return list(walk())


def main(directory: pathlib.Path, kind: str, kills: int, seed: int) -> None:
    """Lets lives begin and kills them; looks after each."""
    work, draw = WORKS[kind], random.Random(seed)
    directory.mkdir(exist_ok=True)
    if kind == "export":
        assert os.waitpid(killed.live(lambda: trained(directory)), 0)[1] == 0
    for _ in range(kills):
        life = killed.live(lambda: work.do(directory))
        killed.kill(life, directory / "made", draw, changes=work.changes, look=paths_in)
    assert os.waitpid(killed.live(lambda: work.check(directory)), 0)[1] == 0


if __name__ == "__main__":
    place, given, times, start = sys.argv[1:]
    tf.logging.set_verbosity(tf.logging.ERROR)
    main(pathlib.Path(place), given, int(times), int(start))
