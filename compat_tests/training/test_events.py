"""New event files never overwrite others."""

from __future__ import annotations

import pathlib

from tf2_engine.summaries.events import EventFile, scalars_by_step


def test_files_of_one_second_are_all_kept(tmp_path: pathlib.Path) -> None:
    """Event files begun within one second, by which TensorFlow names them, are all kept."""
    for step in range(5):
        file = EventFile(str(tmp_path))
        file.scalars(step, {"loss": float(step)})
        file.flush()

    assert scalars_by_step(str(tmp_path)) == {step: {"loss": float(step)} for step in range(5)}


def test_the_last_evaluation_of_a_step_counts(tmp_path: pathlib.Path) -> None:
    """Files are read in the order in which they were begun."""
    for loss in (3.0, 1.0, 2.0):
        file = EventFile(str(tmp_path))
        file.scalars(7, {"loss": loss})
        file.flush()

    assert scalars_by_step(str(tmp_path)) == {7: {"loss": 2.0}}
