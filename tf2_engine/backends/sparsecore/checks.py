"""Refuses plans and calls that SparseCores cannot take, and warns of settings they ignore. Pure."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import errors, log, soft_sparsecore, sparsecore_rules, tf_compat
from tf2_engine.plan import Plan
from tf2_engine.types import Strategy

_log = log.PlainLogger(__name__)

_HOST = "or use driver='host', which can."


def check_plan(plan: Plan) -> None:
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
        sparsecore_rules.check(table.name, table.optimizer)
    if plan.pipeline_execution_with_tensor_core:
        _log.warning(
            "pipeline_execution_with_tensor_core=True: on SparseCores only the TPU's compiler can "
            "overlap steps. Here a lookup sees all updates before it."
        )


def check_eager() -> None:
    """Raises InvalidSpec in a `tf.Graph`, where stock's class does not work either."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise errors.InvalidSpec(
                "driver='sparsecore' works eagerly and in tf.functions, not in a tf.Graph, as of a "
                "TPUEstimator. Migrate the program to TensorFlow 2, or use driver='host'."
            )


def check_not_in_run(strategy: Strategy) -> None:
    """Raises OutOfOrder inside `strategy.run`, where variables on cores cannot be made."""
    context = tf.distribute.get_replica_context()
    if context is not None and context.strategy is strategy:
        raise errors.OutOfOrder(
            "The engine is not built, and its first batch is inside of `strategy.run`, where the "
            "variables of SparseCores cannot be made. Call `build` before, in `strategy.scope()`, "
            "or give a Keras layer its `batch_size`."
        )
