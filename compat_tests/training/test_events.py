"""New event files never overwrite others."""

from __future__ import annotations

import pathlib

from tf2_engine.summaries.events import EventFile, scalars_by_step


def test_files_of_one_second_are_kept_in_their_order(tmp_path: pathlib.Path) -> None:
    """Event files begun within one second, by which TensorFlow names them, are all kept.

    They are read in the order in which they were begun: the last evaluation of a step counts.
    """
    for step, loss in ((0, 0.0), (1, 1.0), (7, 3.0), (7, 1.0), (7, 2.0)):
        file = EventFile(str(tmp_path))
        file.scalars(step, {"loss": loss})
        file.flush()
    assert scalars_by_step(str(tmp_path)) == {
        step: {"loss": loss} for step, loss in ((0, 0.0), (1, 1.0), (7, 2.0))
    }
