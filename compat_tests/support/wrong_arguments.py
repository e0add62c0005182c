"""Calls every constructor with a wrong type or value for each argument in turn."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import tf2_engine
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters, spec, table_config
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.settings import optimizer_rows
from tf2_engine import OPTIMIZERS, SGD, EngineSpec, FeatureSpec, TableSpec, arguments
from tf2_engine.errors import EngineError

WRONG: dict[str, Any] = {
    "a text": "x",
    "a text of a number": "1.5",
    "bytes": b"x",
    "a negative number": -1,
    "a fraction": 1.5,
    "zero": 0,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "a large number": 1 << 70,
    "a complex number": 1j,
    "a list": [1],
    "an empty list": [],
    "a dict": {"a": 1},
    "an object": object(),
    "a class": int,
    "a function": lambda *_: None,
    "None": None,
    "an array": np.ones([2, 2]),
    "a tensor shape": tf.TensorShape([2]),
}


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    raise AssertionError("no model is made")


def _config() -> Any:
    return estimator.tpu.RunConfig(model_dir="/nowhere")


def _optimizers() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    legacy = {name: getattr(parameters, name) for name in optimizer_rows.OPTIMIZERS}
    return {name: (kind, _needed(kind)) for name, kind in {**OPTIMIZERS, **legacy}.items()}


def _needed(kind: Any) -> dict[str, Any]:
    """Returns a value for each setting that has no default."""
    missing = dataclasses.MISSING
    needed: dict[str, Any] = {
        each.name: 0.5
        for each in dataclasses.fields(kind)
        if each.init and each.default is missing and each.default_factory is missing
    }
    if kind is OPTIMIZERS["FrequencyEstimator"]:
        needed["learning_rate"] = lambda: 0  # the global step
    return needed


def constructors() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Maps names to constructors, each with valid arguments."""
    table = TableSpec("t", 4, 2, "sum", SGD(0.1))
    legacy_table = table_config.TableConfig(4, 2)
    of_spec = {
        "feature_to_config_dict": {"f": table_config.FeatureConfig("t")},
        "table_to_config_dict": {"t": legacy_table},
        "optimization_parameters": parameters.AdagradParameters(0.1),
    }
    return {
        **_optimizers(),
        "TableSpec": (TableSpec, {"name": "t", "vocabulary_size": 4, "dim": 2}),
        "FeatureSpec": (FeatureSpec, {"name": "f", "table": "t"}),
        "EngineSpec": (EngineSpec, {"tables": (table,), "features": (FeatureSpec("f", "t"),)}),
        "TPUEmbedding": (
            tf2_engine.TPUEmbedding,
            {"feature_config": EngineSpec((table,), (FeatureSpec("f", "t"),))},
        ),
        "legacy TableConfig": (table_config.TableConfig, {"vocabulary_size": 4, "dimension": 2}),
        "legacy FeatureConfig": (table_config.FeatureConfig, {"table_id": "t"}),
        "EmbeddingConfigSpec": (spec.EmbeddingConfigSpec, of_spec),
        "TPUConfig": (estimator.tpu.TPUConfig, {}),
        "RunConfig": (RunConfig, {}),
        "tpu.RunConfig": (estimator.tpu.RunConfig, {}),
        "TrainSpec": (estimator.TrainSpec, {"input_fn": lambda: None}),
        "EvalSpec": (estimator.EvalSpec, {"input_fn": lambda: None}),
        "Estimator": (estimator.Estimator, {"model_fn": lambda features: None}),
        "TPUEstimator": (
            estimator.tpu.TPUEstimator,
            {
                "model_fn": _model_fn,
                "config": _config(),
                "train_batch_size": 8,
                "embedding_config_spec": spec.EmbeddingConfigSpec(**of_spec),
            },
        ),
    }


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one wrong argument. The error is None if the argument was accepted."""

    constructor: str
    argument: str
    wrong: str
    error: BaseException | None
    refusable: bool  # whether the annotation alone says that it is wrong

    @property
    def defect(self) -> str | None:
        """Describes what is wrong with the outcome, or None."""
        value = WRONG[self.wrong]
        where = f"{self.constructor}({self.argument}={value!r})"
        if self.error is None:
            return f"{where} passes" if self.refusable else None
        message = str(self.error)
        if not isinstance(self.error, EngineError):
            return f"{where} raises a raw {type(self.error).__name__}: {message[:150]}"
        if not isinstance(self.error, (TypeError, ValueError, RuntimeError)):
            return f"{where} raises {type(self.error).__name__}, which stock never does"
        # Some rules concern two arguments, or parts of them, and the message names the other one.
        return (
            None if self.argument in message or not self.refusable else f"{where}: {message[:150]}"
        )


def arguments_of(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters_ = inspect.signature(constructor).parameters
    return {name: each for name, each in parameters_.items() if each.kind not in variable}


def outcomes(part: slice = slice(None)) -> Iterator[Outcome]:
    """Yields the outcome of each combination, or of a slice of all combinations."""
    cases = [
        (name, argument, annotation.annotation, wrong)
        for name, (constructor, _) in constructors().items()
        for argument, annotation in arguments_of(constructor).items()
        for wrong in WRONG
    ]
    by_name = constructors()
    for name, argument, annotation, wrong in cases[part]:
        constructor, valid = by_name[name]
        kinds = arguments.kinds_of(annotation)
        refusable = bool(kinds) and not any(_contains(kind, WRONG[wrong]) for kind in kinds)
        error: BaseException | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                constructor(**{**valid, argument: WRONG[wrong]})
        except Exception as raised:
            error = raised
        yield Outcome(name, argument, wrong, error, refusable)


def _contains(kind: arguments.Kind, value: Any) -> bool:
    return bool(kind.contains(value))
