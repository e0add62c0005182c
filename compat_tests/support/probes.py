"""Asks drivers questions that no public document answers, and records the answers.

The engine had to choose an answer to each. If a TPU gives another one, the TPU is right, and the
engine has to be changed. Therefore these are not tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from compat_tests.cases.optimizers import CASES
from compat_tests.conftest import Engine, Runner
from compat_tests.references.training import Contribution, ReferenceTable
from compat_tests.support import tpus
from tf2_engine import (
    FTRL,
    OPTIMIZERS,
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
        question: the text of the question.
        chosen: the answer that the engine chose.
        ask: takes a driver of `cases.DRIVERS`, and returns its answer, a number or a list.
    """

    question: str
    chosen: str
    ask: Callable[[str], Any]


def probes() -> Mapping[str, Probe]:
    return {
        "order of cores": Probe(
            "Without gradient accumulation, in which order do three cores or more that do not own "
            "a row apply their gradients? (Row 0 of Adagrad, gradients 1, 2, 3 and so on.)",
            f"the owner first, then ascending: {_core_by_core(4):.7g} for four cores",
            _order_of_cores,
        ),
        "features of a table": Probe(
            "Without accumulation, are the gradients of two features of one table summed inside a "
            "core? (Row 0 of Adagrad, gradients 1 and 2.)",
            "yes",
            _two_features,
        ),
        "decay of gradient descent": Probe(
            "Does SGD decay the weight before its update, as the others do? (Row 4, decay 0.25, "
            "gradient 1.)",
            "yes: 4 - 0.25 * 4 - 1 = 2",
            lambda driver: _row(driver, SGD(1.0, weight_decay_factor=0.25), 4, [1.0]),
        ),
        "decay before the rule": Probe(
            "Does a rule that reads the weight read the decayed weight? (Row 4 of FTRL, decay 0.5, "
            "gradient 1.)",
            "yes: 0.443515; else 1.840491",
            lambda driver: _row(driver, FTRL(1.0, weight_decay_factor=0.5), 4, [1.0]),
        ),
        "NaN": Probe(
            "What does clipping to [-1, 1] make of a gradient that is NaN? (Row 0 of SGD.)",
            "NaN",
            lambda driver: _row(
                driver, SGD(1.0, clip_gradient_min=-1.0, clip_gradient_max=1.0), 0, [math.nan]
            ),
        ),
        "weight of NaN": Probe(
            "What does clipping to [-1, 1] make of a weight that has become NaN? (Row 0 of SGD.)",
            "NaN",
            lambda driver: _row(
                driver, SGD(1.0, clip_weight_min=-1.0, clip_weight_max=1.0), 0, [math.nan]
            ),
        ),
        "infinity": Probe(
            "What does clipping to [-1, 1] make of a gradient that is infinite? (Row 0 of SGD.)",
            "the limit: -1",
            lambda driver: _row(
                driver, SGD(1.0, clip_gradient_min=-1.0, clip_gradient_max=1.0), 0, [math.inf]
            ),
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
            lambda driver: _mean(driver, [1, 2], [1.0, 0.0]),
        ),
        "negative weight": Probe(
            "Is a negative weight used as it is? (Rows 1 and 2, weights 3 and -1; values 1 and 2.)",
            "yes: (3 * 1 - 2) / 2 = 0.5",
            lambda driver: _mean(driver, [1, 2], [3.0, -1.0]),
        ),
        "weights that sum to zero": Probe(
            "What does the combiner mean return for weights that sum to 0, which is documented as "
            "invalid? (Rows 1 and 2, weights 1 and -1.)",
            "0",
            lambda driver: _mean(driver, [1, 2], [1.0, -1.0]),
        ),
        "negative sum of weights": Probe(
            "Does the combiner mean divide by a negative sum? (Rows 1 and 2, weights 1 and -3.)",
            "it divides: (1 - 3 * 2) / -2 = 2.5",
            lambda driver: _mean(driver, [1, 2], [1.0, -3.0]),
        ),
        "rounding of a mean": Probe(
            "Are rows scaled and then summed, or is the sum divided? (The mean of rows 1, 1, 3.)",
            "scaled first, in order: 1.6666667; else 1.6666666",
            lambda driver: _mean(driver, [1, 1, 3]),
        ),
        **{
            f"rule of {name}": Probe(
                f"What does {name} make of a row of 1 in two steps with gradients 1 and 2? (Rate "
                f"0.125, {dict(CASES[name].settings)}. {why})",
                f"{_by_the_reference(name):.7g}",
                lambda driver, name=name: _row(
                    driver, OPTIMIZERS[name](0.125, **CASES[name].settings), 1, [1.0, 2.0]
                ),
            )
            for name, why in {
                **dict.fromkeys(
                    ("Momentum", "RMSProp", "CenteredRMSProp", "Adadelta", "ProximalAdagrad"),
                    "The rule is that of TensorFlow's op for CPUs, which the proto names.",
                ),
                "ProximalYogi": "The rule is inferred from the paper.",
            }.items()
        },
    }


def ask_all(driver: str) -> list[dict[str, Any]]:
    """Lists every question with a driver's answer, which may be an error."""
    answers = []
    for name, probe in probes().items():
        try:
            answer = probe.ask(driver)
        except Exception as error:  # an error is an answer too
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
        Runner("function"),
        EngineSpec(
            (TableSpec("table", ROWS, 1, combiner, optimizer, first),),
            tuple(FeatureSpec(f"ids{number}", "table") for number in range(features)),
        ),
        driver=driver,
        num_cores=cores,
    )
    engine.build_for([(1,)] * features)
    return engine


def _step(
    engine: Engine, cores: Sequence[Mapping[str, int]], gradients: Sequence[Mapping[str, float]]
) -> None:
    """Trains a step. `cores` and `gradients` map each core's features to an id and a gradient."""
    engine.train(
        [
            {name: tf.constant([one], tf.int64) for name, one in of_core.items()}
            for of_core in cores
        ],
        None,
        [{name: tf.constant([[one]]) for name, one in of_core.items()} for of_core in gradients],
    )


def _first_rows(engine: Engine) -> Any:
    return engine.read()["table"]["parameters"][:, 0]


def _row(driver: str, optimizer: Optimizer, row: int, gradients: Sequence[float]) -> Any:
    """Returns a row after one step per gradient. The row's initial value is its number."""
    engine = _engine(driver, optimizer, 1)
    for gradient in gradients:
        _step(engine, [{"ids0": row}], [{"ids0": gradient}])
    return _first_rows(engine)[row]


def _by_the_reference(name: str) -> float:
    case = CASES[name]
    table = ReferenceTable(np.ones((1, 1)), case.reference, case.reference_settings)
    for gradient in (1.0, 2.0):
        table.apply([Contribution(0, 0, 0, 0, 1.0)], {(0, 0): [[gradient]]}, 0.125)
    return float(table.weights[0, 0])


def _order_of_cores(driver: str) -> Any:
    cores = tpus.num_cores(4) if driver == "tpu" else 4
    engine = _engine(driver, Adagrad(1.0, use_gradient_accumulation=False), cores, start=0.0)
    _step(engine, [{"ids0": 0}] * cores, [{"ids0": core + 1.0} for core in range(cores)])
    return _first_rows(engine)[0]


def _core_by_core(cores: int) -> float:
    weight, accumulator = 0.0, 0.1
    for core in range(cores):
        accumulator += (core + 1.0) ** 2
        weight -= (core + 1.0) / math.sqrt(accumulator)
    return weight


def _two_features(driver: str) -> Any:
    # Cores after the first look up a row that is not part of the answer.
    cores = tpus.num_cores(1) if driver == "tpu" else 1
    engine = _engine(driver, Adagrad(1.0, use_gradient_accumulation=False), cores, 2, start=0.0)
    others = cores - 1
    _step(
        engine,
        [{"ids0": 0, "ids1": 0}, *[{"ids0": ROWS - 1, "ids1": ROWS - 1}] * others],
        [{"ids0": 1.0, "ids1": 2.0}, *[{"ids0": 0.0, "ids1": 0.0}] * others],
    )
    return _first_rows(engine)[0]


def _lookup(driver: str, optimizer: Optimizer, ids: list[int], start: float | None = None) -> Any:
    engine = _engine(driver, optimizer, 1, start=start)
    return engine.look_up([{"ids0": tf.constant(ids, tf.int64)}])[0]["ids0"][0, 0]


def _mean(driver: str, ids: list[int], weights: list[float] | None = None) -> Any:
    engine = _engine(driver, SGD(1.0), 1, combiner="mean")
    places, shape = [[0, at] for at in range(len(ids))], [1, len(ids)]
    value = tf.SparseTensor(places, tf.constant(ids, tf.int64), shape)
    weight_batch = None if weights is None else [{"ids0": tf.SparseTensor(places, weights, shape)}]
    return engine.look_up([{"ids0": value}], weight_batch)[0]["ids0"][0, 0]
