"""The two formats of checkpoints, behind one interface: by name and by object."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.formats.checkpoint_format import Format
from estimator_bridge.convert.formats.name_format import NameFormat
from estimator_bridge.convert.formats.object_format import ObjectFormat

FORMATS: Mapping[str, Format] = {each.form: each for each in (NameFormat(), ObjectFormat())}


def format_of(reader: Reader) -> Format:
    """Returns the format of an open checkpoint."""
    return FORMATS["object" if object_graph.KEY in reader.tensors else "names"]
