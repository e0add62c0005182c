"""Annotations say something: few of them are `Any`, or `Object`, which is another name for it."""

from __future__ import annotations

import ast

import pytest

from compat_tests.support.paths import ROOT

UNCHECKED = {"Any", "Object"}
"""Names with which a type checker takes everything; `Nest` and `Op` tell a reader more."""

MOST = 25
"""How many of them 1,000 lines may have."""


def unchecked(source: str) -> int:
    """Returns how often a source uses one of the names; imports do not count."""
    nodes = ast.walk(ast.parse(source))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return sum(name in UNCHECKED for name in names)


@pytest.mark.parametrize("package", ["tf2_engine", "estimator_bridge"])
def test_few_annotations_take_everything(package: str) -> None:
    """At most 25 in 1,000 lines are `Any` or `Object`."""
    sources = [path.read_text() for path in (ROOT / package).rglob("*.py")]
    lines = sum(source.count("\n") for source in sources)

    assert lines > 10_000
    assert 1000 * sum(map(unchecked, sources)) / lines <= MOST


def test_uses_are_counted() -> None:
    """Each use counts, in any part of an annotation; other names and imports do not."""
    source = "from a import Any\nObjects = 1\ndef f(x: Any, *y: dict[str, Object]) -> object: ..."

    assert unchecked(source) == 2
