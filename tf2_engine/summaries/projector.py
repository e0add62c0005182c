"""The files of TensorBoard's embedding projector, which shows rows of tables as points."""

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
"""Names of rows by table, those of the first rows."""


def write_projector(
    directory: str,
    tables: Mapping[str, TensorLike],
    labels: Labels | None = None,
    max_rows: int = 10_000,
) -> str:
    """Writes rows of tables into a directory of event files, for the projector of TensorBoard.

        write_projector("model/train", {"words": words}, {"words": ["the", "a", "of"]})

    Args:
        directory: a new `projector_config.pbtxt` and the folder `projector` go there.
        tables: by name, [rows, dim] of numbers.
        labels: what the points of a table are called; without them, the numbers of the rows. A
            table may have more rows than labels: the others are called by their numbers.
        max_rows: of each table, the first; the projector is slow beyond some ten thousand.

    Returns:
        The path of the configuration.

    Raises:
        InvalidInput: labels are for a table that is not there, or are more than its rows.
    """
    unknown = sorted(set(labels or {}) - set(tables))
    if unknown:
        raise errors.InvalidInput(
            f"`labels` has {unknown}, but the tables are {sorted(tables)}. Use their names."
        )
    for name, names in (labels or {}).items():
        if len(names) > len(np.asarray(tables[name])):
            raise errors.InvalidInput(
                f"Table {name!r} has {len(np.asarray(tables[name]))} rows, but {len(names)} "
                "labels. Leave out those of rows that are not there."
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
        # In text protos as in JSON, strings are quoted, and escaped alike.
        fields = zip(("tensor_name", "tensor_path", "metadata_path"), (name, *paths), strict=True)
        lines = "".join(f"  {field}: {json.dumps(value)}\n" for field, value in fields)
        entries.append(f"embeddings {{\n{lines}}}\n")
    path = os.path.join(directory, CONFIG)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(entries)
    return path


def first_rows(tables: Mapping[str, Table], max_rows: int) -> dict[str, Tensor]:
    """Returns the first rows of tables, [rows, dim] float32."""
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
