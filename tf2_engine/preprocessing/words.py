"""Splits strings into words as TensorFlow 1 did."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import SparseTensor, TensorLike


def split_words(
    strings: TensorLike, separators: str = " ", *, keep_empty: bool = False
) -> SparseTensor:
    """Splits strings into words like `tf.compat.v1.string_split`.

    `tf.strings.split` differs: it returns an empty word for empty strings and between adjacent
    separators, takes several characters as one separator, and by default splits at tabs and line
    breaks too.

    Args:
        strings: string, [samples].
        separators: the characters that separate words. With "" each character is a word.
        keep_empty: whether there is an empty word between adjacent separators.

    Returns:
        Strings, [samples, largest number of words].
    """
    return tf.SparseTensor(
        *tf.raw_ops.StringSplit(input=strings, delimiter=separators, skip_empty=not keep_empty)
    )
