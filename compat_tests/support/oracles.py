"""The oracle of each property of the conformance suite: the column "oracle" of its report.

stock run       stock's own code runs the same cases on a software TPU, beside the references
stock graph     the ops that stock builds
reference only  the float64 references, and nothing of stock
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

STOCK_RUN, STOCK_GRAPH, REFERENCE = "stock run", "stock graph", "reference only"

OF_TPU_EMBEDDING = ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL")
"""The optimizers of tf.tpu.experimental.embedding, in both versions of TensorFlow."""


class Oracle(NamedTuple):
    """The oracles of the tests of a file.

    Attributes:
        default: one of the three above.
        stock_runs: the tests whose cases stock runs too, and in which test; those that vary the
            optimizer, with the optimizers that stock has.
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
            "test_activations_follow_the_reference": "test_stock_looks_up_every_kind_of_input",
            "test_gradients_are_the_transpose": "test_stock_looks_up_every_kind_of_input",
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
"""The files of the suite."""

OF_TPU_DRIVER = tuple(file for file, oracle in FILES.items() if oracle.default == STOCK_GRAPH)
"""Those about the TPU driver alone."""


def oracle_of(file: str, test: str, optimizer: str | None) -> str:
    """Returns the oracle of a test; stock runs those of optimizers that it has.

    Args:
        optimizer: its key in `tf2_engine.OPTIMIZERS`, or None where a test is about none.
    """
    of_file = FILES[file]
    has_stock = optimizer is None or optimizer in OF_TPU_EMBEDDING
    return STOCK_RUN if test in of_file.stock_runs and has_stock else of_file.default
