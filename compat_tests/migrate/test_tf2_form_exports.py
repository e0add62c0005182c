"""Models exported by a program in the tf2 form answer like those of the legacy program.

`test_tf2_form_runs.py` tests the exports of the examples; this file sends edge-case requests.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.migrate.test_tf2_form_runs import (
    EXAMPLES,
    PREDICTIONS,
    Changes,
    answers,
    check_exports,
    commands,
    train,
    write_programs,
)
from compat_tests.training import trainers
from estimator_bridge.estimator import export
from tf2_engine import errors, training

Lists = dict[str, Sequence[Any]]


def example_of(lists: Lists) -> bytes:
    """Returns a serialized tf.train.Example with lists of ints and floats."""
    features = {}
    for key, values in lists.items():
        floats = key in ("word_weights", "genre_weights", "history_rating")
        features[key] = (
            tf.train.Feature(float_list=tf.train.FloatList(value=values))
            if floats
            else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        )
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def exports(
    folder: pathlib.Path, name: str, changes: Changes, requests: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Exports a changed example, legacy and migrated; returns the answers, which must be equal."""
    example = EXAMPLES[name]._replace(first=3)
    write_programs(folder, name, changes)
    train(folder, ["old.npz"], "train.py", "old", example.first, example)
    commands(folder, example)
    shutil.copytree(folder / "converted", folder / "new")
    train(folder, ["new.npz"], "train_tf2.py", "new", example.first, example)
    np.savez(folder / "requests.npz", **requests)
    return dict(check_exports(folder, name, "requests.npz"))


def serialized(samples: Iterable[Lists]) -> np.ndarray:
    return np.array([example_of(sample) for sample in samples], object)


MOVIELENS = [
    (
        "def bias_baseline(",
        """\
def serving_input_receiver_fn():
  examples = tf.placeholder(tf.string, [None], name='examples')
  spec = {key: tf.io.VarLenFeature(tf.int64) for key in SINGLE_IDS + ('genres', 'history')}
  spec.update(
    {key: tf.io.VarLenFeature(tf.float32) for key in ('genre_weights', 'history_rating')}
  )
  features = tf.io.parse_example(examples, spec)
  shape = [tf.shape(examples, out_type=tf.int64)[0], HISTORY]
  history = tf.sparse.slice(features['history'], [0, 0], shape)
  features['history'] = tf.sparse.reset_shape(history, shape)
  rating = tf.sparse.slice(features['history_rating'], [0, 0], shape)
  features['history_rating'] = tf.ensure_shape(
      tf.sparse.to_dense(tf.sparse.reset_shape(rating, shape)), [None, HISTORY])
  return tf_estimator.export.ServingInputReceiver(features, {'examples': examples})


def bias_baseline(""",
    ),
    (
        "  for i, prediction in zip(",
        "  estimator.export_saved_model(os.path.join(FLAGS.model_dir, 'export'),\n"
        "                               serving_input_receiver_fn)\n"
        "  for i, prediction in zip(",
    ),
]


@pytest.mark.full
def test_movielens_answers_requests_at_the_edges(tmp_path: pathlib.Path) -> None:
    """Answers are equal for id 0, no ids, weights of 0 and below, and truncated sequences."""
    one = {key: [0] for key in ("user_id", "item_id", "age", "occupation", "gender")}
    genres = {"genres": [0, 3, 5], "genre_weights": [0.5, 1.0, 2.0]}
    history = {"history": [0, 2, 0, 1], "history_rating": [1.0, -1.0, 0.5, 0.25]}
    long = {"history": [*range(10)] * 3, "history_rating": [0.1] * 30}
    samples: list[Lists] = [
        {**one, **genres, **history},
        {**one, **genres, **long},
        {**one, "genres": [4, 0], "genre_weights": [0.0, -1.0], **history},
        {**one, **genres},
        {**one, **history, "user_id": [], "age": []},
        {},
    ]
    answered = exports(tmp_path, "movielens", MOVIELENS, {"examples": serialized(samples)})

    ratings = answered["objects/serving_default/rating"]
    assert ratings.shape == (6,)
    # Each loader has its own graph optimizer, which may choose other kernels.
    of_session = answered["session/serving_default/rating"]
    np.testing.assert_allclose(ratings, of_session, rtol=0, atol=PREDICTIONS)
    assert len(set(ratings.tolist())) == 6


TWO_TOWER = [
    (
        "return tf.estimator.export.ServingInputReceiver(to_sparse(samples), samples)",
        """\
return tf.estimator.export.build_parsing_serving_input_receiver_fn(
      {key: tf.io.VarLenFeature(TYPES[key]) for key in TYPES}, default_batch_size=5)()""",
    ),
]


@pytest.mark.full
def test_columns_drop_weights_that_are_not_positive(tmp_path: pathlib.Path) -> None:
    """With a combiner other than sum, exports drop ids without positive weight; a TPU does not."""
    one = {key: [0] for key in ("user", "item", "category")}
    words = {"words": [0, 5, 9], "word_weights": [0.5, 1.0, 2.0]}
    pruned = {"words": [0, 5, 9], "word_weights": [0.0, -1.0, 2.0]}
    clicked = {"clicked": [0, 7, 0]}
    samples: list[Lists] = [
        {**one, **words, **clicked},
        {**one, **pruned, **clicked},
        {**one, "words": [9], "word_weights": [2.0], **clicked},
        {**one, **words, "clicked": [*range(20)]},
        {**words, **clicked},
    ]
    answered = exports(tmp_path, "two_tower", TWO_TOWER, {"examples": serialized(samples)})

    scores = answered["objects/serving_default/score"]
    assert len(set(scores.tolist())) == 4
    assert scores[1] == scores[2]


DICTS = [
    (
        "  padded = {key: tf.placeholder(TYPES[key], [None] + SHAPES[key], name=key) "
        "for key in TYPES}",
        """\
  examples = tf.placeholder(tf.string, [None], name='examples')
  padded = tf.io.parse_example(
      examples, {key: tf.io.FixedLenFeature(SHAPES[key], TYPES[key]) for key in TYPES})
  padded = {key: tf.identity(padded[key], name=key) for key in padded}
  features = to_sparse(padded)
  features['taster'], features['grapes'] = padded['taster'], padded['grapes']""",
    ),
    (
        "  return tf.estimator.export.ServingInputReceiver(to_sparse(padded), padded)",
        """\
  return tf.estimator.export.ServingInputReceiver(
      features, {'examples': examples}, {'fields': padded})""",
    ),
    (
        "'regression': tf.estimator.export.RegressionOutput(rating),",
        """\
'regression': tf.estimator.export.RegressionOutput(rating),
            'classes': tf.estimator.export.ClassificationOutput(
                scores=tf.stack([rating, -rating], 1),
                classes=tf.as_string(tf.stack([rating > 0, rating <= 0], 1))),""",
    ),
]


@pytest.mark.full
def test_config_dicts_have_dense_ids_and_all_signatures(tmp_path: pathlib.Path) -> None:
    """Exports drop id 0 from dense rows, and all signatures with ratings agree."""
    words = {"words": [0, 5, -1, -1, -1], "word_weights": [0.5, -1.0, 1.0, 1.0, 1.0]}
    samples: list[Lists] = [
        {"taster": [3], "grapes": [1, 2, 3], **words},
        {"taster": [3], "grapes": [1, 0, 0], **words},
        {"taster": [7], "grapes": [0, 1, 0], **words},
        {"taster": [7], "grapes": [0, 0, 0], **words},
    ]
    fields = {f"fields:serving_default/{key}": [s[key] for s in samples] for key in samples[0]}
    fields["fields:serving_default/taster"] = [3, 3, 7, 7]
    requests = {"examples": serialized(samples), "inputs": serialized(samples), **fields}
    answered = exports(tmp_path, "dict_config", DICTS, requests)

    ratings = answered["objects/serving_default/rating"]
    for signature in ("fields:serving_default/rating", "regression/outputs"):
        # Each signature has its own graph.
        np.testing.assert_allclose(
            answered[f"objects/{signature}"], ratings, rtol=0, atol=PREDICTIONS
        )
    assert answered["objects/classes/scores"].shape == (4, 2)
    assert {key.split("/")[1] for key in answered} == {
        *("serving_default", "fields:serving_default", "regression", "classes")
    }
    assert len(set(ratings.tolist())) == 4


@pytest.mark.full
def test_refused_exports_leave_nothing_behind(tmp_path: pathlib.Path) -> None:
    """A refused export names what is missing and leaves no files; no export overwrites another."""
    more: set[str] = set()
    linear = trainers.model(trainers.minimized)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> training.ModelSpec:
        spec = linear(features, labels, mode)
        if mode != training.ModeKeys.PREDICT:
            return spec
        assert "batch_size" not in params
        zeros = tf.compat.v1.zeros_initializer()
        net = spec.predictions["net"] + tf.compat.v1.get_local_variable("local", [1], None, zeros)
        if "variable" in more:
            net += tf.compat.v1.get_variable("only_here", [])
        outputs = {key: export.PredictOutput(net) for key in "ab"} if "outputs" in more else None
        return training.ModelSpec(mode, predictions=net, export_outputs=outputs)

    def receiver_fn() -> Any:
        word = tf.compat.v1.placeholder(tf.int64, [None, None])
        return export.ServingInputReceiver({"word": word}, word)

    trainer = trainers.make(model_fn, tmp_path / "model")

    def assert_refused(words: str, receiver_fn: Any = receiver_fn) -> None:
        with pytest.raises(errors.InvalidInput, match=words):
            trainer.export_saved_model(str(tmp_path / "export"), receiver_fn)
        assert not [*tmp_path.glob("export/*")]

    assert_refused("no checkpoint in .*model; train first")
    trainer.train(trainers.input_fn, max_steps=1)
    assert_refused("must return a ServingInputReceiver with .* returned {'x'", lambda: {"x": 1})
    more.add("variable")
    assert_refused(
        "model.ckpt-1 lacks 'only_here', a variable that the model_fn creates only for p"
    )
    more.symmetric_difference_update({"variable", "outputs"})
    assert_refused(r"The export_outputs are \['a', 'b'\]. Name one of them 'serving_default'")
    more.clear()

    exported = [trainer.export_saved_model(str(tmp_path / "export"), receiver_fn) for _ in "12"]
    assert sorted(exported) == exported
    assert len({*exported}) == 2
    trainer.train(trainers.input_fn, max_steps=5)
    exported.append(trainer.export_saved_model(str(tmp_path / "export"), receiver_fn))
    np.savez(tmp_path / "requests.npz", input=np.array([[3, -1], [4, 0]], np.int64))
    paths = [pathlib.Path(os.fsdecode(path)) for path in exported]
    one, two, three = answers(tmp_path, "requests.npz", *paths)
    assert set(one) == {"objects/serving_default/output", "session/serving_default/output"}
    for key, value in one.items():
        assert value.shape == (2, 1)
        np.testing.assert_array_equal(value, two[key])
        assert np.all(value != three[key])  # from a later checkpoint
