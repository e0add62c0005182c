"""Serving receivers in the Keras form compute the same features from any placeholders."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge import errors

PROGRAM = """import tensorflow.compat.v1 as tf

SPEC = {"x": tf.io.FixedLenFeature([1], tf.float32)}
WORDS = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1.0]), -1.0)


def input_fn():
    return tf.data.Dataset.from_tensors(({"x": [[1.0]]}, [[1]]))


RECEIVER

def main():
    job = tf.estimator.DNNClassifier(
        [4], [tf.feature_column.numeric_column("x")], model_dir="job", optimizer="Adagrad")
    job.train(input_fn, steps=1)
    job.export_saved_model("served", RETURNED)


if __name__ == "__main__":
    main()
"""
EXAMPLES = [
    tf.train.Example(
        features=tf.train.Features(
            feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=[value]))}
        )
    ).SerializeToString()
    for value in (2.0, 5.0)
]
X = {"x": [[2.0], [5.0]]}

RECEIVERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "names for both": (
        """
        def receiver():
            serialized = tf.placeholder(tf.string, [None], name="examples")
            receiver_tensors = {"examples": serialized}
            features = tf.io.parse_example(serialized, SPEC)
            return tf.estimator.export.ServingInputReceiver(features, receiver_tensors)
        """,
        *("receiver", {"examples": EXAMPLES}, X),
    ),
    "one placeholder": (
        """
        def receiver():
            examples = tf.placeholder(tf.string, [None])
            features = tf.parse_example(examples, SPEC)
            return tf.estimator.export.ServingInputReceiver(features, examples)
        """,
        *("receiver", {"input": EXAMPLES}, X),
    ),
    "several placeholders": (
        """
        def receiver():
            inputs = {key: tf.placeholder(tf.float32, [None], name=key) for key in ("a", "b")}
            features = {"x": tf.expand_dims(inputs["a"] - inputs["b"], -1)}
            return tf.estimator.export.ServingInputReceiver(features, inputs)
        """,
        *("receiver", {"a": [3.0, 5.0], "b": [1.0, 0.0]}, X),
    ),
    "a sparse placeholder": (
        """
        def receiver():
            ids = tf.sparse_placeholder(tf.float32, [None, None], name="ids")
            features = {"x": tf.sparse.reduce_sum(ids, axis=1, keepdims=True)}
            return tf.estimator.export.ServingInputReceiver(features, {"ids": ids})
        """,
        "receiver",
        {"ids_indices": [[0, 0], [1, 1]], "ids_values": [2.0, 5.0], "ids_dense_shape": [2, 2]},
        X,
    ),
    "a default": (
        """
        def receiver():
            a = tf.placeholder(tf.float32, [None, 1], name="a")
            b = tf.placeholder_with_default(tf.constant([[1.0]]), [None, 1], name="b")
            if SPEC:
                a = a + 0.0
            return tf.estimator.export.ServingInputReceiver({"x": a - b}, {"a": a, "b": b})
        """,
        *("receiver", {"a": [[3.0], [6.0]], "b": [[1.0], [1.0]]}, X),
    ),
    "a default in the dict": (
        """
        def receiver():
            inputs = {
                "a": tf.placeholder(tf.float32, [None, 1], name="a"),
                "b": tf.placeholder_with_default([[1.0]], [None, 1], name="b"),
            }
            features = {"x": inputs["a"] - inputs["b"]}
            return tf.estimator.export.ServingInputReceiver(features, inputs)
        """,
        *("receiver", {"a": [[3.0], [6.0]], "b": [[1.0], [1.0]]}, X),
    ),
    "a sparse placeholder in the dict": (
        """
        def receiver():
            inputs = {"ids": tf.sparse_placeholder(tf.float32, [None, None], name="ids")}
            return tf.estimator.export.ServingInputReceiver(
                {"x": tf.sparse.reduce_sum(inputs["ids"], axis=1, keepdims=True)}, inputs)
        """,
        "receiver",
        {"ids_indices": [[0, 0], [1, 1]], "ids_values": [2.0, 5.0], "ids_dense_shape": [2, 2]},
        X,
    ),
    "helpers": (
        """
        def fed():
            return tf.placeholder(tf.string, [None], name="examples")

        def receiver():
            examples = fed()
            features = parsed(examples)
            return tf.estimator.export.ServingInputReceiver(features, {"examples": examples})

        def parsed(examples):
            return tf.io.parse_example(examples, SPEC)
        """,
        *("receiver", {"examples": EXAMPLES}, X),
    ),
    "a table of the module": (
        """
        def receiver():
            words = tf.placeholder(tf.string, [None], name="words")
            found = WORDS.lookup(words)
            return tf.estimator.export.ServingInputReceiver(
                {"x": found[:, tf.newaxis]}, {"words": words})
        """,
        *("receiver", {"words": ["a", "b"]}, {"x": [[1.0], [-1.0]]}),
    ),
    "a tensor": (
        """
        def receiver():
            x = tf.placeholder(tf.float32, [None, 1], name="x")
            return tf.estimator.export.TensorServingInputReceiver(x * 2.0, {"x": x})
        """,
        *("receiver", {"x": [[1.0]]}, {"": [[2.0]]}),
    ),
    "a lambda": (
        """
        def doubled(x):
            return tf.estimator.export.ServingInputReceiver({"x": 2.0 * x}, {"x": x})
        """,
        'lambda: doubled(tf.placeholder(tf.float32, [None, 1], name="x"))',
        *({"x": [[1.0]]}, {"x": [[2.0]]}),
    ),
    "a nested function": (
        """
        def make(scale):
            def receiver():
                x = tf.placeholder(tf.float32, [None, 1], name="x")
                scaled = x * scale
                return tf.estimator.export.ServingInputReceiver({"x": scaled}, {"x": x})

            return receiver
        """,
        *("make(2.0)", {"x": [[1.0]]}, {"x": [[2.0]]}),
    ),
    "an object": (
        """
        class Server(object):
            def __init__(self, scale):
                self.scale = scale

            def __call__(self):
                x = tf.placeholder(tf.float32, [None, 1], name="x")
                return tf.estimator.export.ServingInputReceiver({"x": x * self.scale}, {"x": x})
        """,
        *("Server(2.0)", {"x": [[1.0]]}, {"x": [[2.0]]}),
    ),
    "branches": (
        """
        def receiver(default=None):
            if default is None:
                x = tf.placeholder(tf.float32, [None, 1])
            else:
                x = tf.placeholder_with_default(default, [None, 1])
            features = {}
            for key, value in {"x": x}.items():
                features[key] = value
            received = tf.estimator.export.ServingInputReceiver(features, {"x": x})
            return received
        """,
        *("lambda: receiver([[3.0]])", {"x": [[2.0], [5.0]]}, X),
    ),
    "parsing": (
        """
        def receiver():
            return tf.estimator.export.build_parsing_serving_input_receiver_fn(SPEC)()
        """,
        *("receiver", {"examples": EXAMPLES}, X),
    ),
    "raw": (
        """
        receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(
            {"x": tf.placeholder(tf.float32, [None, 1], name="x")})
        """,
        *("receiver", {"x": [[2.0], [5.0]]}, X),
    ),
}
"""The receiver, its name in the export, the fed values, and the resulting features."""

INDENTS = {"two spaces": "  ", "four spaces": "    ", "tabs": "\t"}


def program(receiver: str, returned: str, indent: str = "    ") -> str:
    text = PROGRAM.replace("RECEIVER", textwrap.dedent(receiver).strip() + "\n")
    text = text.replace("RETURNED", returned)
    return re.sub("^(    )+", lambda spaces: len(spaces[0]) // 4 * indent, text, flags=re.MULTILINE)


@pytest.mark.parametrize("style", INDENTS)
@pytest.mark.parametrize("name", RECEIVERS)
def test_a_receiver_makes_the_same_features(name: str, style: str) -> None:
    """This holds for any code between the placeholders and the last line, and any indentation."""
    receiver, returned, fed, expected = RECEIVERS[name]
    text = migrate_to_keras(program(receiver, returned, INDENTS[style])).source
    module: dict[str, Any] = {"__name__": "migrated"}
    exec(compile(text, name, "exec"), module)
    exported = re.search(r'export_saved_model\(\s*"served",\s+\*(.*)\)\n', text)
    assert exported, text

    specs, to_features, *_ = eval(exported[1], module)
    features = to_features(
        {key: tf.constant(value, specs[key].dtype) for key, value in fed.items()}
        if isinstance(specs, dict)
        else tf.constant(*fed.values())
    )

    assert not isinstance(specs, dict) or {*specs} == {*fed}
    by_key = features if isinstance(features, dict) else {"": features}
    assert {key: value.numpy().tolist() for key, value in by_key.items()} == expected


REFUSED = {
    "a table of its own": (
        """
        def receiver():
            words = tf.placeholder(tf.string, [None])
            init = tf.lookup.KeyValueTensorInitializer(["a"], [1.0])
            found = tf.lookup.StaticHashTable(init, 0.0).lookup(words)
            return tf.estimator.export.ServingInputReceiver({"x": found}, {"words": words})
        """,
        "Make it outside of the function",
    ),
    "other tensors to feed": (
        """
        def receiver():
            x = tf.placeholder(tf.float32, [None, 1])
            y = x + 1.0
            return tf.estimator.export.ServingInputReceiver({"x": y}, {"x": x}, {"y": {"y": y}})
        """,
        "its argument {'y': {'y': y}} is not supported",
    ),
    "no receiver": (
        """
        def receiver():
            return unknown()
        """,
        "keras-receiver",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_receiver_that_is_not_carried_is_refused(name: str) -> None:
    """The refusal comes before anything is written, not when the new program exports."""
    receiver, words = REFUSED[name]
    with pytest.raises(errors.Untranslatable, match=words):
        migrate_to_keras(program(receiver, "receiver"))
