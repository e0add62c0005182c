"""If a mistake is added to the software TPU, its tests fail: the references do not share it."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.support.mutations import Mutation, assert_found

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


@pytest.mark.full
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str, tmp_path: pathlib.Path) -> None:
    """With one mistake in the sources, the test of that point fails, and fails by an assertion."""
    tests = pathlib.Path(__file__).with_name("test_software_tpu.py")
    assert_found(MUTATIONS[name], tests, tmp_path)
