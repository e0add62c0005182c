"""The serving receiver of the click program, and examples for it.

It does not import the bridge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks

IDS = ("shown", "clicked", "query", "place")
WEIGHTS = "query_weights"


class Receiver(NamedTuple):
    """A result of a serving_input_receiver_fn: any object with these attributes will do."""

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None


def receiver() -> Receiver:
    serialized = tf.placeholder(tf.string, [None], "examples")
    kinds: dict[str, Any] = {key: tf.io.VarLenFeature(tf.int64) for key in IDS}
    kinds[WEIGHTS] = tf.io.VarLenFeature(tf.float32)
    kinds["age"] = tf.io.FixedLenFeature([1], tf.float32)
    return Receiver(tf.io.parse_example(serialized, kinds), {"examples": serialized})


def examples(batches: int, batch_size: int) -> list[bytes]:
    """Returns the samples of the first batches of `clicks.short_input_fn`, serialised."""
    samples = []
    with tf.Graph().as_default(), tf.Session() as session:
        data = clicks.short_input_fn({"batch_size": batch_size})
        features, _ = tf.data.make_one_shot_iterator(data).get_next()
        for _ in range(batches):
            values = session.run(features)
            samples.extend(_example(values, row) for row in range(batch_size))
    return [example.SerializeToString() for example in samples]


def _example(values: dict[str, Any], row: int) -> Any:
    example = tf.train.Example()
    for key in (*IDS, WEIGHTS):
        of_row = values[key].values[values[key].indices[:, 0] == row]
        kind = "float_list" if key == WEIGHTS else "int64_list"
        getattr(example.features.feature[key], kind).value.extend(of_row)
    example.features.feature["age"].float_list.value.extend(values["age"][row])
    return example
