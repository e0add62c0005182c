"""The division of tests between versions of TensorFlow."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.support import version_shares

SUITE = pathlib.Path(version_shares.__file__).parent.parent


def test_what_is_shared_is_there() -> None:
    """Every folder and file that is divided exists."""
    assert [name for name in version_shares.QUICK if not (SUITE / name).exists()] == []


def test_shares_are_of_a_size() -> None:
    """Each test is tried on one of the versions, about a third of many on 2.15."""
    names = [f"compat_tests/engine/test_x.py::test_y[{number}]" for number in range(1000)]
    tried = {
        version: {name for name in names if version_shares.is_tried_by(name, version)}
        for version in ("2.15.1", "2.21.0")
    }

    assert tried["2.15.1"] | tried["2.21.0"] == set(names)
    assert tried["2.15.1"].isdisjoint(tried["2.21.0"])
    # Six standard deviations of a thousand choices.
    assert abs(len(tried["2.15.1"]) - 1000 / 3) < 6 * (1000 * 1 / 3 * 2 / 3) ** 0.5


def test_tests_that_share_an_engine_go_together() -> None:
    """All tests of a group are tried on the same version."""
    names = [f"compat_tests/engine/test_x.py::test_y[{number}]" for number in range(50)]
    for version in ("2.15.1", "2.21.0"):
        for group in ("a", "b", "c", "d"):
            assert len({version_shares.is_tried_by(name, version, group) for name in names}) == 1


def test_programs_run_on_both_versions_in_the_other_tiers() -> None:
    """Of thorough tests matrices are divided, and neither migrated programs nor the project's."""
    for folder in ("migrate", "project", "verify"):
        assert not version_shares.is_shared(f"compat_tests/{folder}/test_a.py::test_b", True)
    assert version_shares.is_shared("compat_tests/engine/test_a.py::test_b", True)


@pytest.mark.parametrize(
    "nodeid, shared",
    [
        ("compat_tests/engine/test_lookup.py::test_a", True),
        ("compat_tests/verify/test_verify_power.py::test_a[b]", True),
        ("compat_tests/verify/test_verify.py::test_a", False),
        ("compat_tests/estimator/test_estimator.py::test_a[engine]", False),
        ("compat_tests/convert/test_stock_checkpoints.py::test_a", False),
        ("compat_tests/engine/test_lookup.py::test_a[stock]", False),
        ("elsewhere/engine/test_lookup.py::test_a", False),
    ],
)
def test_what_compares_with_stock_is_not_shared(nodeid: str, shared: bool) -> None:
    """Nor is what is in no folder that is divided, whatever parameters are called."""
    assert version_shares.is_shared(nodeid) == shared
    assert version_shares.is_shared(f"/site/{nodeid}") == shared
