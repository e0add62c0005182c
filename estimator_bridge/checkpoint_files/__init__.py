"""Reads and writes checkpoints: files, checksums, row orders, object graphs, variable names."""

from estimator_bridge.checkpoint_files.bundle import CHUNK, Reader, Writer, find
from estimator_bridge.checkpoint_files.object_graph import Path
from estimator_bridge.checkpoint_files.stored_tensor import Layout, RowLayout, StoredTensor

__all__ = ["CHUNK", "Layout", "Path", "Reader", "RowLayout", "StoredTensor", "Writer", "find"]
