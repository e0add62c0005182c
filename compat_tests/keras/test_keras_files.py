"""Models in Keras's own files, and the contents of the configs of layers and columns."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import tf2_engine
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from tf2_engine import errors, preprocessing
from tf2_engine.keras import columns, layer_settings


@pytest.mark.full
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_files_of_keras(keras: str, tmp_path: pathlib.Path) -> None:
    """Files and JSON give back layers, models and training, of each Keras there is."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    arguments = ("compat_tests.programs.keras_files", keras, tmp_path)
    ran = fresh.module(*arguments, check=True, cwd=ROOT, env=environment)

    assert len(ran.stdout.split()) == 4


def test_what_a_file_cannot_hold_is_refused() -> None:
    """An object without a config is named, with what to do; so are unknown packages and classes."""
    setting = layer_settings.Setting({"table": object()}, "keras")
    with pytest.raises(errors.WrongType, match=r"<object object.*register_keras_serializable"):
        setting.get_config()
    with pytest.raises(errors.WrongType, match="Prepared, a namedtuple"):
        layer_settings.Setting(preprocessing.Prepared({}, None, {}), "keras").get_config()
    for value, message in (
        ({"package": "os", "config": {}}, "the package 'os'"),
        ({"class": "os.system", "settings": {}}, "unknown class 'os.system'"),
        ({"newer": 1}, r"contains \['newer'\].*the version that wrote it"),
    ):
        with pytest.raises(errors.InvalidSpec, match=message):
            layer_settings.Setting.from_config({"value": value, "objects": [], "package": "keras"})


@pytest.mark.parametrize(
    "column",
    [
        columns.Numeric("a", shape=[2, 3]),
        columns.SequenceNumeric("a", shape=[2], default_value=1.0),
        columns.Indicator(preprocessing.Identity("a", 4)),
        columns.PlainEmbedding(preprocessing.Sequence(preprocessing.Hashed("a", 4)), 2),
        columns.TableColumn(
            columns.embedding_column(preprocessing.Identity("a", 7), 4).table,
            preprocessing.Identity("a", 7),
        ),
    ],
    ids=lambda column: type(column).__name__,
)
def test_a_column_is_written(column: Any) -> None:
    """A column of each kind comes back from a file equal to what it was."""
    written = layer_settings.Setting([column], "keras").get_config()

    (copied,) = layer_settings.Setting.from_config(written).value

    assert type(copied) is type(column)
    assert layer_settings.Setting([copied], "keras").get_config() == written


@pytest.mark.parametrize(
    "make",
    [
        lambda kind: preprocessing.VocabularyList("b", kind(["x", "y"])),
        lambda kind: preprocessing.Bucketized("b", kind([0.0, 1.0])),
        lambda kind: preprocessing.Crossed(kind(["a", "b"]), 10),
        lambda kind: columns.Numeric("a", shape=kind([2, 3])),
        lambda kind: columns.SequenceNumeric("a", shape=kind([2, 3])),
        lambda kind: tf2_engine.FeatureSpec("f", "t", output_shape=kind([3, 2])),
        lambda kind: tf2_engine.EngineSpec(
            kind([tf2_engine.TableSpec("t", 3, 2, optimizer=tf2_engine.SGD(0.1))]),
            kind([tf2_engine.FeatureSpec("f", "t")]),
        ),
    ],
)
def test_lists_are_taken_where_tuples_are_kept(make: Callable[[Any], Any]) -> None:
    assert make(list) == make(tuple)


def test_a_text_is_no_list() -> None:
    with pytest.raises(errors.WrongType, match="VocabularyList: `vocabulary` must be a list"):
        preprocessing.VocabularyList("b", "x")  # type: ignore[arg-type]
