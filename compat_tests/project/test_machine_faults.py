"""With a full disk or a clock that jumps, nothing is lost, and the message names the cause."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses
from compat_tests.support import fuzz
from compat_tests.support.base_jobs import make
from estimator_bridge.cli import main


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_conversion_to_a_full_disk_is_told(
    small_disk: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`convert` ends with status 2 and the cause, and leaves nothing behind; with room it works."""
    old = tmp_path / "old"
    old.mkdir()
    fuzz.write_checkpoint(old)
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    before = sorted(os.listdir(small_disk))

    assert main.main(["convert", str(old), str(small_disk / "new"), "--allow", "*"]) == 2
    stderr = capsys.readouterr().err
    assert "No space left on device" in stderr
    assert "Traceback" not in stderr
    assert sorted(os.listdir(small_disk)) == before

    filler.unlink()
    assert main.main(["convert", str(old), str(small_disk / "new"), "--allow", "*"]) == 0


@pytest.mark.full
@pytest.mark.parametrize("jump", [-86_400.0, 365 * 86_400.0])
def test_a_clock_that_jumps_costs_nothing(
    jump: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training whose clock is set back, or forward, in its middle ends with its last step saved.

    The next one goes on from there, though its files are of another time.
    """
    real = time.time

    class Jump(tf.train.SessionRunHook):
        def __init__(self) -> None:
            self._steps = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._steps += 1
            if self._steps == 3:
                monkeypatch.setattr(time, "time", lambda: real() + jump)

    job = make(tmp_path)
    job.train(houses.data, steps=6, hooks=[Jump()])
    assert job.latest_checkpoint().endswith("model.ckpt-6")
    monkeypatch.setattr(time, "time", real)
    make(tmp_path).train(houses.data, steps=2)
    assert job.latest_checkpoint().endswith("model.ckpt-8")
