"""Words of strings, as TensorFlow 1 split them."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import SparseTensor, TensorLike


def split_words(
    strings: TensorLike, separators: str = " ", *, keep_empty: bool = False
) -> SparseTensor:
    """Returns the words of strings: those of `tf.compat.v1.string_split`.

    `tf.strings.split` differs where a string is empty, or separators follow one another: it has an
    empty word there, which a vocabulary may take for one of its words. It also takes several
    separators for one of several characters, and by default splits at tabs and line ends too.

    Args:
        strings: string, [samples].
        separators: each of its characters separates words; with "" each character is a word.
        keep_empty: whether there is a word between two separators.

    Returns:
        Strings, [samples, most words of a sample].
    """
    return tf.SparseTensor(
        *tf.raw_ops.StringSplit(input=strings, delimiter=separators, skip_empty=not keep_empty)
    )
