"""Turns a checkpoint, for example one that a TF2 program saved, into the recording of a side."""

from __future__ import annotations

import os

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, find
from estimator_bridge.convert.formats import format_of
from estimator_bridge.convert.formats.checkpoint_format import Contents
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.recording.files import (
    CHECKPOINT,
    VARIABLES,
    Recording,
    RecordingWriter,
    SideDescription,
)
from tf2_engine.tables import PARAMETERS


def record_checkpoint(directory: str | os.PathLike[str], checkpoint: str, a: Recording) -> None:
    """Writes a recording with only the last step, in which variables have side A's names."""
    prefix = find(checkpoint)
    settings, numbers = a.settings, a.numbers()
    # If there are several optimizers, a table's optimizer is found by its slots.
    kinds = {str(table["optimizer"]) for table in settings["tables"]}
    options = ConversionOptions(optimizer=kinds.pop() if len(kinds) == 1 else None)
    with Reader(prefix) as reader:
        contents = format_of(reader).read(reader, options, strict=False)
        step = contents.step()
        keys = _keys(contents, settings)
    if step != numbers[-1]:
        raise errors.InvalidInput(
            f"{prefix} is from step {step}, but side A ended with step {numbers[-1]}. Choose "
            "--steps and --begin-from so that both end with the same step."
        )
    writer = RecordingWriter(directory)
    name, kind = os.path.basename(prefix), CHECKPOINT
    side: SideDescription = {**settings, "program": name, "side": kind, "engine": kind}
    writer.note("settings", {**side, "where": prefix, "config": {}})
    for number in numbers[:-1]:
        writer.step(number, {})
    values = tf.train.load_checkpoint(prefix)
    variables = {name: values.get_tensor(key) for name, key in keys.items()}
    writer.step(numbers[-1], {VARIABLES: variables})


def _keys(contents: Contents, settings: SideDescription) -> dict[str, str]:
    keys = {name: key for key, name in contents.others.items() if name is not None}
    tables = {table.known.name: table.parts for table in contents.tables}
    for table in settings["tables"]:
        parts = tables.get(table["name"], {})
        names = {table["variable"]: PARAMETERS, **table["slots"]}
        stored = ((name, parts.get(part)) for name, part in names.items())
        keys.update((name, part.name) for name, part in stored if part is not None)
    return keys
