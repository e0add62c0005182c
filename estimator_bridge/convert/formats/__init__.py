"""The formats of checkpoints, with one interface: by name, by object, for SparseCores."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.formats.checkpoint_format import Format
from estimator_bridge.convert.formats.name_format import NameFormat
from estimator_bridge.convert.formats.object_format import ObjectFormat
from estimator_bridge.convert.formats.sparsecore_format import SparseCoreFormat, is_sparse_core

FORMATS: Mapping[str, Format] = {
    each.form: each for each in (NameFormat(), ObjectFormat(), SparseCoreFormat())
}


def format_of(reader: Reader) -> Format:
    if object_graph.KEY not in reader.tensors:
        return FORMATS["names"]
    return FORMATS["sparsecore" if is_sparse_core(reader) else "object"]
