"""Splits strings into words as TensorFlow 1 did."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import SparseTensor, TensorLike


def split_words(
    strings: TensorLike, separators: str = " ", *, keep_empty: bool = False
) -> SparseTensor:
    """Splits strings, [samples], into words, [samples, largest number], like TensorFlow 1.

    `tf.strings.split` differs: it returns an empty word for empty strings and between adjacent
    separators, takes several characters as one separator, and by default splits at tabs and line
    breaks too.

    Args:
        separators: the characters that separate words. With "" each character is a word.
        keep_empty: whether there is an empty word between adjacent separators.
    """
    return tf.SparseTensor(
        *tf.raw_ops.StringSplit(input=strings, delimiter=separators, skip_empty=not keep_empty)
    )
