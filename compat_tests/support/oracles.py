"""The oracle of each property of the conformance suite, for the column "oracle" of its report.

stock run       stock's own code runs the same cases on a software TPU, as do the references
stock graph     the graph is compared with the ops that stock builds
reference only  results are compared with the float64 references, but not with stock
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

STOCK_RUN, STOCK_GRAPH, REFERENCE = "stock run", "stock graph", "reference only"

OF_TPU_EMBEDDING = ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL")
"""The optimizers that tf.tpu.experimental.embedding has in both versions of TensorFlow."""


class Oracle(NamedTuple):
    """The oracles of the tests in a file.

    Attributes:
        default: the oracle of most tests, one of the three above.
        stock_runs: maps each test whose cases stock runs too to the test in which it does. Tests
            with several optimizers run only those of `OF_TPU_EMBEDDING` with stock.
    """

    default: str
    stock_runs: Mapping[str, str] = MappingProxyType({})


FILES: dict[str, Oracle] = {
    "engine/test_conformance.py": Oracle(
        REFERENCE,
        {
            "test_steps_follow_the_reference": "test_steps_of_stock_follow_the_reference",
            "test_steps_follow_the_reference_in_every_combination": (
                "test_steps_of_stock_follow_the_reference"
            ),
        },
    ),
    "engine/test_lookup.py": Oracle(
        REFERENCE,
        {
            "test_inputs_follow_the_reference": "test_stock_looks_up_every_kind_of_input",
        },
    ),
    "engine/test_optimizers.py": Oracle(
        REFERENCE,
        {
            "test_rows_follow_the_reference": "test_rows_of_stock_follow_the_reference",
            "test_rows_follow_the_reference_under_all_settings": (
                "test_rows_of_stock_follow_the_reference"
            ),
        },
    ),
    "engine/test_optimizer_settings.py": Oracle(REFERENCE),
    "engine/test_pipelining.py": Oracle(
        REFERENCE,
        {
            "test_a_tpu_pipelines_alike": "test_stock_pipelines_as_the_engine",
            "test_activations_are_one_step_old": "test_stock_pipelines_as_the_engine",
        },
    ),
    "tpu/test_tpu_graphs.py": Oracle(STOCK_GRAPH),
    "tpu/test_tpu_driver.py": Oracle(STOCK_GRAPH),
    "tpu/test_tpu_driver_refusals.py": Oracle(STOCK_GRAPH),
    "estimator/test_software_tpu_estimator.py": Oracle(STOCK_RUN),
    "tpu/test_stock_conformance.py": Oracle(STOCK_RUN),
}
"""Maps the files of the suite to their oracles."""

OF_TPU_DRIVER = tuple(file for file, oracle in FILES.items() if oracle.default == STOCK_GRAPH)
"""The files that test only the TPU driver."""


def oracle_of(file: str, test: str, optimizer: str | None) -> str:
    """Returns the oracle of a test. Stock can only run tests of optimizers that it has.

    Args:
        optimizer: the key in `tf2_engine.OPTIMIZERS`; None for a test without a particular
            optimizer.
    """
    of_file = FILES[file]
    has_stock = optimizer is None or optimizer in OF_TPU_EMBEDDING
    return STOCK_RUN if test in of_file.stock_runs and has_stock else of_file.default
