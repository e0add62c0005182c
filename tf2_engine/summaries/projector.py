"""Writes files for TensorBoard's embedding projector, which shows rows of tables as points."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Tensor, TensorLike

CONFIG = "projector_config.pbtxt"

Labels = Mapping[str, Sequence[object]]
"""Maps each table's name to the names of its first rows."""


def write_projector(
    directory: str,
    tables: Mapping[str, TensorLike],
    labels: Labels | None = None,
    max_rows: int = 10_000,
) -> str:
    """Writes rows of tables into a log directory, for TensorBoard's embedding projector.

        write_projector("model/train", {"words": words}, {"words": ["the", "a", "of"]})

    Args:
        directory: where to write `projector_config.pbtxt` and the folder `projector`.
        tables: maps each table's name to its rows, [rows, dim].
        labels: maps each table's name to the names of its first rows. Other rows are named by
            their number.

    Returns:
        The path of the configuration.

    Raises:
        InvalidInput: labels belong to no table, or there are more labels than rows.
    """
    unknown = sorted(set(labels or {}) - set(tables))
    if unknown:
        raise errors.InvalidInput(
            f"`labels` has keys {unknown}, but the tables are {sorted(tables)}. Use their names."
        )
    for name, names in (labels or {}).items():
        if len(names) > len(np.asarray(tables[name])):
            raise errors.InvalidInput(
                f"Table {name!r} has {len(np.asarray(tables[name]))} rows, but {len(names)} "
                "labels. Leave out the labels without a row."
            )
    os.makedirs(os.path.join(directory, "projector"), exist_ok=True)
    entries = []
    for number, (name, values) in enumerate(tables.items()):
        names = list((labels or {}).get(name, ()))
        kept = np.asarray(values)[:max_rows]
        paths = [os.path.join("projector", f"{number}_{kind}.tsv") for kind in ("rows", "labels")]
        _write(directory, paths[0], ("\t".join(f"{x:.7g}" for x in row) for row in kept))
        named = (names[row] if row < len(names) else row for row in range(len(kept)))
        _write(directory, paths[1], (_on_one_line(each) for each in named))
        # Strings are quoted and escaped in text protos as in JSON.
        fields = zip(("tensor_name", "tensor_path", "metadata_path"), (name, *paths), strict=True)
        lines = "".join(f"  {field}: {json.dumps(value)}\n" for field, value in fields)
        entries.append(f"embeddings {{\n{lines}}}\n")
    path = os.path.join(directory, CONFIG)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(entries)
    return path


def first_rows(tables: Mapping[str, Table], max_rows: int) -> dict[str, Tensor]:
    counts = {name: min(max_rows, table.plan.vocabulary_size) for name, table in tables.items()}
    return {
        name: tables[name].gather(PARAMETERS, tf.range(count, dtype=tf.int64))
        for name, count in counts.items()
        if count
    }


def _write(directory: str, path: str, lines: object) -> None:
    with open(os.path.join(directory, path), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)  # type: ignore[attr-defined]


def _on_one_line(label: object) -> str:
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
    return " ".join(text.split()) or "(empty)"
