"""Specs whose device configuration is compared with stock's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from compat_tests.cases.legacy import Case, Column, Feature, Optimizer, Table

# (hosts, cores on all of them)
TOPOLOGIES = ((1, 1), (1, 2), (1, 8), (2, 2), (2, 8), (5, 5), (5, 10))

_SHARED_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "no_accumulation": {"use_gradient_accumulation": False},
    "weights_above": {"clip_weight_min": -0.5},
    "weights_below": {"clip_weight_max": 0.25},
    "weights_within": {"clip_weight_min": 0.0, "clip_weight_max": 1.5},
    "gradients_above": {"clip_gradient_min": -0.1},
    "gradients_below": {"clip_gradient_max": 0.2},
    "gradients_within": {"clip_gradient_min": -3, "clip_gradient_max": 3},
    "decay": {"weight_decay_factor": 0.01},
    "decay_by_rate": {
        "weight_decay_factor": 0.03,
        "multiply_weight_decay_factor_by_learning_rate": True,
    },
    "decay_not_by_rate": {
        "weight_decay_factor": 0.03,
        "multiply_weight_decay_factor_by_learning_rate": False,
    },
    "decay_zero": {
        "weight_decay_factor": 0.0,
        "multiply_weight_decay_factor_by_learning_rate": True,
    },
}

_L1, _L2 = "l1_regularization_strength", "l2_regularization_strength"
_RATE = {"learning_rate": 0.05}
_ESTIMATOR = {"tau": 0.1, "max_delta": 500.0, "outlier_threshold": 3, "weight_exponent": 0.5}

# What starts with "accumulator" concerns slots, which the device is not told of.
_OWN_SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "StochasticGradientDescent": {"rate_zero": {"learning_rate": 0.0}},
    "Adagrad": {"accumulator": {"initial_accumulator": 0.7}},
    "Adam": {
        "betas": {"beta1": 0.5, "beta2": 0.25},
        "beta_zero": {"beta1": 0.0},
        "epsilon": {"epsilon": 1e-3},
        "not_lazy": {"lazy_adam": False},
        "outside_root": {"sum_inside_sqrt": False},
        "neither": {"lazy_adam": False, "sum_inside_sqrt": False, "weight_decay_factor": 0.1},
    },
    "ProximalAdagrad": {
        "accumulator": {"initial_accumulator": 0.7},
        "l1": {_L1: 0.25},
        "l2": {_L2: 0.125},
        "l1_and_l2": {_L1: 1, _L2: 2},
    },
    "Ftrl": {
        "accumulator": {"initial_accumulator_value": 0.7},
        "accumulator_zero": {"initial_accumulator_value": 0.0},
        "zero_allowed": {"initial_accumulator_value": 0.0, "allow_zero_accumulator": True},
        "power": {"learning_rate_power": -0.75},
        "power_zero": {"learning_rate_power": 0},
        "l1": {_L1: 0.25},
        "l2": {_L2: 0.125},
        "beta": {"beta": 0.5},
        "linear_times_rate": {"multiply_linear_by_learning_rate": True},
        "all": {
            "learning_rate_power": -0.25,
            _L1: 1,
            _L2: 2,
            "beta": 3,
            "multiply_linear_by_learning_rate": True,
        },
    },
    "Momentum": {
        "momentum": {"momentum": 0.5},
        "momentum_zero": {"momentum": 0},
        "nesterov": {"use_nesterov": True},
    },
    "RMSProp": {
        "rho": {"rho": 0.5},
        "momentum": {"momentum": 0.25},
        "epsilon": {"epsilon": 1},
        "epsilon_zero": {"epsilon": 0.0},
    },
    "AdagradMomentum": {
        "momentum": {"momentum": 0.5},
        "nesterov": {"use_nesterov": True},
        "exponent": {"exponent": 3},
        "beta": {"beta2": 0.75},
        "epsilon": {"epsilon": 1e-3},
        "all": {
            "momentum": 0.25,
            "use_nesterov": True,
            "exponent": 1.5,
            "beta2": 0.5,
            "epsilon": 0.1,
        },
    },
    "ProximalYogi": {
        "accumulator": {"initial_accumulator_value": 0.7},
        "accumulator_zero": {"initial_accumulator_value": 0.0},
        "betas": {"beta1": 0.5, "beta2": 0.25},
        "beta_zero": {"beta1": 0.0},
        "epsilon": {"epsilon": 1e-5},
        "l1": {_L1: 0.25},
        "l2": {_L2: 0.125},
    },
    "FrequencyEstimator": {
        "defaults": {},
        "tau": {"tau": 0.75},
        "delta": {"max_delta": 20},
        "threshold": {"outlier_threshold": 1.5},
        "exponent": {"weight_exponent": -1.0},
    },
}

# Of every optimizer what its constructor cannot do without.
_REQUIRED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(_OWN_SETTINGS, _RATE),
    "Momentum": {**_RATE, "momentum": 0.875},
    "RMSProp": {**_RATE, "rho": 0.75, "momentum": 0.875, "epsilon": 1e-7},
    "AdagradMomentum": {**_RATE, "momentum": 0.875},
    "FrequencyEstimator": _ESTIMATOR,
}

KINDS = tuple(_OWN_SETTINGS)
"""Every legacy optimizer, without `Parameters`."""

NOT_FOR_COLUMNS = ("AdagradMomentum", "ProximalYogi", "FrequencyEstimator")
"""Those that stock refuses beside `feature_columns`."""

_SGD = Optimizer("StochasticGradientDescent", {"learning_rate": 0.1})
_ADAGRAD = Optimizer("Adagrad", {"learning_rate": 0.2, "clip_weight_max": 2.0})
_ADAM = Optimizer("Adam", {"learning_rate": 0.3})

_TABLES = {"users": Table(dimension=8), "films": Table(vocabulary_size=21, combiner="sum")}
_FEATURES = {"watched": Feature("films"), "user": Feature("users"), "liked": Feature("films")}
_DICTS: Mapping[str, Any] = {"tables": _TABLES, "features": _FEATURES}
_COUNTED: Mapping[str, Any] = {
    "tables": {"hits": Table(dimension=1, learning_rate_fn="warming")},
    "features": {"user": Feature("hits")},
}
_COLUMNS = (Column(("user",), dimension=8), Column(("watched",), 21, combiner="sum"))


def _optimizer_cases() -> Iterator[Case]:
    """Every setting of every optimizer, in either form of the spec, over the topologies."""
    topologies = itertools.cycle(TOPOLOGIES)
    forms: Iterator[Mapping[str, Any]] = itertools.cycle([{"columns": _COLUMNS}, _DICTS])
    for kind, of_optimizer in _OWN_SETTINGS.items():
        counts = kind == "FrequencyEstimator"
        # Its shared settings cannot be set.
        shared = {} if counts else _SHARED_SETTINGS
        for name, settings in {**shared, **of_optimizer}.items():
            hosts, cores = next(topologies)
            form = (_COUNTED if counts else _DICTS) if kind in NOT_FOR_COLUMNS else next(forms)
            yield Case(
                name=f"{kind}-{name}",
                optimizer=optimizer_of(kind, **settings),
                num_hosts=hosts,
                num_cores=cores,
                **form,
            )


def optimizer_of(kind: str, **settings: Any) -> Optimizer:
    """Returns an optimizer of a kind, what is not given being what it cannot do without."""
    return Optimizer(kind, {**_REQUIRED[kind], **settings})


def _each_its_own(*rates: str | float | None, **settings: Any) -> dict[str, Any]:
    """A table with its own optimizer for each kind, every other one with replicated ids.

    Args:
        rates: of the tables, in turns: a number, the name of a function, or None.
        settings: of the case.
    """
    tables = {}
    for number, kind in enumerate(KINDS):
        rate = rates[number % len(rates)]
        if kind == "FrequencyEstimator":
            rate = "warming"
        tables[kind.lower()] = Table(
            dimension=1 if kind == "FrequencyEstimator" else number + 2,
            hot_id_replication=bool(number % 2),
            learning_rate=None if isinstance(rate, str) else rate,
            learning_rate_fn=rate if isinstance(rate, str) else None,
            optimizer=optimizer_of(kind),
        )
    features = {f"f_{name}": Feature(name) for name in tables}
    return {"optimizer": None, "tables": tables, "features": features, **settings}


def refused_columns(kind: str) -> Case:
    """Returns a spec with `feature_columns` and an optimizer of a kind."""
    return Case(name=f"{kind}-columns", optimizer=optimizer_of(kind), columns=_COLUMNS)


def _topology_cases() -> Iterator[Case]:
    """Every topology, with tables that have fewer rows than there are hosts."""
    for hosts, cores in TOPOLOGIES:
        yield Case(
            name=f"topology-{hosts}-hosts-{cores}-cores",
            optimizer=_ADAGRAD,
            tables={"tiny": Table(vocabulary_size=3), "one": Table(1, 1), "even": Table(10)},
            features={"a": Feature("tiny"), "b": Feature("one"), "c": Feature("even")},
            num_hosts=hosts,
            num_cores=cores,
            batch_per_core=hosts + cores,
        )


def _one_table(table: Table, optimizer: Optimizer | None = _ADAM) -> dict[str, Any]:
    return {"optimizer": optimizer, "tables": {"t": table}, "features": {"f": Feature("t")}}


def _rated(**rates: str | float | None) -> dict[str, Any]:
    """Tables with rates: a number, or the name of a function."""
    tables = {
        name: Table(learning_rate_fn=rate) if isinstance(rate, str) else Table(learning_rate=rate)
        for name, rate in rates.items()
    }
    features = {f"f_{name}": Feature(name) for name in rates}
    return {"optimizer": _ADAM, "tables": tables, "features": features}


_OTHER: Mapping[str, Mapping[str, Any]] = {
    # Learning rates.
    "rate-of-table": _rated(a=0.5, b=None),
    "rate-of-table-int": _rated(a=2, b=0.125),
    "rate-of-table-zero": _rated(a=0.0, b=0),
    "rate-dynamic": _rated(a="constant"),
    "rate-dynamic-some": _rated(a=None, b="decaying", c=0.25),
    "rate-dynamic-two": _rated(b="decaying", a="constant"),
    "rate-dynamic-shared": _rated(a="decaying", b="decaying", c=None),
    "rate-dynamic-three-on-five": _rated(
        a="constant", b="decaying", c="constant", d="warming", e="decaying"
    ),
    "rate-dynamic-columns": {
        "optimizer": _SGD,
        "columns": (
            Column(("z",), learning_rate_fn="decaying"),
            Column(("a", "b"), learning_rate_fn="constant"),
            Column(("c",), learning_rate_fn="decaying"),
        ),
    },
    "rate-dynamic-inference": {**_rated(a="decaying", b=0.5, c=None), "training": False},
    # Optimizers of tables.
    "optimizer-of-table": {
        "optimizer": _ADAM,
        "tables": {"a": Table(optimizer=_SGD), "b": Table(), "c": Table(optimizer=_ADAGRAD)},
        "features": {"x": Feature("a"), "y": Feature("b"), "z": Feature("c")},
    },
    "optimizer-of-tables-alone": _one_table(Table(optimizer=_ADAGRAD), optimizer=None),
    "optimizer-of-table-and-rate": _one_table(Table(optimizer=_ADAGRAD, learning_rate=0.75)),
    "optimizer-of-table-and-dynamic-rate": _one_table(
        Table(optimizer=_SGD, learning_rate_fn="warming")
    ),
    "optimizer-of-table-inference": {
        "optimizer": None,
        "tables": {"a": Table(optimizer=_ADAM), "b": Table()},
        "features": {"x": Feature("a"), "y": Feature("b")},
        "training": False,
    },
    "optimizers-of-tables": _each_its_own(None),
    "optimizers-of-tables-on-hosts": _each_its_own(None, 0.75, num_hosts=5, num_cores=10),
    "optimizers-of-tables-and-rates": _each_its_own(0.5, 2, None, 0.125),
    "optimizers-of-tables-and-dynamic-rates": _each_its_own("decaying", None, "constant", 0.25),
    "optimizers-of-tables-inference": _each_its_own(None, "decaying", 0.5, training=False),
    # Features.
    "sequence": {
        "optimizer": _ADAM,
        "tables": {"t": Table()},
        "features": {"s": Feature("t", 5), "f": Feature("t"), "one": Feature("t", 1)},
    },
    "sequence-columns": {
        "optimizer": _ADAM,
        "columns": (Column(("s",), max_sequence_length=3), Column(("f",))),
    },
    "sequence-and-weights": {
        "optimizer": _SGD,
        "tables": {"t": Table(combiner="sqrtn")},
        "features": {"s": Feature("t", 5, "w"), "f": Feature("t", 0, "w")},
    },
    "weights-columns": {
        "optimizer": _SGD,
        "columns": (Column(("f",), weight_key="w", combiner="sqrtn"), Column(("g",))),
    },
    "order": {
        "optimizer": _SGD,
        "tables": {"b": Table(dimension=1), "a": Table(dimension=2), "B": Table(dimension=3)},
        "features": {
            "z": Feature("a"),
            "y": Feature("b"),
            "x": Feature("B"),
            "w": Feature("a"),
            "a": Feature("b"),
        },
    },
    "order-of-columns": {
        "optimizer": _SGD,
        "columns": (Column(("z",)), Column(("y", "b"), 7, 3), Column(("a",)), Column(("c",), 5)),
    },
    "shared-columns": {
        "optimizer": _ADAGRAD,
        "columns": (Column(("b", "a"), combiner="sqrtn"), Column(("c", "d", "e"), 30, 2)),
    },
    "shared-sequence-columns": {
        "optimizer": _ADAGRAD,
        "columns": (Column(("b", "a"), max_sequence_length=6),),
    },
    "combiners": {
        "optimizer": _SGD,
        "tables": {name: Table(combiner=name) for name in ("sum", "mean", "sqrtn")},
        "features": {name: Feature(name) for name in ("sum", "mean", "sqrtn")},
    },
    "combiner-none": _one_table(Table(combiner=None)),
    "hot-ids": {
        "optimizer": _SGD,
        "tables": {"hot": Table(hot_id_replication=True), "cold": Table()},
        "features": {"x": Feature("hot"), "y": Feature("cold")},
    },
    # Options of the spec.
    "pipelined": {**_one_table(Table()), "options": {"pipeline_execution_with_tensor_core": True}},
    "profiled": {**_one_table(Table()), "options": {"profile_data_directory": "/tmp/statistics"}},
    "profiled-nowhere": {**_one_table(Table()), "options": {"profile_data_directory": ""}},
    "mod": {
        **_one_table(Table()),
        "options": {"partition_strategy": "mod"},
        "num_hosts": 5,
        "num_cores": 10,
    },
    "mod-columns-pipelined-inference": {
        "optimizer": _ADAM,
        "columns": _COLUMNS,
        "options": {"partition_strategy": "mod", "pipeline_execution_with_tensor_core": True},
        "num_hosts": 2,
        "num_cores": 8,
        "training": False,
    },
    "clipping-limit": {**_one_table(Table()), "options": {"clipping_limit": 0.5}},
    "clipping-limit-int-columns": {
        "optimizer": _SGD,
        "columns": _COLUMNS,
        "options": {"clipping_limit": 2},
    },
    "clipping-limit-beside-own": {
        "optimizer": _SGD,
        "tables": {"own": Table(optimizer=_ADAGRAD), "none": Table()},
        "features": {"x": Feature("own"), "y": Feature("none")},
        "options": {"clipping_limit": 0.5},
    },
    "clipping-limit-inference": {
        **_one_table(Table()),
        "options": {"clipping_limit": 0.5},
        "training": False,
    },
    "gradient-multiplier": {
        **_one_table(Table()),
        "options": {"experimental_gradient_multiplier_fn": "constant"},
    },
    "inference": {
        "optimizer": Optimizer("Adam", {"learning_rate": 0.1, "weight_decay_factor": 0.5}),
        "tables": _TABLES,
        "features": _FEATURES,
        "training": False,
    },
    "inference-columns": {"optimizer": _ADAGRAD, "columns": _COLUMNS, "training": False},
}

CASES: tuple[Case, ...] = (
    *_optimizer_cases(),
    *_topology_cases(),
    *(Case(name=name, **settings) for name, settings in _OTHER.items()),
)
