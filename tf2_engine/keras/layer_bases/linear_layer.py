"""Layers for linear models over columns, and for a model that has only a bias."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, preprocessing
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras import columns as column_types
from tf2_engine.keras.columns import Numeric
from tf2_engine.keras.layer_bases import column_layers
from tf2_engine.keras.layer_bases.column_layers import FixedLayer
from tf2_engine.types import Object, Tensor

LinearColumn = Numeric | column_types.Indicator | preprocessing.Column


class LinearFeaturesLayer(column_layers.ColumnsLayer):
    """A linear model. It adds up the weights of categories, numbers times weights, and a bias.

        LinearFeatures([age, job], name="linear")(features)  # [batch, 1] float32

    All weights start at zero. As in `tf.estimator`, columns are added in the order of their names,
    and the bias last.

    Args:
        columns: `Numeric`, `Indicator`, or columns of `tf2_engine.preprocessing`.
        units: the number of logits per example.
        sparse_combiner: how to combine the weights, "sum", "mean" or "sqrtn", if an example has
            several categories in one column.

    Raises:
        WrongType: a column is of another kind, for instance a `TableColumn`.
    """

    def __init__(
        self,
        columns: LinearColumn | Sequence[LinearColumn],
        units: int = 1,
        sparse_combiner: str = "sum",
        name: str | None = None,
        **options: Object,
    ) -> None:
        for each in columns if isinstance(columns, Sequence) else [columns]:
            if not isinstance(each, LinearColumn):
                raise errors.WrongType(
                    f"{each!r} is not a column of a linear model. Pass a column of ids, a "
                    "Numeric, or an Indicator."
                )
        arguments = {"units": units, "sparse_combiner": sparse_combiner}
        super().__init__(columns, name, arguments, **options)
        self._units, self._combiner = units, sparse_combiner
        self._bias: Object = None

    def _make_variables(self) -> None:
        for each in self._columns:
            name, rows = column_types.scope_name(each), _rows(each)
            self._variables[column_types.column_name(each)] = self._zeros(
                f"{name}.weights", (rows, self._units)
            )
        self._bias = self._zeros("bias_weights", (self._units,))

    @do_not_convert
    def call(self, features: Mapping[str, Object]) -> Tensor:
        """Returns [batch, units] float32."""
        ids, all_weights, _ = self._preprocessing(features)
        weights, sums = all_weights or {}, []
        for each in self._columns:
            name = column_types.column_name(each)
            variable, of_ids = tf.convert_to_tensor(self._variables[name]), weights.get(name)
            if isinstance(each, preprocessing.Column):
                # All ids of an example are summed, for any number of dimensions.
                one_row = tf.sparse.reshape(ids[name], [ids[name].dense_shape[0], -1])
                looked_up = tf.nn.safe_embedding_lookup_sparse(
                    variable, one_row, of_ids, combiner=self._combiner
                )
                sums.append(looked_up)
            elif isinstance(each, Numeric):
                sums.append(tf.matmul(column_layers.numbers_of(each, features), variable))
            else:
                counts = column_layers.counts_of(ids[name], of_ids, _rows(each))
                flat = tf.reshape(counts, [tf.shape(counts)[0], _rows(each)])
                sums.append(tf.matmul(flat, variable))
        total = sums[0] if len(sums) == 1 else tf.add_n(sums)
        return tf.nn.bias_add(total, tf.convert_to_tensor(self._bias))

    def _zeros(self, name: str, shape: tuple[int, ...]) -> Object:
        return self.add_weight(name=name, shape=shape, initializer="zeros")  # type: ignore[attr-defined]


def _rows(column: LinearColumn) -> int:
    if isinstance(column, Numeric):
        return math.prod(column.shape)
    ids = column_layers.ids_of(column)
    assert ids is not None
    return column_types.num_buckets(ids)


class BaselineLayer(FixedLayer):
    """Returns the same logits for each example: a bias that starts at zero.

    A classifier thus learns how frequent the classes are, and a regressor the mean of the labels.

        Baseline(name="baseline")(features)  # [batch, 1] float32
    """

    def __init__(self, units: int = 1, name: str | None = None, **options: Object) -> None:
        super().__init__({"units": units}, name, **options)
        self._units = units
        self._bias: Object = None

    def _make_variables(self) -> None:
        self._bias = self.add_weight(  # type: ignore[attr-defined]
            name="bias", shape=(self._units,), initializer="zeros"
        )

    @do_not_convert
    def call(self, features: Mapping[str, Object]) -> Tensor:
        """Returns [batch, units] float32."""
        size = tf.shape(next(iter(features.values())), tf.int32)[0]
        return tf.convert_to_tensor(self._bias) * tf.ones([size, self._units])
