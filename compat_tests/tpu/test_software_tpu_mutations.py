"""A software TPU with a mistake in it does not pass its tests: the references are no echo of it."""

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
    """A mistake, and which test finds it.

    Attributes:
        file: of the sources.
        before, after: what is replaced; it is there once.
        test: in test_software_tpu.py.
    """

    file: str
    before: str
    after: str
    test: str


MUTATIONS = {
    "combiners of features taken by table": Mutation(
        "software_tpu/embedding_kernels.h",
        "*combiner = combiners_[feature];",
        "*combiner = combiners_[config.features[feature].table];",
        "test_combiners_are_given_per_feature_or_per_table",
    ),
    "no barrier": Mutation(
        "software_tpu/batch_queue.h",
        "|| !MayLookUp(steps, at)",
        "",
        "test_no_core_looks_up_before_all_cores_have_sent",
    ),
    "other cores before the owner": Mutation(
        "software_tpu/tables.h",
        "std::make_pair(a.core != owner, a.core) < std::make_pair(b.core != owner, b.core)",
        "std::make_pair(a.core == owner, a.core) < std::make_pair(b.core == owner, b.core)",
        "test_colliding_ids_are_applied_core_by_core",
    ),
    "pipelining hides nothing": Mutation(
        "software_tpu/batch_queue.h",
        "if (config_.pipelined) {",
        "if (false) {",
        "test_lookups_see_the_updates_that_they_should",
    ),
    "mod taken for div": Mutation(
        "software_tpu/tables.h",
        "return mod_ ? shard_ + local * num_shards_ : first_ + local;",
        "return first_ + local;",
        "test_hosts_hold_the_rows_that_the_strategy_gives_them",
    ),
}

PROGRAM = """
import pathlib, sys, pytest
from tf2_engine.native import build
build.SOURCES = pathlib.Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", sys.argv[2], "-k", sys.argv[3]]))
"""


@pytest.mark.full
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str, tmp_path: pathlib.Path) -> None:
    """With one mistake in the sources, the test of that point fails, and fails by an assertion."""
    mutation = MUTATIONS[name]
    sources = tmp_path / "native"
    shutil.copytree(build.SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    text = (sources / mutation.file).read_text()
    assert text.count(mutation.before) == 1
    (sources / mutation.file).write_text(text.replace(mutation.before, mutation.after))
    tests = pathlib.Path(__file__).with_name("test_software_tpu.py")

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(sources), str(tests), mutation.test],
        capture_output=True,
        text=True,
        env={**os.environ, cache.VARIABLE: str(tmp_path / "cache")},
    )

    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    assert "AssertionError" in ran.stdout or "E       assert" in ran.stdout, ran.stdout
    assert " error" not in ran.stdout.splitlines()[-1]
