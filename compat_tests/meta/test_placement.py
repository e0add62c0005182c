"""Checks the reference's owner of a row against the sharding examples of the proto."""

from __future__ import annotations

import pytest

from compat_tests.references.placement import owner_core


@pytest.mark.parametrize("sharding", ["div", "mod"])
def test_one_host_deals_rows_out_to_its_cores(sharding: str) -> None:
    """On one host the owner is the row index modulo the cores, whatever the sharding."""
    owners = [owner_core(row, 7, 3, None, sharding) for row in range(7)]

    assert owners == [0, 1, 2, 0, 1, 2, 0]


def test_thirteen_rows_on_five_hosts() -> None:
    """The proto's example of 13 ids on 5 hosts, with one core a host, by "div" and by "mod"."""
    by_div = [owner_core(row, 13, 5, 1, "div") for row in range(13)]
    by_mod = [owner_core(row, 13, 5, 1, "mod") for row in range(13)]

    assert by_div == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4]
    assert by_mod == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]


def test_cores_are_taken_by_local_row() -> None:
    """With two cores on each of two hosts the row index within its host picks the core.

    Five rows: by "div" host 0 holds 0, 1, 2 and host 1 holds 3, 4; by "mod" 0, 2, 4 and 1, 3.
    """
    by_div = [owner_core(row, 5, 4, 2, "div") for row in range(5)]
    by_mod = [owner_core(row, 5, 4, 2, "mod") for row in range(5)]

    assert by_div == [0, 1, 0, 2, 3]
    assert by_mod == [0, 2, 1, 3, 0]


def test_a_table_smaller_than_the_hosts_has_a_row_on_each() -> None:
    """Two rows on three hosts of two cores are the first rows of the first two hosts."""
    assert [owner_core(row, 2, 6, 2, "div") for row in range(2)] == [0, 2]


def test_impossible_layouts_are_refused() -> None:
    """Cores that do not fill their hosts, and an unknown sharding, are refused."""
    with pytest.raises(ValueError, match="3 cores do not fill hosts of 2"):
        owner_core(0, 5, 3, 2, "div")
    with pytest.raises(ValueError, match="'hash'"):
        owner_core(0, 5, 2, 1, "hash")
