"""`EmbeddingConfigSpec`: the tables, features and optimizer of a legacy program."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import (
    check,
    class_names,
    is_tensor_core_column,
    is_tpu_column,
    one_of,
)
from estimator_bridge.settings.legacy_spec import OfStep
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS, kind_of
from estimator_bridge.settings.quirks import checked_quirks, default_quirks, set_default_quirks
from tf2_engine.arguments import typed
from tf2_engine.types import Object

__all__ = ["EmbeddingConfigSpec", "default_quirks", "set_default_quirks"]

# The tables of these columns are ordinary variables. Stock's constructor accepts these columns,
# because it does not know whether a TPU will be used. (It refuses the newer SharedEmbeddingColumn.)
_ORDINARY_COLUMNS = {
    *("NumericColumn", "EmbeddingColumn"),
    *("_NumericColumn", "_EmbeddingColumn", "_SharedEmbeddingColumn"),
}

_DIV_OR_MOD = one_of(("div", "mod"), 'Invalid {name} {value}. Must be one of "mod" or "div"')


_Spec = collections.namedtuple(
    "_Spec",
    "feature_columns tensor_core_feature_columns optimization_parameters clipping_limit "
    "pipeline_execution_with_tensor_core experimental_gradient_multiplier_fn "
    "feature_to_config_dict table_to_config_dict partition_strategy profile_data_directory",
)


@typed
class EmbeddingConfigSpec(_Spec):
    """Tables, features, optimizer and engine options: a tuple of stock's ten fields.

    Give either `feature_columns`, or both `feature_to_config_dict` and `table_to_config_dict`.
    Columns, configs and optimizers may be stock's or the bridge's.

    Attributes:
        feature_columns: columns of `tf.compat.v1.tpu.experimental.embedding_column` and
            `shared_embedding_columns`. Ordinary embedding and numeric columns are accepted here,
            but refused when the spec is used with use_tpu=True.
        tensor_core_feature_columns: those `feature_columns` whose tables are ordinary variables on
            the TPU (`embedding_lookup_device="tpu_tensor_core"`).
        optimization_parameters: the optimizer of tables without an optimizer of their own.
        clipping_limit: upper bound of a weight's absolute value. Stock ignores it;
            quirks="documented" applies it.
        pipeline_execution_with_tensor_core: if True, a step looks up rows as they were before the
            previous step's update.
        experimental_gradient_multiplier_fn: called with the global step; returns a factor for the
            gradients of all activations.
        feature_to_config_dict, table_to_config_dict: map the names of features to `FeatureConfig`s,
            and the names of tables to `TableConfig`s.
        partition_strategy: "div" gives each host a block of rows, and "mod" assigns the rows to the
            hosts in turn.
        profile_data_directory: the directory for lookup statistics of a TPU.

    Raises:
        InvalidSpec: neither `feature_columns` nor the dicts are given, or both are; a setting is
            out of range; or the optimizer is not available with `feature_columns`.
        WrongType: a column or config has the wrong type.
    """

    def __new__(
        cls,
        feature_columns: Sequence[Object] | None = None,
        optimization_parameters: Object = None,
        clipping_limit: float | None = None,
        pipeline_execution_with_tensor_core: bool = False,
        experimental_gradient_multiplier_fn: OfStep | None = None,
        feature_to_config_dict: Mapping[str, Object] | None = None,
        table_to_config_dict: Mapping[str, Object] | None = None,
        partition_strategy: str = "div",
        profile_data_directory: str | None = None,
        *,
        quirks: str | None = None,
    ) -> EmbeddingConfigSpec:
        """Makes a spec. Where stock's code and documentation differ, `quirks` decides.

        "stock" follows the code, "documented" follows the documentation, and None means the
        process's default.
        """
        arguments = dict(locals())
        if bool(feature_columns) == bool(feature_to_config_dict and table_to_config_dict):
            raise errors.InvalidSpec(
                "`EmbeddingConfigSpec`: Exactly one of `feature_columns` and the pair "
                "`feature_to_config_dict` and `table_to_config_dict` is needed, got "
                f"{feature_columns=}, {feature_to_config_dict=}, {table_to_config_dict=}."
            )
        check("EmbeddingConfigSpec", "partition_strategy", partition_strategy, _DIV_OR_MOD)
        fields = {name: arguments.get(name) for name in cls._fields}
        if feature_columns:
            columns, tensor_core_columns = _sorted_out(feature_columns)
            fields.update(feature_columns=columns, tensor_core_feature_columns=tensor_core_columns)
            _check_optimizer_of_columns(optimization_parameters)
        else:
            fields["feature_columns"] = None
            _check_configs(feature_to_config_dict or {}, table_to_config_dict or {})
        spec = super().__new__(cls, **fields)
        spec._quirks = checked_quirks(default_quirks() if quirks is None else quirks)
        return spec

    _quirks: str

    @property
    def quirks(self) -> str:
        """The argument `quirks`. It is not a field, because programs unpack stock's ten fields."""
        # `_make` creates specs without the constructor.
        return getattr(self, "_quirks", default_quirks())

    def to_tf2(
        self, *, step: Object = None, target: str | None = None, batch_size: int | None = None
    ) -> Object:
        """Translates the spec to TensorFlow 2's classes; see `migrate.to_tf2`."""
        from estimator_bridge.migrate.legacy_specs.spec_to_tf2 import to_tf2

        return to_tf2(self, step=step, target=target, batch_size=batch_size)

    def _replace(self, **changes: Object) -> EmbeddingConfigSpec:
        quirks = checked_quirks(changes.pop("quirks", self.quirks))
        spec = super()._replace(**changes)
        vars(spec).update(vars(self), _quirks=quirks)
        return spec

    def __reduce_ex__(self, protocol: Object) -> Object:
        # The constructor's arguments differ from the fields, which breaks stock's pickle and copy.
        return type(self)._make, (tuple(self),), dict(vars(self))

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, quirks={self.quirks!r})"


def _sorted_out(feature_columns: Sequence[Object]) -> tuple[list[Object], list[Object]]:
    columns: list[Object] = []
    tensor_core_columns: list[Object] = []
    for column in feature_columns:
        if not is_tpu_column(column) and not _ORDINARY_COLUMNS.intersection(class_names(column)):
            raise errors.WrongType(
                "`EmbeddingConfigSpec`: All feature columns must be supported types, but "
                f"{column!r} in `feature_columns` is a {type(column).__name__}. Make it with "
                "tf.compat.v1.tpu.experimental.embedding_column or shared_embedding_columns."
            )
        (tensor_core_columns if is_tensor_core_column(column) else columns).append(column)
    return columns, tensor_core_columns


def _check_optimizer_of_columns(optimizer: Object) -> None:
    kind = kind_of(optimizer)
    if kind is None or not OPTIMIZERS[kind].for_columns:
        known = ", ".join(name for name, row in OPTIMIZERS.items() if row.for_columns)
        raise errors.InvalidSpec(
            "`EmbeddingConfigSpec`: with `feature_columns`, `optimization_parameters` must be one "
            f"of {known}; got {optimizer!r}. Other optimizers need the config dicts."
        )


def _check_configs(features: Mapping[str, Object], tables: Mapping[str, Object]) -> None:
    for feature, config in features.items():
        where = f"`feature_to_config_dict`: feature {feature!r}"
        if not hasattr(config, "table_id") or not hasattr(config, "max_sequence_length"):
            raise errors.WrongType(f"{where} must be of type `FeatureConfig`, got {config!r}.")
        if config.table_id not in tables:
            raise errors.InvalidSpec(
                f"{where} refers to table {config.table_id!r}, which is not in the "
                f"table_to_config_dict; the dict has {sorted(tables)}."
            )
    for table, config in tables.items():
        if not hasattr(config, "vocabulary_size") or not hasattr(config, "dimension"):
            raise errors.WrongType(
                f"`table_to_config_dict`: table {table!r} must be of type `TableConfig` (the "
                f"legacy class), got {config!r}."
            )
