"""Checks the reference's owner of a row against the sharding examples of the proto."""

from __future__ import annotations

import pytest

from compat_tests.references.placement import owner_core


@pytest.mark.parametrize(
    "cores, cores_per_host, sharding, owners",
    [
        # On one host the owner is the row index modulo the cores, whatever the sharding.
        (3, None, "div", [0, 1, 2, 0, 1, 2, 0]),
        (3, None, "mod", [0, 1, 2, 0, 1, 2, 0]),
        # The proto's example of 13 ids on 5 hosts, with one core a host.
        (5, 1, "div", [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4]),
        (5, 1, "mod", [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]),
        # With two cores on each of two hosts the row index within its host picks the core. By
        # "div" host 0 holds 0, 1, 2 and host 1 holds 3, 4; by "mod" they hold 0, 2, 4 and 1, 3.
        (4, 2, "div", [0, 1, 0, 2, 3]),
        (4, 2, "mod", [0, 2, 1, 3, 0]),
        # Two rows on three hosts of two cores are the first rows of the first two hosts.
        (6, 2, "div", [0, 2]),
    ],
)
def test_owners_by_hand(
    cores: int, cores_per_host: int | None, sharding: str, owners: list[int]
) -> None:
    """The host that holds a row and the row's place there determine the core that owns it."""
    rows = len(owners)

    assert [owner_core(row, rows, cores, cores_per_host, sharding) for row in range(rows)] == owners


def test_impossible_layouts_are_refused() -> None:
    """Cores that do not fill their hosts, and an unknown sharding, are refused."""
    with pytest.raises(ValueError, match="3 cores do not fill hosts of 2"):
        owner_core(0, 5, 3, 2, "div")
    with pytest.raises(ValueError, match="'hash'"):
        owner_core(0, 5, 2, 1, "hash")
