"""Legacy `TableConfig` and `FeatureConfig`, the values of config dicts."""

from __future__ import annotations

import collections

from estimator_bridge import errors
from estimator_bridge.legacy.parameters import is_parameters
from estimator_bridge.legacy.requirements import Requirement, check_settings, one_of, optional
from estimator_bridge.settings.legacy_spec import OfStep
from tf2_engine import tf_compat
from tf2_engine.arguments import typed
from tf2_engine.tables import default_initializer
from tf2_engine.types import Initializer, Object

COMBINERS = ("mean", "sum", "sqrtn", None)

_POSITIVE_INT = Requirement(
    lambda value: not isinstance(value, int) or value < 1, "`{name}` must be a positive int"
)
_OF_TABLE = {
    "vocabulary_size": _POSITIVE_INT,
    "dimension": _POSITIVE_INT,
    "initializer": optional(
        Requirement(lambda value: not callable(value), "`{name}` must be callable")
    ),
    "combiner": one_of(COMBINERS, f"`{{name}}` must be one of {COMBINERS}"),
    "optimization_parameters": Requirement(
        lambda value: value is not None and not is_parameters(value),
        "`{name}` must be one of the `*Parameters` of TPU embeddings",
    ),
}


# If TensorFlow has these classes, stock's estimator accepts only instances of them.
_TableBase: Object = tf_compat.legacy_tpu_class("TableConfig") or collections.namedtuple(
    "_TableConfig",
    "vocabulary_size dimension initializer combiner hot_id_replication learning_rate "
    "learning_rate_fn optimization_parameters",
)
_FeatureBase: Object = tf_compat.legacy_tpu_class("FeatureConfig") or collections.namedtuple(
    "_FeatureConfig", "table_id max_sequence_length weight_key"
)


@typed
class TableConfig(_TableBase):
    """One embedding table.

    Attributes:
        initializer: None means a truncated normal of standard deviation 1 / sqrt(dimension).
        combiner: "mean", "sum", "sqrtn", or None for one id per sample.
        hot_id_replication: asks a TPU to keep frequent rows on every core.
        learning_rate: None and 0.0 mean the optimizer's rate.
        learning_rate_fn: called with the global step; returns the rate of that step.
        optimization_parameters: the optimizer of this table; None means the spec's optimizer.

    Raises:
        InvalidSpec: a setting is out of range.
    """

    def __new__(
        cls,
        vocabulary_size: int,
        dimension: int,
        initializer: Initializer | None = None,
        combiner: str | None = "mean",
        hot_id_replication: bool = False,
        learning_rate: float | None = None,
        learning_rate_fn: OfStep | None = None,
        optimization_parameters: Object = None,
    ) -> TableConfig:
        settings = dict(locals())
        check_settings("TableConfig", settings, _OF_TABLE)
        if learning_rate is not None and learning_rate_fn is not None:
            raise errors.InvalidSpec(
                f"`TableConfig`: `learning_rate` is {learning_rate!r} and `learning_rate_fn` is "
                f"{learning_rate_fn!r}; give at most one of them."
            )
        settings["initializer"] = initializer or default_initializer(dimension)
        return super().__new__(cls, **{name: settings[name] for name in cls._fields})


@typed
class FeatureConfig(_FeatureBase):
    """One feature of a table.

    Attributes:
        table_id: key of the feature's table in `table_to_config_dict`.
        max_sequence_length: the length T to which sequences are cut; 0 if the feature is not a
            sequence.
        weight_key: key of the feature that contains the weights of this feature's ids.

    Raises:
        InvalidSpec: `max_sequence_length` is not an int of at least 0.
    """

    def __new__(
        cls, table_id: str, max_sequence_length: int = 0, weight_key: str | None = None
    ) -> FeatureConfig:
        if not isinstance(max_sequence_length, int) or max_sequence_length < 0:
            raise errors.InvalidSpec(
                "`FeatureConfig`: `max_sequence_length` must be an int of at least 0, got "
                f"{max_sequence_length!r} (table {table_id!r})."
            )
        return super().__new__(cls, table_id, max_sequence_length, weight_key)
