"""The files of the embedding projector, as TensorBoard's own classes read them."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from google.protobuf import text_format
from tensorboard.plugins.projector import ProjectorConfig

from tf2_engine import errors
from tf2_engine.summaries import write_projector


def test_the_projector_reads_the_files(tmp_path: pathlib.Path) -> None:
    """Each table has its rows and a label for each of them; odd names and labels do no harm."""
    tables = {
        'a "quoted"\nname': np.array([[0.5, -1.25], [1e-9, 3.0], [7.0, 8.0]], np.float32),
        "b": np.zeros([2, 4], np.float32),
    }
    labels = {'a "quoted"\nname': ["tab\there", b"", "not kept"]}

    path = write_projector(str(tmp_path), tables, labels, max_rows=2)

    config = text_format.Parse(pathlib.Path(path).read_text(), ProjectorConfig())
    assert [each.tensor_name for each in config.embeddings] == list(tables)
    wanted = [["tab here", "(empty)"], ["0", "1"]]
    for each, rows, names in zip(config.embeddings, tables.values(), wanted, strict=True):
        # TensorBoard looks for the files below the directory of the configuration.
        read = np.loadtxt(tmp_path / each.tensor_path, delimiter="\t", ndmin=2)
        # The file has 7 digits: numbers read back within 5e-7.
        np.testing.assert_allclose(read, rows[:2], rtol=1e-6, atol=0)
        assert (tmp_path / each.metadata_path).read_text().splitlines() == names


def test_labels_must_fit() -> None:
    tables = {"words": np.zeros([2, 3])}
    with pytest.raises(errors.InvalidInput, match=r"\['word'\], but the tables are \['words'\]"):
        write_projector("never", tables, {"word": ["a"]})
    with pytest.raises(errors.InvalidInput, match="'words' has 2 rows, but 3 labels"):
        write_projector("never", tables, {"words": "abc"})
