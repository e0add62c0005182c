"""The draws of random ops in a recorded side depend only on the seeds and the step count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tf2_engine import tf_compat

DRAWS: dict[str, Callable[[], Any]] = {
    "dropout": lambda: tf.nn.dropout(tf.ones([64]), rate=0.5),
    "dropout with a seed": lambda: tf.nn.dropout(tf.ones([64]), rate=0.5, seed=11),
    "uniform": lambda: tf.random.uniform([8]),
    "integers": lambda: tf.random.uniform([8], maxval=1 << 20, dtype=tf.int32),
    "normal": lambda: tf.random.normal([8]),
    "truncated": lambda: tf.random.truncated_normal([8]),
}


def drawn(draw: Callable[[], Any], *, in_function: bool) -> list[Any]:
    """Returns the draws of an op in three runs with different fetches."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        with tf_compat.numbered_seeds():
            value = tf.function(draw)() if in_function else draw()
        others = [tf.constant(number) for number in range(3)]
        return [session.run([value, other])[0] for other in others]


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_count(name: str) -> None:
    """In a function an op draws the same numbers as outside, and new numbers in each run.

    A session creates an executor for each set of fetches, each with its own kernels for functions.
    """
    inside, outside = (drawn(DRAWS[name], in_function=place) for place in (True, False))

    np.testing.assert_array_equal(inside, outside)
    assert len({np.asarray(values).tobytes() for values in inside}) == 3


def test_numbers_begin_anew() -> None:
    """A function that trains again repeats its first draws, although it is not traced again."""
    tf.set_random_seed(1)
    with tf_compat.numbered_seeds():
        draw = tf.function(lambda: tf.random.uniform([8]))
        first = [draw().numpy() for _ in range(2)]
    tf_compat.begin_random_numbers_anew()

    np.testing.assert_array_equal([draw().numpy() for _ in range(2)], first)
    assert first[0].tobytes() != first[1].tobytes()
