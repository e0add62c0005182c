"""`LinearSDCA`: the settings of stochastic dual coordinate ascent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import Object


@dataclasses.dataclass(eq=False, repr=False)
class LinearSDCA:
    """Stochastic dual coordinate ascent, as the `optimizer` of a linear estimator.

    It minimizes the mean loss of the examples plus l1 and l2 regularization, and has no learning
    rate. It keeps four numbers for every example, so examples need names. It is for classifiers of
    two classes and regressors of one number, with columns of `tf.feature_column`.

    Args:
        example_id_column: the feature with the name of each example, a string.
        num_loss_partitions: how many workers train at a time.
        num_table_shards: the number of tables for the examples' numbers; None means one.
        symmetric_l1_regularization: the factor of the sum of absolute weights, 0 or more.
        symmetric_l2_regularization: the factor of half the sum of squares, above 0.
        adaptive: whether to train examples with a larger loss more often.

    Reference: Shalev-Shwartz and Zhang, "Stochastic Dual Coordinate Ascent Methods for Regularized
    Loss Minimization", 2013; with the distributed variant of Ma et al., 2015.
    """

    example_id_column: str
    num_loss_partitions: int = 1
    num_table_shards: int | None = None
    symmetric_l1_regularization: float = 0.0
    symmetric_l2_regularization: float = 1.0
    adaptive: bool = False


def check_sdca(
    optimizer: Object, columns: Sequence[Object], sparse_combiner: str, outputs: int, most: int
) -> None:
    """Raises InvalidInput if a LinearSDCA does not fit the other arguments of an estimator.

    Args:
        outputs: the number of classes, or of numbers in a label.
        most: the largest possible number of outputs.
    """
    if not isinstance(optimizer, LinearSDCA):
        return
    if sparse_combiner != "sum":
        raise errors.InvalidInput(
            'sparse_combiner must be "sum" when optimizer is a LinearSDCA object, got '
            f"{sparse_combiner!r}."
        )
    if not tf_compat.is_new_column(columns):
        raise errors.InvalidInput(
            "V2 feature columns required when optimizer is a LinearSDCA object. Use those of "
            "tf.feature_column."
        )
    if outputs > most and most == 1:
        raise errors.InvalidInput(
            "LinearSDCA can only be used with one-dimensional label, got "
            f"label_dimension={outputs}. Use optimizer='Ftrl'."
        )
    if outputs > most:
        raise errors.InvalidInput(
            f"LinearSDCA cannot be used in a multi-class setting, got n_classes={outputs}. Use "
            "optimizer='Ftrl'."
        )
