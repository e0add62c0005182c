"""Finds the slots of tables in a Keras optimizer, among the variables of an object checkpoint.

legacy optimizer         by the object graph
Keras 2.11 and later     <optimizer>/m/users, by the variable's name
Keras 3                  <optimizer>/users_momentum, by the variable's name
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator_bridge import errors
from estimator_bridge.checkpoint_files.object_graph import Objects

SLOTS: Mapping[str, tuple[str, ...]] = {
    "accumulators": ("accumulator",),
    "linears": ("linear",),
    "momenta": ("m", "momentum"),
    "velocities": ("v", "velocity"),
}
"""By slot of the engine, its names in the generations of Keras."""

KINDS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)
"""The optimizers that Keras has too, with the same slots."""


def of_table(objects: Objects, key: str) -> dict[str, str]:
    """Returns the keys of a table's slots by the engine's names; none if there are none.

    Args:
        key: the key of the table.

    Raises:
        InvalidInput: two optimizers have slots for it.
    """
    slots = {}
    for slot, names in SLOTS.items():
        keys = sorted({*_of_legacy(objects, key, names), *_by_name(objects, key, names)})
        if len(keys) > 1:
            raise errors.InvalidInput(
                f"{key!r}: each of {keys} may be its slot {slot!r}. Save the checkpoint with the "
                "one Keras optimizer that trains the tables."
            )
        if keys:
            slots[slot] = keys[0]
    return slots


def _of_legacy(objects: Objects, key: str, names: tuple[str, ...]) -> Iterator[str]:
    for name, slot_key in objects.slots.get(key, {}).items():
        if name in names:
            yield slot_key


def _by_name(objects: Objects, key: str, names: tuple[str, ...]) -> Iterator[str]:
    table = objects.names.get(key)
    if table is None:
        return
    ends = [f"/{name}/{table}" for name in names]
    ends += [f"/{table.replace('/', '_')}_{name}" for name in names]
    for other, full_name in objects.names.items():
        if f"/{full_name}".endswith(tuple(ends)):
            yield other
