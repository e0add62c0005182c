"""From raw features to ids: what feature columns did to their input, without feature columns.

    prepare = Preprocessing({"city": VocabularyList("city", ("Bern", "Rome"), num_oov_buckets=2)})
    ids, weights, lengths = prepare({"city": tf.constant(["Rome", "Oslo"])})

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf2_engine.preprocessing.columns import (
        Bucketized,
        Column,
        Crossed,
        Hashed,
        Identity,
        Sequence,
        Weighted,
    )
    from tf2_engine.preprocessing.module import Prepared, Preprocessing
    from tf2_engine.preprocessing.vocabularies import VocabularyFile, VocabularyList

_HOME = {
    "Bucketized": "columns",
    "Column": "columns",
    "Crossed": "columns",
    "Hashed": "columns",
    "Identity": "columns",
    "Prepared": "module",
    "Preprocessing": "module",
    "Sequence": "columns",
    "VocabularyFile": "vocabularies",
    "VocabularyList": "vocabularies",
    "Weighted": "columns",
}

__all__ = [
    "Bucketized",
    "Column",
    "Crossed",
    "Hashed",
    "Identity",
    "Prepared",
    "Preprocessing",
    "Sequence",
    "VocabularyFile",
    "VocabularyList",
    "Weighted",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
