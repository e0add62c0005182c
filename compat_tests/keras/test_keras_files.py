"""Models in Keras's own files, and the contents of the configs of layers and columns."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

import tf2_engine
from compat_tests.support.paths import ROOT
from tf2_engine import errors, preprocessing
from tf2_engine.keras import columns, layer_settings


@pytest.mark.full
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_files_of_keras(keras: str, tmp_path: pathlib.Path) -> None:
    """Files and JSON give back layers, models and training, of each Keras there is."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    ran = subprocess.run(
        [sys.executable, "-m", "compat_tests.programs.keras_files", keras, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr[-4000:]
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


def test_every_kind_of_column_is_written() -> None:
    """The cases above are all kinds that layers take; those of ids have cases of their own."""
    marks = {mark.name: mark for mark in test_a_column_is_written.pytestmark}  # type: ignore[attr-defined]
    kinds = {type(column) for column in marks["parametrize"].args[1]}

    assert kinds == {*typing.get_args(columns.ModelColumn)} - {preprocessing.Column}


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
    """A list where a config keeps a tuple makes the same object."""
    assert make(list) == make(tuple)


def test_every_class_that_keeps_tuples_takes_lists() -> None:
    """The cases above are all fields of public dataclasses that are tuples."""
    kinds = [getattr(tf2_engine, name) for name in tf2_engine.__all__]
    kinds += [getattr(preprocessing, name) for name in preprocessing.__all__]
    kinds += [getattr(columns, name) for name in vars(columns)]
    fields = {
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
        if str(field.type).startswith("tuple[")
    }

    assert fields == {
        *("VocabularyList.vocabulary", "Bucketized.boundaries", "Crossed.keys"),
        *("FeatureSpec.output_shape", "EngineSpec.tables", "EngineSpec.features"),
        *("Numeric.shape", "SequenceNumeric.shape"),
    }
    for name in ("vocabulary",):
        with pytest.raises(errors.WrongType, match=f"VocabularyList: `{name}` must be a list"):
            preprocessing.VocabularyList("b", "x")  # type: ignore[arg-type]
