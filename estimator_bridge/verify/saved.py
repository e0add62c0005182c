"""A side that is a checkpoint: what a TF2 program came to, whose steps only it can tell apart."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader
from estimator_bridge.convert.conversion import find
from estimator_bridge.convert.formats import format_of
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.verify.recording import CHECKPOINT, VARIABLES, Recording, Writer
from tf2_engine.tables import PARAMETERS


def record(directory: pathlib.Path, checkpoint: str, a: Recording) -> None:
    """Writes the recording of a side that is known by its last step alone.

    Args:
        checkpoint: in either form; or a directory, of which the latest is taken.
        a: the side that it is compared with, whose names it gets.

    Raises:
        InvalidInput: it is of another step than the last of side A, or holds no table.
        UnreadableCheckpoint: a file is missing or damaged.
    """
    prefix = find(checkpoint)
    settings = a.settings
    numbers = a.numbers()
    with Reader(prefix) as reader:
        options = ConversionOptions(optimizer=_optimizer(settings))
        contents = format_of(reader).read(reader, options, strict=False)
        step = contents.step()
        tables = {found.known.name: found.parts for found in contents.tables}
        others = {name: key for key, name in contents.others.items() if name is not None}
    if step != numbers[-1]:
        raise errors.InvalidInput(
            f"{prefix} is of step {step}, and side A ended with step {numbers[-1]}: let --steps "
            "and --begin-from lead to the same step."
        )
    values = tf.train.load_checkpoint(prefix)
    keys = dict(others)
    for table in settings["tables"]:
        parts = tables.get(table["name"], {})
        slots = {name: parts.get(slot) for name, slot in table["slots"].items()}
        for name, part in {table["variable"]: parts.get(PARAMETERS), **slots}.items():
            if part is not None:
                keys[name] = part.name
    writer = Writer(directory)
    writer.settings(
        {
            **settings,
            "program": os.path.basename(prefix),
            "side": CHECKPOINT,
            "engine": CHECKPOINT,
            "where": prefix,
            "config": {},
        }
    )
    for number in numbers:
        state: dict[str, Any] = {}
        if number == numbers[-1]:
            state[VARIABLES] = {name: values.get_tensor(key) for name, key in keys.items()}
        writer.step(number, state)


def _optimizer(settings: dict[str, Any]) -> str | None:
    """Returns the optimizer of the tables if all have the same; else slots have to tell it."""
    kinds = {str(table["optimizer"]) for table in settings["tables"]}
    return kinds.pop() if len(kinds) == 1 else None
