"""How stock and this project are known to differ, and why.

First, which of the properties stock's own TPUEmbedding does not have on a software TPU. That list
is strict: what is on it has to fail, and in the words that it says. Then what README says of
estimators, with the tests that hold either side to it. (What graphs differ in is in tpu_graphs.py.)
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


def _installed(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version(name).split(".")[:2])


class Difference(NamedTuple):
    """Something that stock does not do.

    Attributes:
        where: the levels of the cases that it is about, by factor.
        says: matches how such a case fails.
        why: the reason.
        here: whether it is so with what is installed.
    """

    where: Mapping[str, Any]
    says: str
    why: str
    here: bool = True


DIFFERENCES = (
    *[
        Difference(
            {"kind": kind},
            f"CannotExpress: .*no optimizer {kind}",
            "tf.tpu.experimental.embedding has five of the thirteen optimizers; the others are "
            "reached by the legacy TPUEmbedding alone",
        )
        for kind in (
            "Adadelta",
            "CenteredRMSProp",
            "FrequencyEstimator",
            "Momentum",
            "ProximalAdagrad",
            "ProximalYogi",
            "RMSProp",
        )
    ],
    Difference(
        {"optimizer": "FTRL from 0"},
        "ValueError: .*initial_accumulator_value` must be a positive",
        "stock takes no initial accumulator of 0, which the device would take",
    ),
    *[
        Difference(
            {"property": "inputs", "mode": mode, "input": name},
            "ValueError: Inconsistent shape",
            "where a position has several ids, stock takes the length from the batch instead of "
            "max_sequence_length, so that it cannot cut the sequence",
        )
        for mode in ("eager", "function")
        for name in ("sequence of several", "sequence of several, weights")
    ],
    Difference(
        {"mode": "eager"},
        "AttributeError: Tensor.op is undefined when eager execution is enabled",
        "stock enqueues in a tf.function alone: it asks ids for the op that made them",
    ),
    Difference(
        {"mode": "graph"},
        "OperatorNotAllowedInGraphError: Using a symbolic `tf.Tensor` as a Python `bool`",
        "stock builds eagerly alone: it asks the TPU whether it is configured, and branches on "
        "the answer",
    ),
    Difference(
        {"property": "as it comes"},
        "TypeError: .*(bool|Expected an int)",
        "2.21 writes a bool to the enum low_dimensional_packing_status of its configuration, which "
        "protobuf 7 refuses; all other cases set the attribute to 0",
        here=_installed("protobuf") >= (7, 0),
    ),
    Difference(
        {"property": "as it comes"},
        "_DictWrapper",
        "2.15 hands a tf.function dicts in a wrapper, which typing_extensions from 4.6 on does not "
        "take for the protocol that they are checked against; all other cases hand it plain ones",
        here=_installed("tensorflow") < (2, 16) and _installed("typing_extensions") >= (4, 6),
    ),
)
"""Everything that stock fails; the first line that is about a case is the one that counts."""


def of(levels: Mapping[str, Any]) -> Difference | None:
    """Returns the line that is about a case, or None."""
    return next((line for line in DIFFERENCES if line.here and is_about(line, levels)), None)


def is_about(line: Difference, levels: Mapping[str, Any]) -> bool:
    """Returns whether a case has all the levels of a line."""
    return all(factor in levels and levels[factor] == level for factor, level in line.where.items())


@contextlib.contextmanager
def judged(
    levels: Mapping[str, Any], record: Callable[[str, str], None] | None = None
) -> Iterator[None]:
    """What runs while it is open succeeds, or fails as the list says; nothing else.

    Args:
        record: pytest's `record_property`; it is told the outcome "listed" of what fails so.

    Raises:
        AssertionError: it succeeds, or fails otherwise, although a line is about it.
    """
    line = of(levels)
    if line is None:
        yield
        return
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        assert re.search(line.says, said), f"{dict(line.where)} fails otherwise: {said}"
        if record is not None:
            record("outcome", "listed")
    else:
        raise AssertionError(
            f"Stock does this now: take {dict(line.where)} ({line.why}) off the list."
        )


class OfEstimators(NamedTuple):
    """Something that the bridge's estimators do otherwise than stock's, or as oddly.

    Attributes:
        case: what it is about.
        stock: what stock does.
        bridge: what the bridge does.
        why: the reason.
        pinned: the tests, as `file::test`, that fail when the bridge does not do so.
        pinned_of_stock: those that fail when stock does otherwise, on TensorFlow 2.15.1; none only
            where `why` says that it cannot be told.
    """

    case: str
    stock: str
    bridge: str
    why: str
    pinned: tuple[str, ...]
    pinned_of_stock: tuple[str, ...]


IGNORED_BY_STOCK = (
    OfEstimators(
        "`clipping_limit` of the spec",
        "stored, never read",
        '"stock": ignored, with a warning; "documented": weights are clipped to ±limit unless the '
        "optimizer sets limits of its own",
        "the setting is documented, and programs were trained without it",
        ("estimator/test_estimator.py::test_clipping_limit_follows_the_quirks",),
        ("estimator/test_stock_differences.py::test_stock_reads_no_clipping_limit",),
    ),
    OfEstimators(
        "`combiner=None`",
        "sums on a TPU, averages on a CPU",
        "the same, by `use_tpu`, with a warning",
        "each is what some program was trained with",
        ("estimator/test_variants.py::test_the_bridge_does_what_stock_did_on_a_tpu",),
        (
            "estimator/test_variants.py::test_goldens_of_variants_are_fresh",
            "estimator/test_variants.py::test_without_a_tpu_the_bridge_does_what_stock_does",
        ),
    ),
    OfEstimators(
        "dense ids of rank 2 with a combiner",
        "id 0 is dropped, weights are ignored",
        "the same, with a warning",
        "0 is what such batches are padded with",
        (
            "estimator/test_unusual_inputs.py::"
            "test_dense_ids_of_rank_two_drop_zeros_and_weights_with_a_warning",
        ),
        ("estimator/test_inputs.py::test_dense_ids_of_rank_two_lose_zeros_as_in_stock",),
    ),
    OfEstimators(
        "dense ids of rank 1 with a combiner",
        "samples shift when a batch contains id 0",
        '"documented": ids as they are, with a warning; "stock": an error when a batch contains '
        "id 0",
        "no program can have meant that samples get the rows of others",
        (
            "estimator/test_unusual_inputs.py::test_documented_dense_ids_of_rank_one_are_taken_as_they_are",
            "estimator/test_unusual_inputs.py::test_stock_dense_ids_of_rank_one_with_zero_fail",
        ),
        ("estimator/test_stock_differences.py::test_stock_shifts_samples_with_id_0",),
    ),
    OfEstimators(
        "a table's `learning_rate` or a decay of 0.0",
        "counts as unset",
        "the same, with a warning",
        "programs were trained so",
        (
            "translation/test_translation.py::test_a_setting_that_surprises_is_noted_once",
            "engine/test_config_proto.py::test_with_stock_quirks_the_configuration_is_that_of_stock",
        ),
        ("estimator/test_stock_differences.py::test_stock_takes_zeros_for_unset",),
    ),
    OfEstimators(
        "tags of dynamic learning rates",
        "set order, differs from run to run",
        "order of first use",
        "a configuration that is the same in every process",
        ("engine/test_config_proto.py::test_dynamic_rates_are_numbered_by_first_use",),
        ("estimator/test_stock_differences.py::test_stock_orders_tags_as_functions_hash",),
    ),
    OfEstimators(
        "config dicts with `use_tpu=False`",
        "no lookup",
        "looked up, with a warning",
        "with them a program is the same on and off a TPU",
        ("estimator/test_dicts_without_tpu.py::test_one_warning_says_what_differs",),
        ("estimator/test_stock_differences.py::test_stock_looks_up_no_dicts_without_a_tpu",),
    ),
    OfEstimators(
        "mod partitioning with `use_tpu=False`",
        "refused",
        "works, with a warning",
        "it is a layout of checkpoints, and changes no number",
        ("estimator/test_dicts_without_tpu.py::test_mod_of_columns_works_with_one_warning",),
        ("estimator/test_side_by_side_errors.py::test_what_stock_refuses",),
    ),
    OfEstimators(
        "`predict` with embeddings, one core, no TPU",
        "refused or broken",
        "works",
        "nothing stands in its way here",
        ("estimator/test_estimator.py::test_predictions_come_in_order_to_the_last_sample",),
        ("estimator/test_stock_differences.py::test_stock_predicts_nothing_with_embeddings",),
    ),
    OfEstimators(
        "ids outside a table",
        "unspecified",
        "an error that names table, feature and id",
        "no public document says what a TPU does; `python -m compat_tests` asks whatever executes",
        ("engine/test_engine_bad_batches.py::test_bad_batches_are_refused",),
        (),
    ),
)
"""What README says of settings and inputs that stock treats oddly."""

REMAINING = (
    OfEstimators(
        "an input that ends inside a loop",
        "raises OutOfRangeError",
        "ends the training, and the steps made are saved",
        "no step is lost",
        ("estimator/test_device_loop.py::test_an_input_that_ends_inside_a_loop_ends_the_training",),
        ("estimator/test_stock_differences.py::test_an_input_of_stock_may_not_end_inside_a_loop",),
    ),
    OfEstimators(
        "an evaluation without `steps`",
        "refused",
        "goes on until its input ends, and then calls hooks every step; one of so many steps calls "
        "them once, as stock's",
        "without a TPU it is possible",
        (
            "estimator/test_side_by_side_errors.py::test_what_stock_refuses",
            "estimator/test_device_loop.py::test_an_evaluation_of_unknown_length_is_a_call_per_step",
        ),
        ("estimator/test_side_by_side_errors.py::test_what_stock_refuses",),
    ),
    OfEstimators(
        "data of a checkpoint",
        "two files, one of them for the TPU's host",
        "one file",
        "host and device are one machine",
        ("estimator/test_side_by_side.py::test_data_of_a_checkpoint_is_in_fewer_files",),
        ("estimator/test_side_by_side.py::test_data_of_a_checkpoint_is_in_fewer_files",),
    ),
    OfEstimators(
        "scalars among `eval_metrics`",
        "refused",
        "taken on one core",
        "one core has nothing to concatenate",
        ("estimator/test_side_by_side_errors.py::test_what_stock_refuses",),
        ("estimator/test_side_by_side_errors.py::test_what_stock_refuses",),
    ),
    OfEstimators(
        "`tf.compat.v1.summary` in a model_fn",
        "refused",
        "taken",
        "the model is in the graph of the host",
        ("estimator/test_stock_differences.py::test_stock_refuses_summaries_of_a_model",),
        ("estimator/test_stock_differences.py::test_stock_refuses_summaries_of_a_model",),
    ),
    OfEstimators(
        "the loss in the log with `use_tpu=False`",
        "not written by its TPUEstimator",
        "written",
        "one way to train has one log",
        ("estimator/test_stock_differences.py::test_the_bridge_logs_the_loss_without_a_tpu",),
        ("estimator/test_stock_differences.py::test_the_bridge_logs_the_loss_without_a_tpu",),
    ),
    OfEstimators(
        "the step that a learning-rate function or a gradient multiplier sees",
        "read in no fixed order to its increment",
        "the step before it is counted",
        "training is to be repeatable; of stock a race is all that could be shown",
        (
            "estimator/test_tpu_estimator_details.py::test_a_rate_sees_the_step_before_it_is_counted",
            "estimator/test_estimator.py::test_gradient_multiplier_sees_the_step_before_it_is_counted",
        ),
        (),
    ),
    OfEstimators(
        'loops of a time such as "60m"',
        "a number of steps is estimated",
        "a loop ends by the clock",
        "the time is what was asked for",
        ("estimator/test_device_loop.py::test_a_loop_may_be_given_in_seconds",),
        ("estimator/test_stock_differences.py::test_stock_estimates_how_many_steps_a_time_is",),
    ),
)
"""What README says that remains, whatever the settings are."""


def table_of(rows: tuple[OfEstimators, ...]) -> str:
    """Returns rows as README has them."""
    lines = [f"| {row.case} | {row.stock} | {row.bridge} | {row.why} |" for row in rows]
    return "\n".join(["| case | stock | bridge | why |", "|---|---|---|---|", *lines]) + "\n"
