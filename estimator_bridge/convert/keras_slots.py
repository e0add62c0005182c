"""Slots of tables in a Keras optimizer: which variables of an object checkpoint they are.

legacy optimizer         the object graph says it
Keras 2.11 and later     <optimizer>/m/users, by the variable's name
Keras 3                  <optimizer>/users_momentum, by the variable's name
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator_bridge import errors
from estimator_bridge.convert.object_graph import Objects

SLOTS: Mapping[str, tuple[str, ...]] = {
    "accumulators": ("accumulator",),
    "linears": ("linear",),
    "momenta": ("m", "momentum"),
    "velocities": ("v", "velocity"),
}
"""What generations of Keras call a slot of the engine."""

KINDS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)
"""The optimizers that Keras has, too, with the same slots."""


def of_table(objects: Objects, key: str) -> dict[str, str]:
    """Returns the keys of a table's slots by the engine's names; none if there are none.

    Args:
        key: of the table.

    Raises:
        InvalidInput: two optimizers have slots for it.
    """
    found = {}
    for slot, names in SLOTS.items():
        keys = sorted({*_of_legacy(objects, key, names), *_by_name(objects, key, names)})
        if len(keys) > 1:
            raise errors.InvalidInput(
                f"{key!r}: each of {keys} may be its slot {slot!r}. Save the checkpoint with the "
                "one Keras optimizer that trains the tables."
            )
        if keys:
            found[slot] = keys[0]
    return found


def _of_legacy(objects: Objects, key: str, names: tuple[str, ...]) -> Iterator[str]:
    for name, held in objects.slots.get(key, {}).items():
        if name in names:
            yield held


def _by_name(objects: Objects, key: str, names: tuple[str, ...]) -> Iterator[str]:
    table = objects.names.get(key)
    if table is None:
        return
    ends = [f"/{name}/{table}" for name in names]
    ends += [f"/{table.replace('/', '_')}_{name}" for name in names]
    for other, full_name in objects.names.items():
        if f"/{full_name}".endswith(tuple(ends)):
            yield other
