"""`numpy_input_fn` and `pandas_input_fn` become datasets with the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge.canned.memory_inputs import numpy_input_fn
from estimator_bridge.migrate.blockers import Refused

PROGRAM = """\
import numpy as np
import tensorflow as tf

x, y = {'a': np.arange(7.)}, np.arange(7) % 2
INPUT


def main():
  a = tf.feature_column.numeric_column('a')
  job = tf.estimator.LinearClassifier([a])
  job.train(FEED, steps=5)
  job.evaluate(FEED)
"""

NUMPY, PANDAS = (f"tf.compat.v1.estimator.inputs.{name}_input_fn" for name in ("numpy", "pandas"))
ROWS = "tf.data.Dataset.from_tensor_slices"


def source(feed: str, program_input: str = "") -> str:
    return PROGRAM.replace("INPUT", program_input).replace("FEED", feed)


def migrated(program: str) -> str:
    return migrate_to_keras(program, "train.py").source


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (f"{NUMPY}(x, y, shuffle=False)", "((x, y)).batch(128)"),
        (f"{NUMPY}(x, shuffle=False)", "(x).batch(128)"),
        (
            f"{NUMPY}(x=x, y=None, batch_size=3, num_epochs=2, shuffle=False)",
            "(x).repeat(2).batch(3)",
        ),
        (f"{NUMPY}(x, y, 3, None, True)", "((x, y)).shuffle(1000).repeat().batch(3)"),
        (f"{NUMPY}(x, y, 3, 1, True, 64, 2)", "((x, y)).shuffle(64).batch(3)"),
        (f"{NUMPY}({{'a': x['a']}}, y, shuffle=False)", "(({'a': x['a']}, y)).batch(128)"),
        (f"{PANDAS}(x=x, y=y, shuffle=False)", "((dict(x), y)).batch(128)"),
    ],
)
def test_arrays_and_frames_become_a_dataset(call: str, expected: str) -> None:
    """Works for an input in the call, in a variable, and returned by a function."""
    dataset = f"{ROWS}{expected}"
    assert f"model.fit({dataset}, steps=5)" in migrated(source(call))
    named = migrated(source("feed", f"feed = {call}"))
    assert f"feed = lambda: {dataset}\n" in named
    assert "model.fit(feed(), steps=5)" in named
    returned = migrated(source("feed()", f"\ndef feed():\n  return {call}"))
    assert f"  return lambda: {dataset}\n" in returned
    assert "model.fit(feed()(), steps=5)" in returned


OTHER = f"\ndef other():\n  feed = {NUMPY}(x, y, shuffle=False)\n  return feed"
NOT_WRITTEN_OUT = {
    # TensorFlow has no default for `shuffle`.
    source(f"{NUMPY}(x, y)"): {"keras-input-fn"},
    source(f"{NUMPY}(x, y, shuffle=flag)"): {"keras-input-fn"},
    source(f"{NUMPY}(*rows, shuffle=False)"): {"keras-input-fn"},
    # A parameter is not what another function calls by its name.
    source("feed", OTHER).replace("def main():", "def main(feed):"): {
        *("keras-input-fn", "keras-of-estimator")
    },
}


@pytest.mark.parametrize("program", NOT_WRITTEN_OUT)
def test_inputs_that_are_not_written_out_are_refused(program: str) -> None:
    with pytest.raises(Refused) as caught:
        migrated(program)
    assert {each.rule for each in caught.value.blockers} == NOT_WRITTEN_OUT[program]


@pytest.mark.full
@pytest.mark.parametrize("epochs", [1, 2, None])
@pytest.mark.parametrize("size", [3, 7, 10])
def test_batches_are_those_of_the_queue(epochs: int | None, size: int) -> None:
    """A batch can span two epochs, and only the very last batch may be smaller."""
    call = f"{NUMPY}(x, y, {size}, {epochs}, False)"
    namespace: dict[str, Any] = {"__name__": "train"}
    exec(migrated(source("feed", f"feed = {call}")), namespace)
    x, y = namespace["x"], namespace["y"]
    batches = list(namespace["feed"]().take(6).as_numpy_iterator())
    expected = of_queue(numpy_input_fn(x, y, size, epochs, False), 6)
    assert len(batches) == len(expected)
    for (features, labels), (other_features, other_labels) in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(features["a"], other_features["a"], strict=True)
        np.testing.assert_array_equal(labels, other_labels, strict=True)


def of_queue(input_fn: Any, most: int) -> list[Any]:
    """Returns at most `most` batches of a queue-based input function."""
    batches: list[Any] = []
    with tf.Graph().as_default():
        batch = input_fn()
        with tf.compat.v1.train.MonitoredSession() as session:
            while len(batches) < most and not session.should_stop():
                batches.append(session.run(batch))
    return batches
