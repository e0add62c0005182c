"""Questions that no public document answers: each is put to whatever executes, and recorded.

The engine had to choose an answer. A TPU that answers otherwise is right, and the engine is to be
changed; so these are no tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from compat_tests.conftest import Engine, Runner
from tf2_engine import (
    SGD,
    Adagrad,
    EngineSpec,
    FeatureSpec,
    FrequencyEstimator,
    Optimizer,
    TableSpec,
)

ROWS = 6


class Probe(NamedTuple):
    """A question.

    Attributes:
        question: as one would ask it.
        chosen: what the engine does.
        ask: called with a driver of `cases.DRIVERS`; returns the answer, a number or a list.
    """

    question: str
    chosen: str
    ask: Callable[[str], Any]


def probes() -> Mapping[str, Probe]:
    """Returns every question by name."""
    return {
        "order of cores": Probe(
            "Without gradient accumulation, in which order do three cores or more that do not own "
            "a row apply their gradients? (Row 0 of Adagrad, gradients 1, 2, 3 and 4 on cores 0 to "
            "3.)",
            "the owner first, then ascending",
            lambda driver: _rows(
                driver,
                Adagrad(1.0, use_gradient_accumulation=False),
                [[0]] * 4,
                [1.0, 2.0, 3.0, 4.0],
            )[0],
        ),
        "features of a table": Probe(
            "Without accumulation, are the gradients of two features of one table summed inside a "
            "core? (Row 0 of Adagrad, gradients 1 and 2.)",
            "yes",
            _two_features,
        ),
        "NaN": Probe(
            "What does clipping to [-1, 1] make of a gradient that is NaN? (Row 0 of SGD.)",
            "NaN",
            lambda driver: _rows(
                driver, SGD(1.0, clip_gradient_min=-1.0, clip_gradient_max=1.0), [[0]], [math.nan]
            )[0],
        ),
        "frequency": Probe(
            "Does a lookup in a FrequencyEstimator's table return the estimate D, or the weight "
            "(D / max_delta)^weight_exponent? (D = max_delta = 4.)",
            "D, 4; the weight would be 1",
            lambda driver: _lookup(
                driver,
                FrequencyEstimator(
                    lambda: tf.constant(1.0),
                    tau=0.5,
                    max_delta=4.0,
                    outlier_threshold=2.0,
                    weight_exponent=2.0,
                ),
                [0],
                start=4.0,
            ),
        ),
        "id beyond the table": Probe(
            f"What does a lookup of id {ROWS + 3} in a table of {ROWS} rows return?",
            "on a host an error; on the software TPU one as well",
            lambda driver: _lookup(driver, SGD(1.0), [ROWS + 3]),
        ),
        "negative id": Probe(
            "What does a lookup of id -1 return?",
            "on a host an error; on the software TPU one as well",
            lambda driver: _lookup(driver, SGD(1.0), [-1]),
        ),
        "id of 33 bits": Probe(
            f"What does a lookup of id 2^32 + 1 in a table of {ROWS} rows return? (Row 1 is 1.)",
            "an error: ids stay int64",
            lambda driver: _lookup(driver, SGD(1.0), [2**32 + 1]),
        ),
        "weight of zero": Probe(
            "Is an id whose weight is 0 counted by the combiner mean? (Rows 1 and 2, weights 1 and "
            "0; their values are 1 and 2.)",
            "its weight is used as it is: 1.0",
            lambda driver: _weighted(driver, [1.0, 0.0]),
        ),
        "negative weight": Probe(
            "Is a negative weight used as it is? (Rows 1 and 2, weights 3 and -1; values 1 and 2.)",
            "yes: (3 * 1 - 2) / 2 = 0.5",
            lambda driver: _weighted(driver, [3.0, -1.0]),
        ),
    }


def ask_all(driver: str) -> list[dict[str, Any]]:
    """Returns every question with the answer of a driver; an error is an answer too."""
    answers = []
    for name, probe in probes().items():
        try:
            answer = probe.ask(driver)
        except Exception as error:  # whatever a device does is what is asked
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
        answers.append(
            {
                "name": name,
                "question": probe.question,
                "chosen": probe.chosen,
                "answer": np.asarray(answer).tolist(),
            }
        )
    return answers


def _engine(
    driver: str,
    optimizer: Optimizer,
    cores: int,
    features: int = 1,
    combiner: str = "sum",
    start: float | None = None,
) -> Engine:
    def first(shape: Any, dtype: Any) -> Any:
        rows = tf.range(shape[0], dtype=dtype) if start is None else tf.fill(shape[:1], start)
        return tf.tile(rows[:, None], [1, shape[1]])

    engine = Engine(
        Runner("function", autograph=False),
        EngineSpec(
            (TableSpec("table", ROWS, 1, combiner, optimizer, first),),
            tuple(FeatureSpec(f"ids{number}", "table") for number in range(features)),
        ),
        driver=driver,
        num_cores=cores,
    )
    engine.build_for([(1,)] * features)
    return engine


def _rows(driver: str, optimizer: Optimizer, ids: list[list[int]], gradients: list[float]) -> Any:
    """Returns the table after a step in which each core looks ids up in rows that are 0."""
    engine = _engine(driver, optimizer, len(ids), start=0.0)
    engine.train(
        [{"ids0": tf.constant(own, tf.int64)} for own in ids],
        None,
        [{"ids0": tf.constant([[gradient]])} for gradient in gradients],
    )
    return engine.read()["table"]["parameters"][:, 0]


def _two_features(driver: str) -> Any:
    engine = _engine(driver, Adagrad(1.0, use_gradient_accumulation=False), 1, 2, start=0.0)
    ids = tf.constant([0], tf.int64)
    gradients = {"ids0": tf.constant([[1.0]]), "ids1": tf.constant([[2.0]])}
    engine.train([{"ids0": ids, "ids1": ids}], None, [gradients])
    return engine.read()["table"]["parameters"][0, 0]


def _lookup(driver: str, optimizer: Optimizer, ids: list[int], start: float | None = None) -> Any:
    engine = _engine(driver, optimizer, 1, start=start)
    return engine.look_up([{"ids0": tf.constant(ids, tf.int64)}])[0]["ids0"][0, 0]


def _weighted(driver: str, weights: list[float]) -> Any:
    engine = _engine(driver, SGD(1.0), 1, combiner="mean")
    places, shape = [[0, at] for at in range(len(weights))], [1, len(weights)]
    ids = tf.SparseTensor(places, tf.constant([1, 2], tf.int64), shape)
    given = tf.SparseTensor(places, weights, shape)
    return engine.look_up([{"ids0": ids}], [{"ids0": given}])[0]["ids0"][0, 0]
