"""Reads and writes checkpoints: files, checksums, row orders, object graphs, variable names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.checkpoint_files.bundle import CHUNK, Reader, Writer, find
    from estimator_bridge.checkpoint_files.object_graph import Path
    from estimator_bridge.checkpoint_files.stored_tensor import Layout, RowLayout, StoredTensor

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "estimator_bridge.checkpoint_files.bundle": ["CHUNK", "Reader", "Writer", "find"],
        "estimator_bridge.checkpoint_files.object_graph": ["Path"],
        "estimator_bridge.checkpoint_files.stored_tensor": ["Layout", "RowLayout", "StoredTensor"],
    },
)
