"""The tests of the software SparseCores fail if a mistake is added to the SparseCores."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.support.mutations import Mutation, assert_found

_HERE = pathlib.Path(__file__).parent
_STOCK, _ORDER, _WHOLE, _HOST = (
    "test_stock_on_software.py",
    "test_preprocessing.py",
    "test_soft_sparsecore.py",
    "test_host_arithmetic.py",
)
_REFERENCE = "test_buffers_are_those_of_the_reference"
_EVERY = "test_stock_trains_with_every_setting"

MUTATIONS = {
    "the combiner's scale is over distinct ids": Mutation(
        "software_sparsecore/occurrences.h",
        "merged * scale});",
        "weight(i - 1) * scale});",
        f"{_ORDER}::{_REFERENCE}",
    ),
    "no rotation": Mutation(
        "software_sparsecore/occurrences.h",
        "(bits + static_cast<uint32_t>(feature.rotation)) & mask",
        "bits & mask",
        f"{_ORDER}::{_REFERENCE}",
    ),
    "features of a table merge": Mutation(
        "software_sparsecore/occurrences.h",
        "sample % per + feature.row_offset / feature.sparse_cores + sparse_core * stack_per;",
        "sample % per + sparse_core * stack_per;",
        f"{_ORDER}::{_REFERENCE}",
    ),
    "the same id of a sample is sent twice": Mutation(
        "software_sparsecore/partitions.h",
        "if (same_id && triples[i - 1].row == triple.row) {",
        "if (false) {",
        f"{_ORDER}::{_REFERENCE}",
    ),
    "limits are one too high": Mutation(
        "software_sparsecore/partitions.h",
        "if (ids > max_ids) {",
        "if (ids > max_ids + 1) {",
        f"{_ORDER}::test_the_limits_are_kept",
    ),
    "partitions begin where the last ended": Mutation(
        "software_sparsecore/packing.h",
        "        at = next;\n",
        "        (void)next;\n",
        f"{_ORDER}::{_REFERENCE}",
    ),
    "gradients of the first core alone": Mutation(
        "software_sparsecore/table_kernels.h",
        'step.input(at.source, "activation_gradients")',
        'step.input(0, "activation_gradients")',
        f"{_STOCK}::test_stock_trains",
    ),
    "a gradient is not scaled by its gain": Mutation(
        "software_sparsecore/table_kernels.h",
        "+= at.gain * gradient[i];",
        "+= gradient[i];",
        f"{_STOCK}::test_stock_trains",
    ),
    "Adam's epsilon twice": Mutation(
        "rules/optimizers/adam.h",
        "std::sqrt(v) + epsilon",
        "std::sqrt(v) + 2.0f * epsilon",
        f"{_STOCK}::{_EVERY}[Adam, sum outside mean+sqrtn 2x2 weighted]",
    ),
    "FTRL without beta": Mutation(
        "rules/sparsecore.h",
        "(raised + beta) / lr",
        "raised / lr",
        f"{_STOCK}::{_EVERY}[FTRL mean+sqrtn 2x2 weighted]",
    ),
    "momentum without Nesterov": Mutation(
        "rules/optimizers/adagrad_momentum.h",
        "(nesterov ? mu * m + s : m)",
        "m",
        f"{_STOCK}::{_EVERY}[AdagradMomentum mean+sqrtn 2x2 weighted]",
    ),
    "a square is rounded before it is weighted": Mutation(
        "rules/rule.h",
        "return rest * g * g;",
        "return rest * (g * g);",
        f"{_HOST}::test_a_step_of_a_table_has_that_order[native]",
    ),
    "ids are not looked at": Mutation(
        "software_sparsecore/occurrences.h",
        "if (input.ids[i] >= 0 && input.ids[i] < feature.vocabulary) continue;",
        "continue;",
        f"{_WHOLE}::test_an_id_outside_of_its_table_is_an_error",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str, tmp_path: pathlib.Path) -> None:
    """With one mistake in the sources, the test of that point fails, and fails by an assertion."""
    mutation = MUTATIONS[name]
    file, _, test = mutation.test.partition("::")
    assert_found(mutation._replace(test=test), _HERE / file, tmp_path)
