"""Refuses plans and calls that SparseCores cannot take, and warns of what they ignore. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable

import tensorflow as tf

from tf2_engine import errors, soft_sparsecore, tf_compat
from tf2_engine.backends.sparsecore.update import RULES
from tf2_engine.optimizers import Optimizer
from tf2_engine.plan import Plan, TablePlan

_log = logging.getLogger(__name__)

_HOST = "or use driver='host', which can."

_REFUSED: tuple[tuple[Callable[[Optimizer], bool], str], ...] = (
    (
        lambda optimizer: type(optimizer).__name__ not in RULES,
        "SparseCores have no such optimizer. Use SGD, Adagrad, AdagradMomentum, Adam or FTRL, "
        + _HOST,
    ),
    (
        lambda optimizer: optimizer.clips_gradients,
        "SparseCores cannot clip gradients (clip_gradient_min, clip_gradient_max): the sum of a "
        "row's gradients exists only inside of the op. Drop the limits, " + _HOST,
    ),
    (
        lambda optimizer: bool(optimizer.weight_decay_factor),
        "SparseCores cannot decay weights (weight_decay_factor). Set it to None, " + _HOST,
    ),
    (
        lambda optimizer: not optimizer.use_gradient_accumulation,
        "SparseCores always accumulate gradients over the global batch "
        "(use_gradient_accumulation=False). Set it to True, " + _HOST,
    ),
    (
        lambda optimizer: optimizer.updates_all_rows,
        "SparseCores update the rows of a batch alone (lazy_adam=False). Set it to True, " + _HOST,
    ),
    (
        lambda optimizer: getattr(optimizer, "initial_accumulator_value", 1.0) == 0.0,
        "from an accumulator of 0 the rules of SparseCores compute 0 / 0, which is NaN "
        "(initial_accumulator_value=0). Use a small positive number, " + _HOST,
    ),
)
"""What of an optimizer is refused, and the rest of the message."""


def check_plan(plan: Plan) -> None:
    """Raises InvalidSpec for a plan that SparseCores cannot honour."""
    if plan.out_of_range_ids == "drop":
        raise errors.InvalidSpec(
            "out_of_range_ids='drop' is not possible on SparseCores: they take ids as they are. "
            "Remove such ids in the dataset, " + _HOST
        )
    if not tf_compat.has_ops(soft_sparsecore.KERNELS):
        raise errors.InvalidSpec(
            f"driver='sparsecore': TensorFlow {tf.__version__} has no ops of SparseCores. Use "
            "TensorFlow 2.21, " + _HOST
        )
    for table in plan.tables:
        _check_table(table)
    for feature in plan.features:
        if feature.max_sequence_length:
            raise errors.InvalidSpec(
                f"{feature.where}: max_sequence_length={feature.max_sequence_length} is not "
                "possible on SparseCores, which have no sequences. Give the feature an "
                "`output_shape` with a row of ids for each position, " + _HOST
            )
    if plan.pipeline_execution_with_tensor_core:
        _log.warning(
            "pipeline_execution_with_tensor_core=True: on SparseCores only the TPU's compiler can "
            "overlap steps. Here a lookup sees all updates before it."
        )


def check_eager() -> None:
    """Raises InvalidSpec in a `tf.Graph`, in which stock's class does not work either."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise errors.InvalidSpec(
                "driver='sparsecore' works eagerly and in tf.functions, not in a tf.Graph, as of a "
                "TPUEstimator. Migrate the program to TensorFlow 2, or use driver='host'."
            )


def _check_table(table: TablePlan) -> None:
    for is_refused, reason in _REFUSED:
        if is_refused(table.optimizer):
            raise errors.InvalidSpec(
                f"Table {table.name!r}, optimizer {type(table.optimizer).__name__}: {reason}"
            )
