"""Reads and writes checkpoints: files, checksums, row orders, object graphs, variable names."""

from estimator_bridge.checkpoint_files.bundle import CHUNK, Reader, Writer, find
from estimator_bridge.checkpoint_files.object_graph import ObjectPath
from estimator_bridge.checkpoint_files.stored_tensor import RowLayout, StoredTensor, VariableLayout

__all__ = [
    "CHUNK",
    "ObjectPath",
    "Reader",
    "RowLayout",
    "StoredTensor",
    "VariableLayout",
    "Writer",
    "find",
]
