"""Faults in update rules, in learning rates, and in the sums of a row's gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.support import legacy_checkpoints
from compat_tests.verify.power import seams
from compat_tests.verify.power.fault import Fault, Subject, of_engine, of_program
from compat_tests.verify.power.program import CLIPPED, ROWS, constant, falling
from estimator_bridge.runtime.step import table_variables
from tf2_engine.tables import PARAMETERS


def _bias_corrected(one: seams.RowUpdate) -> Any:
    beta1, beta2 = one.optimizer.beta_1, one.optimizer.beta_2
    factor = seams.per_call(lambda step: np.sqrt(1 - beta2**step) / (1 - beta1**step))
    return one._replace(lr=one.lr * factor).new()


def _before_adding(one: seams.RowUpdate) -> Any:
    stale = one.old[PARAMETERS] - one.lr * one.g / tf.sqrt(one.old["accumulators"])
    return seams.replaced(one, **{PARAMETERS: stale})


def _nesterov_like(one: seams.RowUpdate) -> Any:
    return one.with_settings(use_nesterov=True).new()


def _decay_last(one: seams.RowUpdate) -> Any:
    new = one.with_settings(weight_decay_factor=None).new()
    decay = np.float32(1 - one.optimizer.weight_decay_factor)
    return {**new, PARAMETERS: new[PARAMETERS] * decay}


def _frozen_slot(one: seams.RowUpdate) -> Any:
    return seams.replaced(one, accumulators=one.old["accumulators"])


def _coarse_slots(one: seams.RowUpdate) -> Any:
    new = one.new()
    return {**new, "velocities": seams.as_bfloat16(new["velocities"])}


def _other_slot(right: Any) -> Any:
    other = {"momenta": "velocities", "velocities": "momenta"}
    return lambda optimizer, slot: right(optimizer, other.get(slot, slot))


UPDATES = {
    "Adam's epsilon": of_engine(
        "epsilon is twice what the spec says",
        Subject("optimizer", "items", "update rule"),
        seams.settings("items", epsilon=2e-5),
    ),
    "Adam's beta2": of_engine(
        "beta2 is .99, not .999",
        Subject("optimizer", "items", "update rule"),
        seams.settings("items", beta_2=0.99),
    ),
    "Adam's root": of_engine(
        "epsilon is added outside the square root, not inside",
        Subject("optimizer", "items", "update rule"),
        seams.settings("items", sum_inside_sqrt=False),
    ),
    "Adam's bias": of_engine(
        "Adam's bias correction is applied, which the spec does not ask for",
        Subject("optimizer", "items", "bias correction"),
        seams.rows("items", _bias_corrected),
    ),
    "Adagrad's order": of_engine(
        "Adagrad uses the accumulator as it was before the step",
        Subject("optimizer", "users", "update rule"),
        seams.rows("users", _before_adding),
    ),
    "FTRL's l1": of_engine(
        "l1 regularization is left out",
        Subject("optimizer", "words", "update rule"),
        seams.settings("words", l1_regularization_strength=0.0),
    ),
    "FTRL's power": of_engine(
        "learning_rate_power is -.49, not -.5",
        Subject("optimizer", "words", "update rule"),
        seams.settings("words", learning_rate_power=-0.49),
    ),
    "momentum": of_engine(
        "momentum is .91, not .9",
        Subject("optimizer", "places", "update rule"),
        seams.settings("places", momentum=0.91),
    ),
    "Nesterov": of_engine(
        "side B uses Nesterov momentum",
        Subject("optimizer", "places", "update rule"),
        seams.rows("places", _nesterov_like),
    ),
    "weights not clipped": of_engine(
        "weights are not clipped to their limits",
        Subject("clip", "places", "clipping"),
        seams.settings("tags", clip_weight_min=None, clip_weight_max=None),
    ),
    "limit of weights": of_engine(
        "the upper weight limit is .251, not .25",
        Subject("clip", "places", "clipping"),
        seams.settings("tags", clip_weight_max=0.251),
    ),
    "gradients not clipped": of_engine(
        "gradients are not clipped to their limits",
        Subject("clip", "users", "clipping"),
        seams.settings("flags", clip_gradient_min=None, clip_gradient_max=None),
    ),
    "gradients clipped early": of_engine(
        "each occurrence's gradient is clipped, not the row's gradient sum",
        Subject("clip", "users", "clipping"),
        seams.together(
            seams.contributions(
                "flags", lambda ids, g: (ids, tf.clip_by_value(g, -CLIPPED, CLIPPED))
            ),
            seams.settings("flags", clip_gradient_min=None, clip_gradient_max=None),
        ),
    ),
    "no decay": of_engine(
        "weight decay is left out",
        Subject("decay", "places", "weight decay"),
        seams.settings("tags", weight_decay_factor=None),
    ),
    "decay times rate": of_engine(
        "the weight decay factor is multiplied by the learning rate",
        Subject("decay", "places", "weight decay"),
        seams.settings("tags", multiply_weight_decay_factor_by_learning_rate=True),
    ),
    "decay last": of_engine(
        "weight decay is applied after the update, not before",
        Subject("decay", "places", "weight decay"),
        seams.rows("tags", _decay_last),
    ),
    "swapped slots": of_engine(
        "Adam's two slots are swapped",
        Subject("slots", "items", "swapped slots"),
        seams.patched(table_variables, "slot_suffix", _other_slot),
    ),
    "frozen slot": of_engine(
        "Adagrad's accumulators are not updated",
        Subject("slots", "users", "frozen slot"),
        seams.rows("users", _frozen_slot),
    ),
    "coarse slot": of_engine(
        "Adam's velocities are rounded to bfloat16",
        Subject("slots", "items", "precision"),
        seams.rows("items", _coarse_slots),
    ),
}


def _from_step(first: int, factor: float, rate: float = 1.0) -> Callable[[Any], Any]:
    """Creates a rate that is multiplied by `factor` from step `first` on (counted from 0)."""
    return lambda step: rate * tf.where(step >= first, factor, 1.0)


def _stuck(step: Any) -> Any:
    """Computes a falling rate, but for step 12 (counted from 0) repeats the rate of step 11."""
    step = tf.cast(step, tf.float32)
    return falling(0.1)(tf.where(tf.equal(step, 12.0), 11.0, step))


RATES = {
    "rate times 3": of_engine(
        "the learning rate of a table with 500 rows is 3 times as high",
        Subject("schedule", "users", "learning rate"),
        seams.rate("users", lambda rate: 3 * rate),
    ),
    "rate times 1.001": of_engine(
        "a table's learning rate is 0.1 % too high",
        Subject("schedule", "users", "learning rate"),
        seams.rate("users", lambda rate: 1.001 * rate),
    ),
    "rate as bfloat16": of_engine(
        "a learning rate of .01 is rounded to bfloat16",
        Subject("schedule", "users", "learning rate"),
        seams.rate("users", seams.as_bfloat16),
    ),
    "schedule late": of_program(
        "a learning rate, which falls by a tenth in 1000 steps, is one step late",
        Subject("schedule", "places", "learning rate|rate schedule"),
        rates={"places": falling(0.1, late=1)},
    ),
    "schedule stuck": of_program(
        "in one step, a falling learning rate still has the previous step's value",
        Subject("late steps", "places", "learning rate|rate schedule"),
        rates={"places": _stuck},
    ),
    "rates swapped": of_program(
        "the learning rates of two tables are swapped",
        Subject("schedule", "places", "rate tag"),
        rates={"places": constant(0.05), "tags": falling(0.1)},
    ),
    "rate later": of_program(
        "a table's learning rate is 2 % too high from step 16 on",
        Subject("late steps", "places", "learning rate"),
        rates={"tags": _from_step(15, 1.02, 0.05)},
    ),
    "multiplier later": of_program(
        "the gradients of all tables are multiplied by 1.01 from step 15 on",
        Subject("late steps", "users", "gradient scale"),
        multiplier=_from_step(14, 1.01),
    ),
}


def _last_wins(ids: Any, g: Any) -> Any:
    def last(ids: Any) -> Any:
        kept = np.zeros(len(ids), bool)
        kept[len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]] = True
        return kept

    kept = tf.numpy_function(last, [ids], tf.bool)
    kept.set_shape([None])
    return tf.boolean_mask(ids, kept), tf.boolean_mask(g, kept)


def _without_first_core(right: Any) -> Any:
    def update_table(of: Any, per_core: Any, lr: Any) -> Any:
        first, *others = per_core
        lost = [each._replace(gradients=tf.zeros_like(each.gradients)) for each in first]
        return right(of, [lost, *others], lr)

    return update_table


def _core_by_core(right: Any) -> Any:
    def update_table(of: Any, per_core: Any, lr: Any) -> Any:
        if of.plan.name != "users":
            return right(of, per_core, lr)
        sums = [seams.update.sum_by_id(core) for core in per_core]
        return seams.update._update_core_by_core(of, sums, lr)

    return update_table


def _sums_of_squares() -> Any:
    """Adds up the squares of the occurrences' gradients, not the square of the gradient sum."""

    @contextlib.contextmanager
    def context() -> Any:
        squares: dict[str, Any] = {}

        def keep(ids: Any, g: Any) -> Any:
            squares["users"] = ids, tf.square(g)
            return ids, g

        def change(one: seams.RowUpdate) -> Any:
            ids, of_each = squares["users"]
            table = tf.math.unsorted_segment_sum(of_each, ids, ROWS["users"])
            a = one.old["accumulators"] + tf.gather(table, one.ids)
            w = one.old[PARAMETERS] - one.lr * one.g / tf.sqrt(a)
            return {PARAMETERS: w, "accumulators": a}

        with seams.contributions("users", keep)(), seams.rows("users", change)():
            yield

    return context


SUMS = {
    "last wins": of_engine(
        "of a row's gradients in a batch, only the last one counts",
        Subject("duplicates", "users", "dropped duplicate"),
        seams.contributions("users", _last_wins),
    ),
    "squares of each": of_engine(
        "accumulators add the square of each occurrence's gradient, not of the sum",
        Subject("duplicates", "users", "update rule|sum of squares"),
        _sums_of_squares(),
    ),
    "lost core": of_engine(
        "the gradients of one of two cores are lost",
        Subject("sharding", "cores", "lost core"),
        seams.patched(seams.kernels, "update_table", _without_first_core),
    ),
    "not accumulated": of_engine(
        "each core's gradient sum is applied in a separate update",
        Subject("sharding", "cores", "gradient sum|update rule"),
        seams.patched(seams.kernels, "update_table", _core_by_core),
    ),
    "lost feature": of_engine(
        "one of two features of a table sends no gradients",
        Subject("one feature", "items", "lost feature"),
        seams.sent("clicked", lambda occurrences, g: tf.zeros_like(g)),
    ),
    "last sample": of_engine(
        "the gradient of the last sample of a batch is lost",
        Subject("large batch", "users", "lost sample"),
        seams.contributions("users", lambda ids, g: (ids[:-1], g[:-1])),
    ),
    "coarse gradients": of_engine(
        "gradients are rounded to bfloat16 before they are summed",
        Subject("large batch", "users", "precision"),
        seams.contributions("users", lambda ids, g: (ids, seams.as_bfloat16(g))),
    ),
    "frozen table": of_engine(
        "a table whose rows are rarely looked up is not updated",
        Subject("rare rows", "extremes", "no update"),
        seams.rows("rare", lambda one: one.where(one.ids >= 0, one.old)),
    ),
    "frozen row": of_engine(
        "one of 500 rows is not updated",
        Subject("one row", "users", "no update"),
        seams.rows("users", lambda one: one.where(tf.equal(one.ids, 7), one.old)),
    ),
    "rate of one row": of_engine(
        "the learning rate of one of 500 rows is 1 % too high",
        Subject("one row", "users", "learning rate"),
        seams.rows(
            "users",
            lambda one: one.where(tf.equal(one.ids, 7), one._replace(lr=1.01 * one.lr).new()),
        ),
    ),
    "skipped step": of_engine(
        "a table is not updated in step 13",
        Subject("late steps", "users", "no update"),
        seams.rate("users", lambda rate: rate * seams.per_call(lambda step: step != 13)),
    ),
    "beside a row of 1e5": of_engine(
        "a table's learning rate is 3 times as high; one of its rows has elements of 1e5",
        Subject("rare rows", "extremes", "learning rate"),
        seams.rate("heavy", lambda rate: 3 * rate),
    ),
}


def _in_order_of_two_hosts(checkpoint: str, changed: str) -> str:
    """Writes a checkpoint in which one table's rows have the order of "mod" on two hosts."""

    def permuted(name: str, value: Any) -> Any:
        return legacy_checkpoints.permuted(value, 2, "mod") if name == "users" else value

    return legacy_checkpoints.changed(checkpoint, changed, permuted)


def _decaying_rows() -> Any:
    """Shrinks the accumulators of all rows, including rows that are not in the batch."""

    def wrong(right: Any) -> Any:
        def update_table(of: Any, per_core: Any, lr: Any) -> Any:
            ops = right(of, per_core, lr)
            if of.plan.name == "rare":
                with tf.control_dependencies(ops):
                    ops = [*ops, *(s.assign(0.999 * s) for s in of.variables["accumulators"])]
            return ops

        return update_table

    return seams.patched(seams.kernels, "update_table", wrong)


STATES = {
    "mod as div": Fault(
        "sharding",
        'the initial rows have the order of "mod", but are read as if it were "div"',
        "users",
        frozenset({"row order"}),
        start=_in_order_of_two_hosts,
    ),
    "untouched rows": of_engine(
        "in every step, all accumulators shrink by 0.1 %, even of rows not in the batch",
        Subject("rare rows", "extremes", "untouched rows"),
        _decaying_rows(),
    ),
}
