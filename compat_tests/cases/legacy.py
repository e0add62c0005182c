"""Legacy specs as data, to be built of stock's classes or of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """One `*Parameters` object: the name of its class without `Parameters`, its arguments."""

    kind: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """One legacy `TableConfig`; a function is named, see `legacy_specs.RATES`."""

    vocabulary_size: int = 13
    dimension: int = 4
    combiner: str | None = "mean"
    hot_id_replication: bool = False
    learning_rate: float | None = None
    learning_rate_fn: str | None = None
    optimizer: Optimizer | None = None


@dataclasses.dataclass(frozen=True)
class Feature:
    """One legacy `FeatureConfig`."""

    table: str
    max_sequence_length: int = 0
    weight_key: str | None = None


@dataclasses.dataclass(frozen=True)
class Column:
    """One TPU embedding column, or, with several keys, shared ones."""

    keys: tuple[str, ...]
    vocabulary_size: int = 13
    dimension: int = 4
    combiner: str | None = "mean"
    learning_rate_fn: str | None = None
    max_sequence_length: int = 0
    weight_key: str | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One `EmbeddingConfigSpec` on one topology.

    Attributes:
        columns: None for the form with config dicts.
        options: further arguments of the spec.
        num_cores: on all hosts together.
    """

    name: str
    optimizer: Optimizer | None
    columns: tuple[Column, ...] | None = None
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    features: Mapping[str, Feature] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_hosts: int = 1
    num_cores: int = 2
    batch_per_core: int = 4
    training: bool = True

    @property
    def batch_size(self) -> int:
        return self.batch_per_core * self.num_cores
