"""A checkpoint of the program that is to read the new one: its objects say what goes where."""

from __future__ import annotations

from collections.abc import Iterator

from estimator_bridge import errors
from estimator_bridge.convert import object_graph
from estimator_bridge.convert.bundle import Reader, Tensor
from estimator_bridge.convert.contents import Contents, Found, Options


class Template:
    """The places of an object checkpoint, such as a Keras program saves before it trains.

    Args:
        reader: of the checkpoint.
        options: those of the conversion.

    Attributes:
        graph: its object graph, serialised, which the new checkpoint is to have.

    Raises:
        InvalidInput: it is no object checkpoint, or has no table.
    """

    def __init__(self, reader: Reader, options: Options) -> None:
        self._reader = reader
        contents = Contents(reader, Options(spec=options.spec, root=options.root))
        if contents.objects is None:
            raise errors.InvalidInput(
                f"`like`: {reader.prefix} is no object checkpoint, so it cannot say where things "
                "go in one. Give one that the TF2 program saved."
            )
        self._names = contents.objects.names
        self._tables = {table.known.name: table for table in contents.tables}
        self._of_tables = {part for table in contents.tables for part in table.parts.values()}
        self.graph = reader.strings(reader.tensors[object_graph.KEY])[0]

    def place_of_part(self, table: Found, part: str, shape: tuple[int, ...]) -> str | None:
        """Returns the key for the parameters or a slot of a table; None if it has no place.

        Raises:
            InvalidInput: the place has another shape.
        """
        found = self._tables.get(table.known.name)
        key = None if found is None else found.parts.get(part)
        if key is not None and self._reader.tensors[key].shape != shape:
            raise errors.InvalidInput(
                f"Table {table.known.name!r} is {list(shape)}, but {key!r} of "
                f"{self._reader.prefix} is {list(self._reader.tensors[key].shape)}."
            )
        return key

    def place_of_variable(self, name: str, tensor: Tensor) -> str | None:
        """Returns the key for a variable: by path or key, else by its name; None if it has none.

        Raises:
            InvalidInput: the place has another shape or type.
        """
        tensors = self._reader.tensors
        for key in (name, f"{name}{object_graph.END}"):
            if key in tensors and key not in self._of_tables:
                place = tensors[key]
                if self._differs(place, tensor):
                    raise errors.InvalidInput(
                        f"{tensor.name!r} is {tensor.dtype.name}{list(tensor.shape)}, but {key!r} "
                        f"of {self._reader.prefix} is {place.dtype.name}{list(place.shape)}."
                    )
                return key
        return self._named(name, tensor)

    def place_of_object(self, tensor: Tensor, name: str | None) -> str | None:
        """Returns the key for a variable of another object checkpoint; None if it has none.

        It is that of the same path. Where a number counts the variables of a list, as those of an
        optimizer, there may be others in this one, and it goes by the name.
        """
        place = self._reader.tensors.get(tensor.name)
        counted = any(part.isdigit() for part in tensor.name.split("/"))
        if place is None or counted or self._differs(place, tensor):
            return None if name is None else self._named(name, tensor)
        return tensor.name

    def _named(self, name: str, tensor: Tensor) -> str | None:
        found = [
            key
            for key, full_name in self._names.items()
            if full_name == name
            and key not in self._of_tables
            and key in self._reader.tensors
            and not self._differs(self._reader.tensors[key], tensor)
        ]
        return found[0] if len(found) == 1 else None

    @staticmethod
    def _differs(place: Tensor, tensor: Tensor) -> bool:
        return (place.shape, place.dtype) != (tensor.shape, tensor.dtype)

    def others(self, taken: set[str]) -> Iterator[Tensor]:
        """Yields what stays as it is in this checkpoint."""
        for key, tensor in self._reader.tensors.items():
            if key not in taken and key != object_graph.KEY:
                yield tensor
