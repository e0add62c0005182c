"""The objects of a TF2 checkpoint: which key holds the variable at which path, both ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from estimator_bridge import errors
from tf2_engine import tf_compat

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The tensor that holds the graph; a checkpoint without it is name-based."""

_ATTRIBUTE = "VARIABLE_VALUE"
END = f"/.ATTRIBUTES/{_ATTRIBUTE}"
"""What the key of a variable has behind its path."""

# Makes TensorFlow tell a TPUEmbedding that its variables were restored.
_SAVER = "TPUEmbeddingCallback"

_DEEPEST = 200
# Paths repeat the names of what they go through; those of a model do not come near this.
_MOST_GROWTH = 100

Path = tuple[str, ...]


class Objects(NamedTuple):
    """What the graph of a checkpoint says.

    Attributes:
        keys: for the path of every variable the key of its tensor.
        embeddings: the paths of the objects that were saved as a TPUEmbedding.
        names: by key what the program called the variable.
        slots: by key of a variable, the keys of the slots that legacy optimizers have for it.
    """

    keys: dict[Path, str]
    embeddings: list[Path]
    names: dict[str, str]
    slots: dict[str, dict[str, str]]

    def children(self, parent: Path) -> dict[str, str]:
        """Returns the keys of the variables right below a path, by name."""
        return {
            path[-1]: key
            for path, key in self.keys.items()
            if len(path) == len(parent) + 1 and path[:-1] == parent
        }


def read(data: bytes, where: str) -> Objects:
    """Returns what a serialised graph says; of an object's several paths it takes a shortest.

    Raises:
        UnreadableCheckpoint: it is no graph; the message begins with `where`.
    """
    try:
        nodes = tf_compat.TrackableObjectGraph.FromString(data).nodes
    except Exception as error:  # DecodeError, whose module depends on the version of protobuf
        raise damaged(where) from error
    keys: dict[Path, str] = {}
    embeddings: list[Path] = []
    seen = {0}
    queue: list[tuple[int, Path]] = [(0, ())] if nodes else []
    grown = 0
    for number, path in queue:
        node = nodes[number]
        grown += sum(max(1, len(name)) for name in path)
        if grown > _MOST_GROWTH * len(data):
            raise damaged(where)
        if node.registered_saver.name.endswith(_SAVER):
            embeddings.append(path)
        for attribute in node.attributes:
            if attribute.name == _ATTRIBUTE:
                keys[path] = attribute.checkpoint_key
        for child in node.children:
            # No model is that deep, and paths of one that claims to be take the square of it.
            if not 0 <= child.node_id < len(nodes) or len(path) > _DEEPEST:
                raise damaged(where)
            if child.node_id not in seen:
                seen.add(child.node_id)
                queue.append((child.node_id, (*path, child.local_name)))
    try:
        return Objects(keys, embeddings, _names(nodes), _slots(nodes))
    except IndexError as error:
        raise damaged(where) from error


def damaged(where: str) -> errors.UnreadableCheckpoint:
    """Returns the error of a checkpoint, `where`, that has no object graph that makes sense."""
    return errors.UnreadableCheckpoint(
        f"{where}: its object graph is damaged. Use another checkpoint."
    )


def _names(nodes: Any) -> dict[str, str]:
    return {
        attribute.checkpoint_key: attribute.full_name
        for node in nodes
        for attribute in node.attributes
        if attribute.name == _ATTRIBUTE and attribute.full_name
    }


def _slots(nodes: Any) -> dict[str, dict[str, str]]:
    slots: dict[str, dict[str, str]] = {}
    for node in nodes:
        for slot in node.slot_variables:
            for variable in nodes[slot.original_variable_node_id].attributes:
                for held in nodes[slot.slot_variable_node_id].attributes:
                    of_variable = slots.setdefault(variable.checkpoint_key, {})
                    of_variable[slot.slot_name] = held.checkpoint_key
    return slots


def key_of(path: Path) -> str:
    """Returns the key under which TensorFlow saves a variable."""
    escaped = (name.replace(".", "..").replace("/", ".S") for name in path)
    return "/".join(escaped) + END


def build(variables: Iterable[Path], full_names: Mapping[Path, str], embedding: Path) -> bytes:
    """Returns a serialised graph.

    Args:
        variables: the paths of all variables.
        full_names: names of variables outside of the graph.
        embedding: the path of the object to save as a TPUEmbedding.
    """
    graph = tf_compat.TrackableObjectGraph()
    numbers: dict[Path, int] = {}

    def node(path: Path) -> Any:
        if path not in numbers:
            parent = node(path[:-1]) if path else None
            numbers[path] = len(graph.nodes)
            graph.nodes.add().has_checkpoint_values.value = True
            if parent is not None:
                parent.children.add(node_id=numbers[path], local_name=path[-1])
        return graph.nodes[numbers[path]]

    for path in variables:
        node(path).attributes.add(
            name=_ATTRIBUTE, full_name=full_names.get(path, ""), checkpoint_key=key_of(path)
        )
    saver = node(embedding).registered_saver
    saver.name, saver.object_name = f"tf.{_SAVER}", "/".join(embedding)
    return bytes(graph.SerializeToString())
