"""The sources are compatible with the newest Python that the project claims to support."""

from __future__ import annotations

import ast
import configparser
import re
import warnings

import pytest

from compat_tests.support.paths import ROOT

SOURCES = sorted(
    path
    for package in ("estimator_bridge", "tf2_engine", "compat_tests", "examples", "benchmarks")
    for path in (ROOT / package).rglob("*.py")
)

# What the documents of Python 3.12 and 3.13 list as removed.
REMOVED_MODULES = {
    *("asynchat", "asyncore", "distutils", "imp", "smtpd"),
    *("aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3", "mailcap"),
    *("msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib"),
    *("uu", "xdrlib"),
}
REMOVED_NAMES = {
    # unittest, 3.12
    *("assertEquals", "assertRegexpMatches", "assertRaisesRegexp", "assertItemsEqual", "makeSuite"),
    # inspect, importlib, pkgutil, configparser, locale
    *("getargspec", "find_loader", "ImpImporter", "SafeConfigParser", "resetlocale"),
}


def used(tree: ast.AST) -> set[str]:
    """Returns the modules and names of a source that are gone."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names} & REMOVED_MODULES
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module.split(".")[0]} & REMOVED_MODULES
        elif isinstance(node, ast.Attribute):
            names |= {node.attr} & REMOVED_NAMES
    return names


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in SOURCES}))
def test_sources_compile_without_a_warning_and_use_nothing_that_is_gone(folder: str) -> None:
    """Sources compile without warnings, such as unknown escapes, and use no removed names."""
    bad = {}
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] != folder:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = compile(path.read_text(), str(path), "exec", ast.PyCF_ONLY_AST)
        if used(tree):
            bad[path.name] = used(tree)
    assert not bad


def test_the_range_of_versions_is_said_once() -> None:
    """The packages, their classifiers and the Makefile have the same versions."""
    ranges = {}
    for name in ("setup.cfg", "compat_tests/setup.cfg"):
        config = configparser.ConfigParser()
        config.read(ROOT / name)
        ranges[name] = config["options"]["python_requires"]
    assert len(set(ranges.values())) == 1
    match = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", ranges["setup.cfg"])
    assert match is not None
    versions = [f"3.{minor}" for minor in range(int(match[1]), int(match[2]))]
    text = (ROOT / "setup.cfg").read_text()
    assert re.findall(r"Programming Language :: Python :: (3\.\d+)", text) == versions
    assert f"\nPYTHONS := {' '.join(versions)}\n" in (ROOT / "Makefile").read_text()
