"""If training is killed, the next run continues as if nothing had happened."""

from __future__ import annotations

import os
import pathlib
import random
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses, jobs, killed, killed_beside
from compat_tests.support import base_jobs, fresh, legacy_checkpoints
from estimator_bridge import errors, estimator
from estimator_bridge.run import install

LIVES = [
    pytest.param("step", 3),
    pytest.param("step", 5, marks=pytest.mark.full),
    pytest.param("iterator", 5, marks=pytest.mark.full),
    pytest.param("step", 50, marks=pytest.mark.soak),
    pytest.param("iterator", 50, marks=pytest.mark.soak),
]


def run(program: str, *arguments: Any) -> Any:
    return fresh.module(
        f"compat_tests.programs.{program}",
        *arguments,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},  # for `Trainer`
    )


def losses_of(path: pathlib.Path) -> list[tuple[int, str]]:
    """Returns step and loss of each step that was made, as they were written."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(int(step), loss) for step, loss in lines]


@pytest.mark.parametrize("kind, kills", LIVES)
def test_killed_at_any_moment_it_goes_on(kind: str, kills: int, tmp_path: pathlib.Path) -> None:
    """A job that is killed while it starts, trains or saves makes the steps of one that is not."""
    seed = random.SystemRandom().randrange(1 << 30)
    ran = run("killed", tmp_path, kind, kills, seed)

    assert ran.returncode == 0, f"seed {seed}: {ran.stderr}"
    whole = dict(losses_of(tmp_path / "whole.losses"))
    assert len(whole) == int(ran.stdout)
    for step, loss in losses_of(tmp_path / "parts.losses"):
        assert loss == whole[step], f"seed {seed}: step {step}"
    last = [
        legacy_checkpoints.read(tf.train.latest_checkpoint(str(tmp_path / name)))
        for name in ("whole", "parts")
    ]
    assert jobs.largest_difference(*last)[0] == 0.0, f"seed {seed}"


BESIDE = [
    pytest.param(kind, kills, marks=mark)
    for kind in killed_beside.WORKS
    for kills, mark in ((5, pytest.mark.full), (50, pytest.mark.soak))
]


@pytest.mark.parametrize("kind, kills", BESIDE)
def test_killed_beside_training_the_next_one_works(
    kind: str, kills: int, tmp_path: pathlib.Path
) -> None:
    """Results of killed exports, evaluations, conversions and statistics are complete."""
    seed = random.SystemRandom().randrange(1 << 30)
    ran = run("killed_beside", tmp_path, kind, kills, seed)

    assert ran.returncode == 0, f"seed {seed}: {ran.stderr}"


def test_what_was_restored_is_not_written_again(tmp_path: pathlib.Path) -> None:
    killed.make(tmp_path).train(killed.by_step, max_steps=2)
    path = tmp_path / "model.ckpt-2.index"
    before = path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()
    steps: list[int] = []

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: Any) -> None:
            steps.append(int(global_step_value))

    killed.make(tmp_path).train(killed.by_step, max_steps=3, saving_listeners=[Listener()])

    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) == before
    assert steps == [2, 3]  # listeners are told as always


def test_the_input_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    """Two trainings with a saved state of a shuffled input make exactly the steps of one."""
    for name, ends in (("whole", (6,)), ("parts", (3, 6))):
        for end in ends:
            killed.train(tmp_path / name, "iterator", end)

    assert losses_of(tmp_path / "whole.losses") == losses_of(tmp_path / "parts.losses")
    whole, parts = (killed.make(tmp_path / name) for name in ("whole", "parts"))
    assert jobs.largest_difference(jobs.saved(whole), jobs.saved(parts))[0] == 0.0
    # Of each model that is kept, and of the one before it.
    assert {path.name for path in (tmp_path / "whole").glob("input.ckpt-*.index")} == {
        f"input.ckpt-{step}.index" for step in (2, 4, 6)
    }


@pytest.mark.full
def test_a_model_without_the_state_of_its_input_says_so(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed.make(tmp_path / "job").train(killed.by_iterator, max_steps=2)
    killed.train(tmp_path / "job", "iterator", 3)

    assert "input.ckpt-2.index: the input starts from its beginning" in caplog.text


def test_settings_of_the_input_hook_are_checked(tmp_path: pathlib.Path) -> None:
    never = {"save_checkpoints_steps": None, "save_checkpoints_secs": None}
    job = base_jobs.make(tmp_path, config=never)
    hook = estimator.experimental.CheckpointInputPipelineHook
    with pytest.raises(errors.InvalidInput, match="'often'"):
        hook(job, "often")
    with pytest.raises(errors.InvalidInput, match="or a CheckpointInputPipelineHook"):
        job.train(houses.data, steps=1, hooks=[hook(job)])


def test_programs_find_the_hook_where_it_was() -> None:
    """With `install` the hook is in tf.data, from which newer versions of TensorFlow removed it."""
    install.uninstall()  # what commands of earlier tests in this process have installed
    before = getattr(tf.data.experimental, "CheckpointInputPipelineHook", None)
    install.install(replace=True)
    try:
        ours = estimator.experimental.CheckpointInputPipelineHook
        assert tf.data.experimental.CheckpointInputPipelineHook is ours
    finally:
        install.uninstall()
    assert getattr(tf.data.experimental, "CheckpointInputPipelineHook", None) is before
