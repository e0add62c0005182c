"""The lists of tests that run on one version of TensorFlow only."""

from __future__ import annotations

import itertools
import pathlib

import pytest

from compat_tests import conftest
from compat_tests.support import version_shares

SUITE = pathlib.Path(version_shares.__file__).parent.parent


def test_what_is_listed_is_there() -> None:
    """Every folder and file that is listed exists, and no folder is listed for both versions."""
    lists = (version_shares.ON_2_15, version_shares.ON_LATER)
    listed = {*itertools.chain(*lists)}

    assert [name for name in listed if not (SUITE / name).exists()] == []
    assert [name for name in {*lists[0]} & {*lists[1]} if (SUITE / name).is_dir()] == []
    assert {*version_shares.MATRICES} <= listed


@pytest.mark.whole
def test_what_cannot_run_here_runs_on_the_other_version() -> None:
    """No file that a version leaves out is listed for that version alone."""
    other = "2.21.0" if conftest.HAS_STOCK else "2.15.1"
    of_libraries, of_repository = "libraries/", ("project/", "run/")
    left_out = [
        name
        for name in itertools.chain(*conftest.LEFT_OUT.values())
        if "/" in name and not name.startswith((of_libraries, *of_repository))
    ]

    assert left_out
    assert [name for name in left_out if version_shares.is_elsewhere(name, other)] == []


@pytest.mark.parametrize(
    "file, thorough, versions",
    [
        ("old/test_a.py", False, ["2.15.1"]),
        ("old/test_new.py", False, ["2.21.0", "2.22.0rc0"]),
        ("old/test_both.py", False, ["2.15.1", "2.21.0", "2.22.0rc0"]),
        ("new/test_a.py", False, ["2.21.0", "2.22.0rc0"]),
        ("other/test_a.py", False, ["2.15.1", "2.21.0", "2.22.0rc0"]),
        ("other/test_old.py", False, ["2.15.1"]),
        ("old/test_a.py", True, ["2.15.1"]),
        ("new/test_a.py", True, ["2.15.1", "2.21.0", "2.22.0rc0"]),
    ],
)
def test_the_lists_decide(
    file: str, thorough: bool, versions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed file counts before its folder, and thorough tests are divided in matrices alone."""
    of_both = "old/test_both.py"
    monkeypatch.setattr(version_shares, "ON_2_15", ("old", "other/test_old.py", of_both))
    monkeypatch.setattr(version_shares, "ON_LATER", ("new", "old/test_new.py", of_both))
    monkeypatch.setattr(version_shares, "MATRICES", ("old",))

    tried = [
        version
        for version in ("2.15.1", "2.21.0", "2.22.0rc0")
        if not version_shares.is_elsewhere(file, version, thorough)
    ]
    assert tried == versions
