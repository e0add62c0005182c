"""Faulty files in a model_dir: the error names the file, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.convert.test_checkpoint_files import contents, cut_off, flip
from compat_tests.convert.test_untrusted_files import entry, write_index
from compat_tests.programs import jobs, killed
from estimator_bridge import errors
from estimator_bridge.checkpoint_files import bundle_protos

STATE = "checkpoint"
DATA, INDEX = "model.ckpt-4.data-00000-of-00001", "model.ckpt-4.index"

DAMAGE: dict[str, tuple[str, Callable[[pathlib.Path], Any], str]] = {
    "data cut off": (DATA, cut_off, "model.ckpt-2"),
    "data changed": (DATA, flip, "model.ckpt-2"),
    "data missing": (DATA, os.remove, "model.ckpt-2"),
    "index cut off": (INDEX, cut_off, "model.ckpt-2"),
    "index changed": (INDEX, flip, "model.ckpt-2"),
    "index missing": (INDEX, os.remove, "model.ckpt-2"),
    "state empty": (STATE, lambda path: path.write_text(""), "model.ckpt-4"),
    "state nonsense": (STATE, lambda path: path.write_bytes(b"\xff{"), "model.ckpt-4"),
}
"""By what happens: the file, how, and the last checkpoint that is whole then."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Trains four steps; returns the model_dir."""
    directory = tmp_path_factory.mktemp("trained") / "job"
    killed.make(directory).train(killed.by_step, max_steps=4)
    return directory


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_told_with_the_last_good_checkpoint(
    what: str, trained: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A damaged checkpoint is named, with a way to continue that works; no file is changed."""
    name, damage, good = DAMAGE[what]
    directory = pathlib.Path(shutil.copytree(trained, tmp_path / "a job"))
    damage(directory / name)
    before = checkpoints_in(directory)

    path = re.escape(f"{directory}/{name}")
    with pytest.raises(errors.UnreadableCheckpoint, match=path) as caught:
        # What is in the tensors is read by sessions alone.
        killed.make(directory).train(killed.by_step, max_steps=5 if what == "data changed" else 3)

    # Events may go on in the file of a job that ended in the same second.
    assert checkpoints_in(directory) == before
    assert f"The last good checkpoint is {directory}/{good};" in str(caught.value)
    subprocess.run(str(caught.value).partition("to go on from it: ")[2], shell=True, check=True)
    assert killed.make(directory).latest_checkpoint() == f"{directory}/{good}"


def test_so_do_evaluation_and_export(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    directory = pathlib.Path(shutil.copytree(trained, tmp_path / "job"))
    flip(directory / DATA)
    job = killed.make(directory)

    with pytest.raises(errors.UnreadableCheckpoint, match=DATA):
        job.evaluate(killed.by_step, steps=1)
    with pytest.raises(errors.UnreadableCheckpoint, match=DATA):
        next(job.predict(killed.by_step))
    os.remove(directory / INDEX)
    with pytest.raises(errors.UnreadableCheckpoint, match=INDEX):
        job.evaluate(killed.by_step, steps=1)


def test_what_a_checkpoint_claims_is_not_allocated(tmp_path: pathlib.Path) -> None:
    """A small file that declares a huge variable is refused before memory is allocated for it."""
    (tmp_path / STATE).write_text('model_checkpoint_path: "model.ckpt-4"')
    header = bundle_protos.BundleHeader(num_shards=1)
    write_index(str(tmp_path / "model.ckpt-4"), {b"": header, b"users": entry([1 << 40], 1 << 42)})
    (tmp_path / DATA).write_bytes(bytes(100))

    with pytest.raises(errors.UnreadableCheckpoint, match="'users' ends at byte"):
        killed.make(tmp_path).train(killed.by_step, max_steps=5)


def checkpoints_in(directory: pathlib.Path) -> dict[str, bytes]:
    return {
        name: data for name, data in contents(directory).items() if "ckpt" in name or name == STATE
    }


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limits the size of the files of this process, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_and_costs_nothing(tmp_path: pathlib.Path) -> None:
    """A checkpoint that cannot be written is named; with room again training continues.

    The error is not taken for the end of the input, as TensorFlow's own would be.
    """
    rows = {"users": 20_000, "items": 6}  # 1 MB in three tensors

    def job(name: str) -> Any:
        return killed.make(tmp_path / name, rows=rows)

    job("whole").train(killed.by_step, max_steps=2)
    shutil.copytree(tmp_path / "whole", tmp_path / "full")
    before = checkpoints_in(tmp_path / "full")
    with (
        files_of_at_most(800_000),
        pytest.raises(errors.CannotWrite, match=r"model\.ckpt-4: .*File too large"),
    ):
        job("full").train(killed.by_step, max_steps=6)
    assert checkpoints_in(tmp_path / "full") == before

    for name in ("whole", "full"):
        job(name).train(killed.by_step, max_steps=5)
    difference = jobs.largest_difference(jobs.saved(job("whole")), jobs.saved(job("full")))
    assert difference[0] == 0.0


@pytest.mark.full
def test_events_that_cannot_be_written_are_named(
    trained: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    directory = pathlib.Path(shutil.copytree(trained, tmp_path / "job"))
    before = checkpoints_in(directory)

    with (
        files_of_at_most(100),
        pytest.raises(errors.CannotWrite, match=r"job/eval/events\.out.*File too large"),
    ):
        killed.make(directory).evaluate(killed.by_step, steps=1)

    shutil.rmtree(directory / "eval")
    assert checkpoints_in(directory) == before


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Drops the rights of this process if it runs as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_that_is_read_only_is_named(trained: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # nobody may enter pytest's own
        directory = pathlib.Path(name)
        directory.chmod(0o755)
        shutil.copytree(trained, directory / "job")
        (directory / "job").chmod(0o555)
        before = contents(directory / "job")
        job = killed.make(directory / "job")
        with (
            as_nobody(),
            pytest.raises(errors.CannotWrite, match=rf"{directory}/job cannot be written to"),
        ):
            job.train(killed.by_step, max_steps=6)
        assert contents(directory / "job") == before
        (directory / "job").chmod(0o755)


@pytest.mark.parametrize("below", ["", "/job", "/jobs/job"])
@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_a_model_dir_that_is_a_file_is_named(
    method: str, below: str, tmp_path: pathlib.Path
) -> None:
    """A model_dir that is a file, or would be below one, is refused before the input is read."""
    (tmp_path / "file").write_text("")
    job = killed.make(pathlib.Path(f"{tmp_path}/file{below}"))

    def unread() -> Any:
        raise AssertionError("The input is read.")

    with pytest.raises(errors.CannotWrite, match=r"/file is not a directory. Give another"):
        getattr(job, method)(unread, steps=1)
