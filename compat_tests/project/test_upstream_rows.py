"""The list of upstream's tests that do not pass: its data, its page, and that it is strict."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.support.upstream import __main__ as command
from compat_tests.support.upstream import page, rows

FILE = "tpu/tpu_estimator_test.py"


def test_the_page_is_made_of_the_rows() -> None:
    """After a change to a row, `python -m compat_tests.support.upstream.page` writes the page."""
    text = page.PAGE.read_text(encoding="utf-8")

    assert page.with_tables(text) == text


def test_no_row_hides_another() -> None:
    """Each pattern is there once, and none matches what another one is written for."""
    for number, row in enumerate(rows.DIFFERENCES):
        first = rows.difference_of(row.file, f"A.{row.tests}")
        assert first is None or rows.DIFFERENCES.index(first) == number, row


@pytest.mark.parametrize(
    "passed, surprise",
    [
        ({"A.test_missing_params": False}, None),
        ({"A.test_missing_params": True}, "A.test_missing_params passes, though a row says"),
        ({"A.test_other": True}, None),
        ({"A.test_other": False}, "A.test_other does not pass, and no row says why"),
    ],
)
def test_the_list_is_strict(passed: dict[str, bool], surprise: str | None) -> None:
    """A test that passes against its row is an error, as is one that fails without a row."""
    lines = [*rows.surprises({(FILE, test): each for test, each in passed.items()}, whole=False)]

    assert len(lines) == (surprise is not None)
    assert surprise is None or surprise in lines[0]


def test_a_row_without_a_test_is_an_error() -> None:
    """When a whole file is run, each of its rows has a test."""
    lines = [*rows.surprises({(FILE, "A.test_missing_params"): False})]

    stale = [row for row in rows.DIFFERENCES if row.file == FILE]
    assert len(lines) == len(stale) - 1
    assert all("no test has the name of the row" in each for each in lines)


def test_what_does_not_count_is_left_out() -> None:
    """Rows say which tests are about what no program sees."""
    assert not rows.counts("tpu/error_handling_test.py", "ErrorHandlingTest.testIgnoredError")
    assert not rows.counts(FILE, "TPUConfigTest.test_session_config_none")
    assert rows.counts(FILE, "TPUEstimatorPredictTest.test_predict_on_cpu")


UPSTREAM = """
import unittest
from tensorflow_estimator.python.estimator.tpu import tpu_estimator
from tensorflow_estimator.python.estimator import model_fn


class SomeTest(unittest.TestCase):

  def test_passes(self):
    self.assertTrue(tpu_estimator.TPUEstimator.__module__.startswith("estimator_bridge"))

  def test_fails(self):
    self.fail("for a reason")

  def test_hangs(self):
    import time
    time.sleep(1000)

  def test_ends_its_process(self):
    import os
    os._exit(0)

  def test_leaves_something(self):
    tpu_estimator.left = 1

  def test_misses_it(self):
    self.assertFalse(hasattr(tpu_estimator, "left"))


if __name__ == "__main__":
  SomeTest.test_passes
  unittest.main()
"""


@pytest.mark.full
def test_tests_run_with_the_bridge_in_place(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each test runs in its own process for a limited time; failures without a row are named."""
    folder = tmp_path / rows.FOLDER / "tpu"
    folder.mkdir(parents=True)
    (folder / "some_test.py").write_text(UPSTREAM)

    status = command.main(["--source", str(tmp_path), "--seconds", "30"])
    output = capsys.readouterr().out
    assert status == 1
    assert "3 of 6 tests passed" in output
    assert "for a reason" in output
    assert "it takes more than 30.0 seconds" in output
    named = {line.split(": ")[1].split()[0] for line in output.splitlines() if "no row" in line}
    assert named == {
        f"SomeTest.{name}" for name in ("test_fails", "test_hangs", "test_ends_its_process")
    }
    assert command.main(["--source", str(tmp_path), "--match", "test_(passes|misses)"]) == 0


def test_a_folder_without_tests_is_an_error(tmp_path: pathlib.Path) -> None:
    assert command.main(["--source", str(tmp_path)]) == 2
