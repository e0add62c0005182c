"""Gives tests access to stock's stacker of TPUEmbeddingV2. Import this only on TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tensorflow.core.protobuf.tpu import topology_pb2
from tensorflow.core.tpu.kernels import sparse_core_layout_pb2
from tensorflow.python.tpu import _pywrap_sparse_core_layout as stacker
from tensorflow.python.tpu import tpu_embedding_v3_checkpoint_adapter as adapter

from tf2_engine import soft_tpu
from tf2_engine.sparsecore_layout import SparseCores, StackableTable
from tf2_engine.types import Array, Message

TableLayouts = sparse_core_layout_pb2.SparseCoreTableLayouts


def layouts(
    tables: Sequence[StackableTable], sparse_cores: SparseCores, *, stacking: bool = True
) -> dict[str, Message]:
    """Maps names of tables to stock's layout protos. The tables' groups must be strings."""
    stock = stacker.SparseCoreLayoutStacker(
        num_partitions=sparse_cores.cores,
        sparse_cores_per_partition=sparse_cores.per_core,
        disable_table_stacking=not stacking,
    )
    for table in sorted(tables, key=lambda table: table.name):
        stock.AddTable(
            table_name=table.name,
            table_height=table.rows,
            table_width=table.dim,
            group=table.group,
            output_samples=table.samples,
            num_features=table.features,
        )
    return {layout.table_name: layout for layout in stock.GetLayouts().tables}


def stacked(tables: Sequence[Array], layouts: Sequence[Message]) -> Array:
    """Stacks tables, [rows, dim] each, with stock's checkpoint adapter."""
    first = layouts[0]
    rows = first.total_rows_per_sparse_core_shard * first.num_sparse_cores
    width = first.unsharded_padded_shape[1]
    return np.asarray(
        adapter._shard_from_cpu_to_sc(
            list(tables), f"{rows} {width} 0,{rows}:0,{width}", list(layouts)
        )
    )


def strategy(sparse_cores: SparseCores) -> soft_tpu.SoftTPUStrategy:
    """Creates a strategy whose cores report SparseCores, but have no kernels for them."""
    kind, tpu_strategy = (
        topology_pb2.TPUHardwareFeature,
        soft_tpu.SoftTPUStrategy(sparse_cores.cores),
    )
    feature = kind(embedding_feature=kind.V2, num_embedding_devices_per_chip=sparse_cores.per_core)
    resolver = tpu_strategy.extended._tpu_cluster_resolver
    # The constructor of TPUEmbeddingV2 reads this.
    resolver.__class__ = type("V2", (type(resolver),), {"tpu_hardware_feature": feature})
    return tpu_strategy
