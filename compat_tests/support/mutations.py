"""Adds a mistake to the native sources, and runs the test that must find it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

from tf2_engine.native import build, cache


class Mutation(NamedTuple):
    """A mistake, and the test that finds it.

    Attributes:
        file: the source file to change.
        before, after: the text to replace, which must occur once, and the replacement.
        test: the test's name in its file, as in pytest.
    """

    file: str
    before: str
    after: str
    test: str


_PROGRAM = """
import pathlib, sys, pytest
from tf2_engine.native import build
build.SOURCES = pathlib.Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", sys.argv[2]]))
"""


def assert_found(mutation: Mutation, tests: pathlib.Path, folder: pathlib.Path) -> None:
    """Asserts that the test fails with the mistake, because of a failed assertion."""
    sources = folder / "native"
    shutil.copytree(build.SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    text = (sources / mutation.file).read_text()
    assert text.count(mutation.before) == 1
    (sources / mutation.file).write_text(text.replace(mutation.before, mutation.after))

    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(sources), f"{tests}::{mutation.test}"],
        capture_output=True,
        text=True,
        # Speed does not matter here, and compilation is faster without optimization.
        env={**os.environ, cache.VARIABLE: str(folder / "cache"), "CXXFLAGS": "-O0"},
    )

    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    signs = ("AssertionError", "E       assert", "DID NOT RAISE")
    assert any(sign in ran.stdout for sign in signs), ran.stdout
    assert " error" not in ran.stdout.splitlines()[-1]
