"""Checks the lists of tests that run on only one version of TensorFlow."""

from __future__ import annotations

import itertools
import pathlib
import types
from typing import Any

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


QUICK = "not full and not soak and not elsewhere"
THOROUGH = "not soak and not (full and elsewhere)"
TEST = "def test_a() -> None: ..."


@pytest.mark.parametrize(
    "name, text, expression, ignored",
    [
        ("test_theirs.py", TEST, QUICK, True),
        ("test_theirs.py", TEST, THOROUGH, None),
        ("test_theirs.py", TEST, "", None),
        ("test_theirs.py", f"@pytest.mark.stock\n{TEST}", QUICK, None),
        ("test_theirs.py", f"@pytest.mark.whole\n{TEST}", QUICK, None),
        ("test_ours.py", TEST, QUICK, None),
        ("test_theirs.py", "def test_a(name: str, namespace: Any) -> None: ...", QUICK, None),
        ("helpers.py", "", QUICK, None),
    ],
)
def test_the_quick_tier_imports_no_file_of_the_other_version(
    name: str,
    text: str,
    expression: str,
    ignored: bool | None,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of the other version is imported in other tiers, or if a mark keeps a test here."""
    monkeypatch.setattr(conftest, "SUITE", tmp_path)
    monkeypatch.setattr(version_shares, "is_elsewhere", lambda file, _: file != "test_ours.py")
    (tmp_path / name).write_text(text)
    config: Any = types.SimpleNamespace(option=types.SimpleNamespace(markexpr=expression))

    assert conftest.pytest_ignore_collect(tmp_path / name, config) is ignored


@pytest.mark.parametrize("expression, items", [(QUICK, []), ("not soak", None), ("", None)])
def test_no_items_are_made_of_what_the_tier_leaves_out(expression: str, items: Any) -> None:
    """A thorough test is an item in its own tier alone; a quick one always is."""
    config = types.SimpleNamespace(option=types.SimpleNamespace(markexpr=expression))
    collector = types.SimpleNamespace(config=config)

    @pytest.mark.full
    def thorough() -> None: ...

    assert conftest.pytest_pycollect_makeitem(collector, "test_a", thorough) == items
    assert conftest.pytest_pycollect_makeitem(collector, "test_b", lambda: None) is None


def test_marks_that_keep_a_test_here_are_written_in_its_file() -> None:
    """Files that the quick tier does not import are told by their text alone."""
    helpers = [path for path in SUITE.rglob("*.py") if not path.name.startswith("test_")]
    sources = {path.relative_to(SUITE).as_posix(): path.read_text() for path in helpers}
    marking = {name for name, text in sources.items() if "pytest.mark.stock" in text}

    # The fixture `namespace`, and `needs_stock`.
    assert marking == {"conftest.py", "support/legacy_specs.py"}
    assert not [name for name, text in sources.items() if "pytest.mark.whole" in text]


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
