"""Converts raw features to the ids that feature columns would compute.

    prepare = Preprocessing({"city": VocabularyList("city", ("Bern", "Rome"), num_oov_buckets=2)})
    ids, weights, lengths = prepare({"city": tf.constant(["Rome", "Oslo"])})

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.preprocessing.categorical import (
        Bucketized,
        Column,
        Crossed,
        Hashed,
        Identity,
        Sequence,
        VocabularyFile,
        VocabularyList,
        Weighted,
    )
    from tf2_engine.preprocessing.module import Prepared, Preprocessing
    from tf2_engine.preprocessing.raw_features import split_words

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "tf2_engine.preprocessing.categorical": [
            "Bucketized",
            "Column",
            "Crossed",
            "Hashed",
            "Identity",
            "Sequence",
            "VocabularyFile",
            "VocabularyList",
            "Weighted",
        ],
        "tf2_engine.preprocessing.module": ["Prepared", "Preprocessing"],
        "tf2_engine.preprocessing.raw_features": ["split_words"],
    },
)
