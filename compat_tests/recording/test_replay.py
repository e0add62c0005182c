"""Recordings are read and replayed with NumPy only; the error for a wrong array has its name."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from compat_tests.recording.ports import Port
from compat_tests.support import bag_model, fresh
from compat_tests.support.paths import ROOT
from estimator_bridge import errors
from estimator_bridge.recording import Recording, Replay
from estimator_bridge.recording.files import VERSION, is_outside
from estimator_bridge.recording.replay import ReplayBatch, ReplayStep
from estimator_bridge.verification import procedure

STEPS = 3
LEFT_OUT = ("beta1_power", "beta2_power")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Side A's recording of three small steps."""
    directory = tmp_path_factory.mktemp("recorded") / "a"
    bag_model.record(directory, steps=STEPS, batch_size=16)
    return directory


def repeated(step: ReplayStep, recording: pathlib.Path) -> dict[str, Any]:
    """Returns what side A computed in a step, in the form that `record` takes."""
    values = next(one.values for one in Recording(recording).steps() if one.number == step.number)
    variables = dict(values["variables"])
    tables = {
        table["name"]: {
            "rows": variables.pop(table["variable"]),
            **{slot: variables.pop(name) for name, slot in table["slots"].items()},
        }
        for table in Recording(recording).settings["tables"]
    }
    others = (*LEFT_OUT, "global_step")
    dense = {n: a for n, a in variables.items() if n not in others and not is_outside(n)}
    return {
        "loss": values["loss"]["loss"],
        "activations": values["activations"],
        "gradients": values["gradients"],
        "tables": tables,
        "dense": dense,
    }


def test_numpy_is_enough(recorded: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A port is recorded in a process that has no package but NumPy."""
    site = tmp_path / "packages"
    site.mkdir()
    for path in pathlib.Path(np.__file__).parents[1].glob("numpy*"):
        (site / path.name).symlink_to(path)
    program = (
        "import sys\n"
        "from compat_tests.recording.ports import Port\n"
        "Port().run(*sys.argv[1:])\n"
        "print([name for name in ('tensorflow', 'libcst', 'ml_dtypes') if name in sys.modules])\n"
    )
    paths = os.pathsep.join([str(ROOT), str(site)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths}
    ran = fresh.python("-S", "-c", program, recorded, tmp_path / "b", env=environment)
    assert ran.stdout.strip() == "[]", ran.stderr
    assert procedure.of_recordings(str(recorded), str(tmp_path / "b"), 0.0).equal


def test_the_files_are_plain(recorded: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """What docs/recording.md says of files and keys can be read without this package."""
    assert json.loads((recorded / "format.json").read_text()) == {
        "format": "estimator-bridge recording",
        "version": VERSION,
    }
    with np.load(recorded / "step-00000001.npz") as step:
        users = step["=variables:users/weights"]
        assert step["=activations:user"].shape == (16, bag_model.DIM)
        assert step["=loss:loss"].shape == ()
        assert step["=gradients:hidden/kernel"].dtype == np.float32
    with np.load(recorded / "batch-0000-00000000.npz") as batch:
        assert batch["=labels"].shape == (16,)
        assert batch["=features/user.indices"].shape == (16, 2)
    assert users.shape == (bag_model.TABLES["users"].rows, bag_model.DIM)
    (of_users, *_) = json.loads((recorded / "settings.json").read_text())["tables"]
    assert of_users["slots"] == {"users/weights/accumulators": "accumulators"}
    assert len(of_users["rule"]["rates"]) == STEPS


def test_a_repeated_recording_is_equal_to_the_bit(
    recorded: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """What side A computed, given back, differs nowhere; each array counts."""
    with Replay(recorded, tmp_path / "b", left_out=LEFT_OUT) as replay:
        for step in replay:
            step.record(**repeated(step, recorded))
    result = procedure.of_recordings(str(recorded), str(tmp_path / "b"), 0.0)

    assert result.equal
    assert result.largest == 0
    groups = [group for step in Recording(recorded).steps() for group in step.values.values()]
    expected = {name for group in groups for name in group}
    assert {series.name for series in result.series} == expected - {*LEFT_OUT}
    assert any("prediction-0: the loop of side B" in each for each in result.not_compared)
    assert any("beta1_power" in each for each in result.not_compared)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda of: of["tables"].pop("users"), "Step 1 lacks the table 'users'"),
        (lambda of: of["tables"]["users"].pop("accumulators"), "lacks the part 'accumulators'"),
        (lambda of: of["tables"].update(films={}), "has the table 'films'"),
        (lambda of: of["dense"].pop("hidden/bias"), r"lacks the variable 'hidden/bias'.*left_out"),
        (lambda of: of["dense"].update(bias=1.0), "has the variable 'bias'"),
        (lambda of: of["gradients"].pop("user"), "lacks the gradient 'user'"),
        (lambda of: of["activations"].pop("place"), "lacks the activation 'place'"),
        (
            lambda of: of["dense"].update({"hidden/kernel": of["dense"]["hidden/kernel"].T}),
            r"hidden/kernel: the shape is \[8, 32\], but side A's is \[32, 8\]. Give its transpose",
        ),
        (
            lambda of: of["tables"]["users"].update(rows=of["tables"]["users"]["rows"][1:]),
            r"users/weights: the shape is \[299, 4\], but side A's is \[300, 4\]",
        ),
        (
            lambda of: of["activations"].update(user=np.ones([16, 4], np.int64)),
            "user: the type is int64, but side A's is float32",
        ),
    ],
)
def test_a_wrong_array_is_refused(
    recorded: pathlib.Path, tmp_path: pathlib.Path, change: Any, says: str
) -> None:
    """The error says which array of which step is wrong, and what side A has."""
    with Replay(recorded, tmp_path / "b", left_out=LEFT_OUT) as replay:
        step = next(iter(replay))
        values = repeated(step, recorded)
        change(values)
        with pytest.raises(errors.InvalidInput, match=says):
            step.record(**values)
        step.record(**repeated(step, recorded))


def test_wrong_use_is_refused(recorded: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Steps are recorded once each and in order, into a folder that is new."""
    replay = Replay(recorded, tmp_path / "b", left_out=LEFT_OUT)
    steps = iter(replay)
    first = next(steps)
    with pytest.raises(errors.InvalidInput, match="Step 1 was not recorded"):
        next(steps)
    with pytest.raises(errors.InvalidInput, match="No table has the feature 'age'"):
        first.bag("age")
    with pytest.raises(errors.InvalidInput, match="Step 1 was not recorded"), replay:
        pass
    first.record(**repeated(first, recorded))
    with pytest.raises(errors.InvalidInput, match="Step 1 was recorded already"):
        first.record(**repeated(first, recorded))
    with pytest.raises(errors.InvalidInput, match=r"exists already\. Name a new folder"):
        Replay(recorded, tmp_path / "b")
    with pytest.raises(errors.InvalidInput, match="left_out: 'users/weights' is not a variable"):
        Replay(recorded, tmp_path / "c", left_out=["users/weights"])
    with pytest.raises(errors.InvalidInput, match="is not a recording"):
        Replay(tmp_path, tmp_path / "c")


@pytest.mark.parametrize(
    ("file", "changed", "says"),
    [
        ("format.json", {"version": VERSION + 1}, "Install a newer estimator-bridge"),
        ("format.json", {"format": "other"}, "is not a recording"),
        ("settings.json", {"cores": 2}, "2 cores, but only one core can be replayed"),
    ],
)
def test_other_recordings_are_refused(
    tmp_path: pathlib.Path, file: str, changed: dict[str, Any], says: str
) -> None:
    """A recording of a later version, of something else, or of several cores is not replayed."""
    bag_model.record(tmp_path / "a", steps=1, batch_size=4)
    path = tmp_path / "a" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(errors.InvalidInput, match=says):
        Replay(tmp_path / "a", tmp_path / "b")


def test_a_replay_of_another_recording_is_refused(
    recorded: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bag_model.record(tmp_path / "other", steps=1, batch_size=4)
    Port().run(recorded, tmp_path / "b")
    with pytest.raises(errors.InvalidInput, match="is not a replay of"):
        procedure.of_recordings(str(tmp_path / "other"), str(tmp_path / "b"), 0.0)


def bag_of(arrays: dict[str, Any], length: int = 0, weights: str | None = None) -> Any:
    table: Any = {"name": "t", "variable": "t", "slots": {}, "features": {"x": (length, weights)}}
    return ReplayBatch(arrays, [table]).bag("x")


def test_bags_are_what_side_a_looks_up() -> None:
    """Dense ids, sparse ids in any order, empty samples, weights, and positions of sequences."""
    dense = bag_of({"features/x": np.array([[3], [1]], np.int32)})
    assert (dense.ids.tolist(), dense.offsets.tolist(), dense.shape) == ([3, 1], [0, 1], (2,))
    sparse = {
        "features/x.indices": np.array([[2, 0], [0, 0], [0, 1]]),
        "features/x.values": np.array([7, 5, 6]),
        "features/x.shape": np.array([4, 2]),
        "features/w.values": np.array([0.7, 0.5, 0.6]),
    }
    bag = bag_of(sparse, weights="w")
    assert bag.ids.tolist() == [5, 6, 7]
    assert bag.offsets.tolist() == [0, 2, 2, 3]
    assert bag.weights.tolist() == np.array([0.5, 0.6, 0.7], np.float32).tolist()
    sequence = bag_of(sparse, length=1)
    assert (sequence.ids.tolist(), sequence.shape) == ([5, 7], (4, 1))
    assert sequence.offsets.tolist() == [0, 1, 1, 2]
    with pytest.raises(errors.InvalidInput, match="no integers for the feature 'x'"):
        bag_of({"features/x": np.array([b"a"], object)})


def test_sparse_gradients_are_given_whole(tmp_path: pathlib.Path) -> None:
    """Of a dense gradient the rows that side A has are recorded, and rows that are not zero."""
    directory = tmp_path / "a"
    bag_model.record(directory, steps=1, batch_size=4)
    path = directory / "step-00000001.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["=gradients:hidden/kernel"] = arrays["=gradients:hidden/kernel"][[1, 4]]
    arrays["=gradients:hidden/kernel (rows)"] = np.array([1, 4])
    np.savez(path, **arrays)
    with Replay(directory, tmp_path / "b", left_out=LEFT_OUT) as replay:
        step = next(iter(replay))
        values = repeated(step, directory)
        whole = np.zeros([32, 8], np.float32)
        whole[[1, 9]] = 1.0
        values["gradients"] = {**values["gradients"], "hidden/kernel": whole}
        values["gradients"].pop("hidden/kernel (rows)")
        step.record(**values)
    _, step_b = Recording(tmp_path / "b").steps()
    gradients = step_b.values["gradients"]
    assert gradients["hidden/kernel (rows)"].tolist() == [1, 4, 9]
    assert gradients["hidden/kernel"][:, 0].tolist() == [1, 0, 1]
