"""A new object checkpoint with the objects of another one, such as a Keras program saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import RowLayout, StoredTensor, Writer, object_graph
from estimator_bridge.convert.formats.checkpoint_format import (
    Contents,
    Gap,
    StoredTable,
    Target,
    variable_move,
)
from estimator_bridge.convert.moves import RowMove, TensorMove
from tf2_engine.tables import PARAMETERS


class TemplateTarget(Target):
    """An object checkpoint with all objects of another one, the template.

    Args:
        template: the contents of the template.
        rename: the paths, keys or names of variables in the template, by legacy name.
    """

    form = "object"
    basename = "ckpt"

    def __init__(self, template: Contents, rename: Mapping[str, str]) -> None:
        self._template = template
        self._rename = rename
        self._tensors = template.reader.tensors
        self._tables = {table.known.name: table for table in template.tables}
        self._parts = {
            part.name for table in template.tables for part in table.parts.values() if part
        }
        self._graph = template.reader.strings(self._tensors[object_graph.KEY])[0]

    def table(self, table: StoredTable, layout: RowLayout) -> Iterator[TensorMove | Gap]:
        name, shape = table.known.name, table.parameters.shape
        places = self._tables[name].parts if name in self._tables else {}
        for part, source in table.parts.items():
            place = places.get(part)
            if place is not None and place.shape != shape:
                raise errors.InvalidInput(
                    f"Table {name!r} is {list(shape)}, but {place.name!r} of "
                    f"{self._template.reader.prefix} is {list(place.shape)}."
                )
            if source is None:
                continue
            if place is None:
                described = f"the table {name!r}" if part == PARAMETERS else f"a slot {part!r}"
                yield Gap(source.name, f"`like` has no place for {described}")
                continue
            yield RowMove(
                target=place.name,
                source=source,
                description=f"table {name!r}, {part}",
                shape=shape,
                old_layout=layout,
                new_layout=RowLayout(shape[0]),
            )

    def variable(
        self, tensor: StoredTensor, name: str | None, full_name: str | None
    ) -> Iterator[TensorMove | Gap]:
        if name is None:
            key = self._key_of_object(tensor, full_name)
        else:
            key = self._key_of_variable(self._rename.get(name, name), tensor)
        if key is None:
            reason = "`like` has no variable of its name and shape; --rename NAME=PATH says which"
            yield Gap(tensor.name, reason)
        else:
            yield variable_move(tensor, key)

    def unchanged(self, targets: set[str]) -> Iterator[TensorMove]:
        for key, tensor in self._tensors.items():
            if key not in targets and key != object_graph.KEY:
                yield dataclasses.replace(variable_move(tensor, key), description="as in `like`")

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        writer.string(object_graph.KEY, self._graph)

    def _key_of_variable(self, name: str, tensor: StoredTensor) -> str | None:
        """Returns the key for a variable, by path or key, else by its name; None if it has none."""
        for key in (name, f"{name}{object_graph.END}"):
            if key in self._tensors and key not in self._parts:
                place = self._tensors[key]
                if _differ(place, tensor):
                    raise errors.InvalidInput(
                        f"{tensor.name!r} is {tensor}, but {key!r} of "
                        f"{self._template.reader.prefix} is {place}."
                    )
                return key
        return self._key_by_name(name, tensor)

    def _key_of_object(self, tensor: StoredTensor, full_name: str | None) -> str | None:
        """Returns the key for a variable of another object checkpoint; None if it has none.

        The key is the same where the path is. Where a number counts the variables of a list, as
        those of an optimizer, the template may count others, so the name decides.
        """
        place = self._tensors.get(tensor.name)
        counted = any(part.isdigit() for part in tensor.name.split("/"))
        if place is None or counted or _differ(place, tensor):
            return None if full_name is None else self._key_by_name(full_name, tensor)
        return tensor.name

    def _key_by_name(self, name: str, tensor: StoredTensor) -> str | None:
        keys = [
            key
            for key, full_name in self._template.full_names.items()
            if full_name == name
            and key not in self._parts
            and key in self._tensors
            and not _differ(self._tensors[key], tensor)
        ]
        return keys[0] if len(keys) == 1 else None


def _differ(place: StoredTensor, tensor: StoredTensor) -> bool:
    return (place.shape, place.dtype) != (tensor.shape, tensor.dtype)
