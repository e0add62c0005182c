"""Breaks only side B: replaces functions of the engine while side B runs.

The replacements work with the host driver on TensorFlow's ops, mostly for one table or feature.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.verify.power.comparing import Context
from estimator_bridge.runtime.saving import saved_model_writer
from tf2_engine import batch as batches
from tf2_engine.backends.host import HostDriver, kernels, update


class RowUpdate(NamedTuple):
    """An update of a table's rows `ids`, [rows]; `old` has arrays [rows, dim], keyed by slot."""

    optimizer: Any
    ids: Any
    old: dict[str, Any]
    g: Any
    lr: Any

    def with_settings(self, **settings: Any) -> RowUpdate:
        return self._replace(optimizer=dataclasses.replace(self.optimizer, **settings))

    def new(self) -> dict[str, Any]:
        return update.new_rows(self.optimizer, self.old, self.g, self.lr)

    def where(self, condition: Any, new: dict[str, Any]) -> dict[str, Any]:
        """Returns `new` where a condition on ids holds, and the correct values elsewhere."""
        right = self.new()
        return {name: tf.where(condition[:, tf.newaxis], new[name], g) for name, g in right.items()}


def patched(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Context:
    """Returns a context in which `wrong(original)` replaces an attribute."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, wrong(getattr(owner, name)))
            yield

    return context


def rows(table: str, change: Callable[[RowUpdate], dict[str, Any]]) -> Context:
    """Returns a context in which `change` computes the new rows and slots of a table."""

    def wrong(right: Any) -> Any:
        def update_rows(of: Any, ids: Any, g: Any, lr: Any) -> Any:
            if of.plan.name != table:
                return right(of, ids, g, lr)
            old = {name: of.gather(name, ids) for name in of.variables}
            with update.all_read(old):
                return of.scatter(change(RowUpdate(of.plan.optimizer, ids, old, g, lr)), ids)

        return update_rows

    return patched(update, "_update_rows", wrong)


def settings(table: str, **changed: Any) -> Context:
    """Returns a context in which a table is updated with settings that differ from its spec."""
    return rows(table, lambda one: one.with_settings(**changed).new())


def rate(table: str, change: Callable[[Any], Any]) -> Context:
    """Returns a context that changes the learning rate of a table."""

    def wrong(right: Any) -> Any:
        def of_table(of: Any, rates: Any) -> Any:
            value = right(of, rates)
            return change(value) if of.name == table else value

        return of_table

    return patched(kernels, "rate_of", wrong)


def contributions(table: str, change: Callable[[Any, Any], Any]) -> Context:
    """Returns a context in which `change` replaces each feature's (ids, gradients) of a table."""

    def changed(contribution: update.RowGradients) -> update.RowGradients:
        ids, gradients, _ = contribution.of_each_id()
        return update.RowGradients(*change(ids, gradients))

    def wrong(right: Any) -> Any:
        def update_table(of: Any, per_core: Any, lr: Any) -> Any:
            if of.plan.name == table:
                per_core = [list(map(changed, core)) for core in per_core]
            return right(of, per_core, lr)

        return update_table

    return patched(kernels, "update_table", wrong)


def occurrences(feature: str, change: Callable[[Any, Any], Any]) -> Context:
    """Returns a context in which `change` replaces the (plan, raw ids) of a feature."""

    def wrong(right: Any) -> Any:
        def of_feature(plan: Any, raw: Any, *args: Any) -> Any:
            if plan.name == feature:
                plan, raw = change(plan, raw)
            return right(plan, raw, *args)

        return of_feature

    return patched(batches, "occurrences", wrong)


def sent(feature: str, change: Callable[[Any, Any], Any]) -> Context:
    """Returns a context in which `change(occurrences, rows)` gives the gradients of a feature."""

    def wrong(right: Any) -> Any:
        def row_gradients(ids: Any, gradient: Any) -> Any:
            gradients = right(ids, gradient)
            return change(ids, gradients) if ids.feature.name == feature else gradients

        return row_gradients

    return patched(kernels, "row_gradients", wrong)


def planned(**changed: Any) -> Context:
    """Returns a context in which the driver's plan has changed settings."""
    return patched(
        HostDriver,
        "configure",
        lambda right: lambda self, plan: right(self, dataclasses.replace(plan, **changed)),
    )


def exported(table: str, change: Callable[[Any], Any]) -> Context:
    """Returns a context in which `change` replaces the rows of a table in exports."""

    def wrong(right: Any) -> Any:
        def restore(saver: Any, session: Any, *args: Any) -> None:
            right(saver, session, *args)
            for variable in tf.compat.v1.global_variables():
                if variable.op.name == table:
                    variable.load(change(session.run(variable)), session)

        return restore

    return patched(saved_model_writer, "_restore", wrong)


def together(*contexts: Context) -> Context:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in contexts:
                stack.enter_context(each())
            yield

    return context


def per_call(value: Callable[[int], float]) -> Any:
    """Returns a scalar whose nth evaluation gives `value(n)`, counted from 1."""
    calls = iter(range(1, 1 << 40))
    number = tf.numpy_function(lambda: np.float32(value(next(calls))), [], tf.float32)
    number.set_shape([])
    return number


def as_bfloat16(x: Any) -> Any:
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)


def replaced(one: RowUpdate, **new: Any) -> dict[str, Any]:
    """Returns the correct result with some parts replaced."""
    return {**one.new(), **new}
