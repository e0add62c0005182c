"""The checkpoint formats (by name, by object, SparseCores, PyTorch), with one interface."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.checkpoint_files import Reader, find, object_graph
from estimator_bridge.checkpoint_files.safetensors_files import SafetensorsReader
from estimator_bridge.convert.formats import torch_format
from estimator_bridge.convert.formats.checkpoint_format import Format
from estimator_bridge.convert.formats.name_format import NameFormat
from estimator_bridge.convert.formats.object_format import ObjectFormat
from estimator_bridge.convert.formats.sparsecore_format import SparseCoreFormat, is_sparse_core

FORMATS: Mapping[str, Format] = {
    each.form: each
    for each in (NameFormat(), ObjectFormat(), SparseCoreFormat(), torch_format.TorchFormat())
}


def open_checkpoint(path: str, form: str | None = None) -> Reader:
    if form == "torch" or (form is None and torch_format.is_of_torch(path)):
        return torch_format.open_files(path)
    return Reader(find(path))


def format_of(reader: Reader) -> Format:
    if isinstance(reader, (SafetensorsReader, torch_format.StateDictReader)):
        return FORMATS["torch"]
    if object_graph.KEY not in reader.tensors:
        return FORMATS["names"]
    return FORMATS["sparsecore" if is_sparse_core(reader) else "object"]
