"""The optimizers; the table below is the list of them, one file each."""

from __future__ import annotations

from tf2_engine.optimizers.adagrad import Adagrad
from tf2_engine.optimizers.adam import Adam
from tf2_engine.optimizers.base import Optimizer
from tf2_engine.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {row.__name__: row for row in (SGD, Adagrad, Adam)}
"""Every optimizer by name; tests, drivers and translation read this table."""

__all__ = ["OPTIMIZERS", "SGD", "Adagrad", "Adam", "Optimizer"]
