"""Makes the recording of a side that is a checkpoint, as of a TF2 program that runs elsewhere."""

from __future__ import annotations

import os

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, find
from estimator_bridge.convert.formats import format_of
from estimator_bridge.convert.formats.checkpoint_format import Contents
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import Recording, RecordingWriter, SideDescription
from tf2_engine.tables import PARAMETERS


def record_checkpoint(directory: str | os.PathLike[str], checkpoint: str, a: Recording) -> None:
    """Writes the recording of a side of which the last step alone is known.

    Args:
        checkpoint: in either form; or a directory, of which the latest is taken.
        a: the side that it is compared with, whose names it gets.

    Raises:
        InvalidInput: it is of another step than the last of side A, or holds no table.
        UnreadableCheckpoint: a file is missing or damaged.
    """
    prefix = find(checkpoint)
    settings, numbers = a.settings, a.numbers()
    # If not all tables have the same optimizer, slots have to tell it.
    kinds = {str(table["optimizer"]) for table in settings["tables"]}
    options = ConversionOptions(optimizer=kinds.pop() if len(kinds) == 1 else None)
    with Reader(prefix) as reader:
        contents = format_of(reader).read(reader, options, strict=False)
        step = contents.step()
        keys = _keys(contents, settings)
    if step != numbers[-1]:
        raise errors.InvalidInput(
            f"{prefix} is of step {step}, and side A ended with step {numbers[-1]}: let --steps "
            "and --begin-from lead to the same step."
        )
    writer = RecordingWriter(directory)
    name, kind = os.path.basename(prefix), recording.CHECKPOINT
    side: SideDescription = {**settings, "program": name, "side": kind, "engine": kind}
    writer.settings({**side, "where": prefix, "config": {}})
    for number in numbers[:-1]:
        writer.step(number, {})
    values = tf.train.load_checkpoint(prefix)
    variables = {name: values.get_tensor(key) for name, key in keys.items()}
    writer.step(numbers[-1], {recording.VARIABLES: variables})


def _keys(contents: Contents, settings: SideDescription) -> dict[str, str]:
    """Returns the keys of a checkpoint by the names of side A's variables."""
    keys = {name: key for key, name in contents.others.items() if name is not None}
    tables = {table.known.name: table.parts for table in contents.tables}
    for table in settings["tables"]:
        parts = tables.get(table["name"], {})
        names = {table["variable"]: PARAMETERS, **table["slots"]}
        stored = ((name, parts.get(part)) for name, part in names.items())
        keys.update((name, part.name) for name, part in stored if part is not None)
    return keys
