"""The object graph of a TF2 checkpoint, which maps the paths of variables to checkpoint keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge import errors
from estimator_bridge.checkpoint_files.bundle import Reader
from estimator_bridge.checkpoint_files.bundle_protos import STRING, ObjectGraph
from tf2_engine.types import Message

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The tensor that contains the graph. A checkpoint without this tensor is name-based."""

_ATTRIBUTE = "VARIABLE_VALUE"
END = f"/.ATTRIBUTES/{_ATTRIBUTE}"
"""The suffix of a variable's key in a checkpoint; the key begins with the variable's path."""

ObjectPath = tuple[str, ...]

LAYOUTS_PATH: ObjectPath = ("_sparse_core_table_layouts",)
"""The path, below stock's TPUEmbeddingV2, of the object that describes the tables' layouts."""

LAYOUTS_KEY = f"{LAYOUTS_PATH[0]}{END}"
"""The suffix of that object's key in a checkpoint."""

# If a saver has this name, TensorFlow notifies a TPUEmbedding that its variables were restored.
_SAVER = "TPUEmbeddingCallback"

_MAX_DEPTH = 200
# Paths repeat their parents' names, but a real model's paths are far below this multiple.
_MAX_EXPANSION = 100


class Objects(NamedTuple):
    """The contents of a checkpoint's object graph."""

    keys: dict[ObjectPath, str]  # maps paths of variables to checkpoint keys
    embeddings: list[ObjectPath]  # paths of objects saved as a TPUEmbedding
    names: dict[str, str]  # maps keys to the variables' names in the program
    # Maps a variable's key to the names and keys of its slots in legacy optimizers.
    slots: dict[str, dict[str, str]]

    def children(self, parent: ObjectPath) -> dict[str, str]:
        items = self.keys.items()
        return {path[-1]: key for path, key in items if path and path[:-1] == parent}


def read(data: bytes, where: str) -> Objects:
    """Parses a serialized graph, and keeps the shortest path of each object."""
    try:
        nodes = ObjectGraph.FromString(data).nodes
        paths = _shortest_paths(nodes, _MAX_EXPANSION * len(data))
        slots = _slots(nodes)
    except Exception as error:  # or DecodeError, whose module depends on the version of protobuf
        raise _damaged(where) from error
    keys = {path: value.checkpoint_key for path, node in paths.items() for value in _values(node)}
    embeddings = [
        path for path, node in paths.items() if node.registered_saver.name.endswith(_SAVER)
    ]
    values = (value for node in nodes for value in _values(node))
    names = {value.checkpoint_key: value.full_name for value in values if value.full_name}
    return Objects(keys, embeddings, names, slots)


def read_from(reader: Reader) -> Objects | None:
    graph = reader.tensors.get(KEY)
    if graph is None:
        return None
    if graph.dtype != STRING or graph.shape:
        raise _damaged(reader.prefix)
    objects = read(reader.strings(graph)[0], reader.prefix)
    present = {path: key for path, key in objects.keys.items() if key in reader.tensors}
    return objects._replace(keys=present)


def _damaged(where: str) -> errors.UnreadableCheckpoint:
    return errors.UnreadableCheckpoint(
        f"{where}: its object graph is damaged. Use another checkpoint."
    )


def _values(node: Message) -> list[Message]:
    return [attribute for attribute in node.attributes if attribute.name == _ATTRIBUTE]


def _shortest_paths(nodes: Sequence[Message], max_length: int) -> dict[ObjectPath, Message]:
    queue: list[tuple[int, ObjectPath]] = [(0, ())] if nodes else []
    seen = {0}
    length = 0
    for number, path in queue:
        length += sum(max(1, len(name)) for name in path)
        if length > max_length:
            raise ValueError("the paths in its object graph are too long")
        for child in nodes[number].children:
            # No real model is that deep, and the memory for paths grows with the depth's square.
            if not 0 <= child.node_id < len(nodes) or len(path) > _MAX_DEPTH:
                raise ValueError(
                    "its object graph is too deep, or refers to a node that does not exist"
                )
            if child.node_id not in seen:
                seen.add(child.node_id)
                queue.append((child.node_id, (*path, child.local_name)))
    return {path: nodes[number] for number, path in queue}


def _slots(nodes: Sequence[Message]) -> dict[str, dict[str, str]]:
    slots: dict[str, dict[str, str]] = {}
    for node in nodes:
        for slot in node.slot_variables:
            for variable in nodes[slot.original_variable_node_id].attributes:
                for value in nodes[slot.slot_variable_node_id].attributes:
                    of_variable = slots.setdefault(variable.checkpoint_key, {})
                    of_variable[slot.slot_name] = value.checkpoint_key
    return slots


def key_of(path: ObjectPath) -> str:
    escaped = (name.replace(".", "..").replace("/", ".S") for name in path)
    return "/".join(escaped) + END


def _path_of(key: str) -> ObjectPath:
    names = key.removesuffix(END).split("/")
    return tuple(re.sub(r"\.([.S])", lambda m: {"S": "/"}.get(m[1], "."), name) for name in names)


def build(full_names: Mapping[str, str], embedding: ObjectPath | None) -> bytes:
    graph = _Graph(ObjectGraph())
    graph.add(full_names)
    if embedding is not None:
        graph.mark(embedding)
    return graph.serialized()


def with_other_tables(
    data: bytes, root: ObjectPath, old: Collection[str], new: Mapping[str, str], *, embedding: bool
) -> bytes:
    """Replaces variables of the object at `root`.

    `old` has the keys of the variables to remove; `new` maps the keys of new variables to their
    full names.
    """
    message = ObjectGraph.FromString(data)
    gone = {
        number
        for number, node in enumerate(message.nodes)
        if any(value.checkpoint_key in old for value in _values(node))
    }
    for number in gone:
        message.nodes[number].ClearField("attributes")
    parent = _Graph(message).node(root)
    kept = [child for child in parent.children if child.node_id not in gone]
    del parent.children[:]
    parent.children.extend(kept)
    parent.ClearField("registered_saver")
    graph = _Graph(message)
    graph.add(new)
    if embedding:
        graph.mark(root)
    return graph.serialized()


class _Graph:
    def __init__(self, message: Message) -> None:
        self._message = message
        if not message.nodes:
            message.nodes.add().has_checkpoint_values.value = True
        # Maps an object's index to its children's names and indices.
        self._children: dict[int, dict[str, int]] = {}

    def node(self, path: ObjectPath) -> Message:
        nodes, number = self._message.nodes, 0
        for name in path:
            if number not in self._children:
                children = {child.local_name: child.node_id for child in nodes[number].children}
                self._children[number] = children
            children = self._children[number]
            if name not in children:
                children[name] = len(nodes)
                nodes[number].children.add(node_id=children[name], local_name=name)
                nodes.add().has_checkpoint_values.value = True
            number = children[name]
        return nodes[number]

    def add(self, full_names: Mapping[str, str]) -> None:
        for key, name in full_names.items():
            attributes = self.node(_path_of(key)).attributes
            attributes.add(name=_ATTRIBUTE, full_name=name, checkpoint_key=key)

    def mark(self, path: ObjectPath) -> None:
        saver = self.node(path).registered_saver
        saver.name, saver.object_name = f"tf.{_SAVER}", "/".join(path)

    def serialized(self) -> bytes:
        return bytes(self._message.SerializeToString())
