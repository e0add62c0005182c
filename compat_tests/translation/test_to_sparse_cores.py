"""`to_tf2(target="sparsecore")` translates a spec for stock's TPUEmbeddingV2, or says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Feature, Optimizer, Table
from compat_tests.support import legacy_specs, translating
from compat_tests.support.translating import optimizer
from estimator_bridge import errors

ADAGRAD = Optimizer("Adagrad", {"learning_rate": 0.1})
WITHOUT = {"clip_weight_min": -1.0, "clip_gradient_max": 1.0, "weight_decay_factor": 0.5}
"""Settings of any optimizer that SparseCores do not have."""


def of(batch_size: int | None = 8, **settings: Any) -> Any:
    """Returns the objects for SparseCores of a spec with one table and one feature."""
    spec = legacy_specs.build(translating.case(**settings))
    return spec.to_tf2(target="sparsecore", batch_size=batch_size)


@pytest.mark.parametrize(
    "settings, words",
    [
        (optimizer("Adagrad", **WITHOUT), [f"{name}={value}" for name, value in WITHOUT.items()]),
        (optimizer("Adam", lazy_adam=False), ["lazy_adam=False"]),
        (optimizer("Momentum", momentum=0.9), ["MomentumParameters"]),
        (optimizer("Ftrl", initial_accumulator_value=0.0), ["refuses an initial accumulator of 0"]),
        (
            {"tables": {"t": Table(optimizer=Optimizer("ProximalYogi", {"learning_rate": 0.1}))}},
            ["table 't': ProximalYogiParameters"],
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(settings: dict[str, Any], words: list[str]) -> None:
    """Settings without which a program trains to something else are refused, all in one error."""
    with pytest.raises(errors.Untranslatable, match="SparseCores cannot honour") as raised:
        of(**settings)
    assert [each for each in words if each not in str(raised.value)] == []


@pytest.mark.parametrize(
    "options, words",
    [
        ({"target": "gpu", "batch_size": 8}, "`target` must be"),
        ({"target": "sparsecore"}, "'sparsecore' needs the `batch_size` of a core"),
        ({"target": "keras_rs"}, "'keras_rs' needs the `batch_size` of a core"),
    ],
)
def test_an_unknown_target_and_no_batch_size(options: dict[str, Any], words: str) -> None:
    """The target is named, and a program for it has shapes."""
    spec = legacy_specs.build(translating.case(optimizer=ADAGRAD))
    with pytest.raises(errors.InvalidInput, match=words):
        spec.to_tf2(**options)


def test_shapes_and_settings_that_stock_refuses() -> None:
    """Features have output shapes; a decay of 0, which stock refuses, is left out."""
    tf2 = of(
        features={"f": Feature("t", max_sequence_length=3)},
        **optimizer("Adagrad", weight_decay_factor=0.0),
    )
    table = tf2.feature_config["f"].table

    assert tf2.feature_config["f"].output_shape == [8, 3]
    assert of(optimizer=ADAGRAD).feature_config["f"].output_shape == [8]
    assert table.optimizer.weight_decay_factor is None
    assert table.optimizer.multiply_weight_decay_factor_by_learning_rate is None


def test_numbers_that_differ_are_reported() -> None:
    """A setting that stock ignores there, and that does not stop a program, is a change."""
    tf2 = of(**optimizer("Adagrad", use_gradient_accumulation=False))
    changes = [c for c in tf2.report.changes if c.setting == "use_gradient_accumulation"]

    assert [change.effect for change in changes] == ["numbers"]
    assert "always one update of a row per global batch" in changes[0].why


def test_ids_of_samples_are_in_order() -> None:
    """Ids are sorted by sample, whatever the order of the input, and weights with them."""
    tf2 = of(optimizer=ADAGRAD, features={"f": Feature("t", weight_key="w")})
    indices = [[2, 0], [0, 1], [0, 0]]
    prepared = tf2.preprocessing(
        {
            "f": tf.SparseTensor(indices, tf.constant([3, 2, 1], tf.int64), [4, 2]),
            "w": tf.SparseTensor(indices, tf.constant([0.3, 0.2, 0.1]), [4, 2]),
        }
    )

    assert prepared.ids["f"].indices.numpy().tolist() == [[0, 0], [0, 1], [2, 0]]
    assert prepared.ids["f"].values.numpy().tolist() == [1, 2, 3]
    np.testing.assert_array_equal(
        prepared.weights["f"].values, np.array([0.1, 0.2, 0.3], np.float32)
    )


def test_positions_of_sequences_are_rows() -> None:
    """Position p of sample i is row i · T + p; what is beyond T is cut, and lengths are, too."""
    tf2 = of(optimizer=ADAGRAD, features={"f": Feature("t", max_sequence_length=2)})
    prepared = tf2.preprocessing({"f": tf.constant([[1, 2, 3], [4, -1, -1]], tf.int64)})
    ids = prepared.ids["f"]

    assert ids.indices.numpy()[:, 0].tolist() == [0, 1, 2]
    assert ids.values.numpy().tolist() == [1, 2, 4]
    assert ids.dense_shape.numpy()[0] == 2 * 2
    assert prepared.lengths["f"].numpy().tolist() == [2, 1]
