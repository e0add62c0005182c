"""How stock and this project are known to differ, and why.

`DIFFERENCES` lists the cases that stock's own TPUEmbedding fails on a software TPU. The list is
strict: each listed case has to fail, with the listed message. `OF_SETTINGS` and `REMAINING` are
about estimators. `OF_SETTINGS` lists the tests of differences that depend on a setting; the
catalogue of settings describes these differences. `REMAINING` lists all other differences.
(tpu_graphs.py lists the differences between graphs.)
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
        where: the cases that fail: maps each factor that they share to its level.
        says: a pattern for the message with which such a case fails.
        why: the reason.
        here: whether the cases fail with the installed packages.
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
            "tf.tpu.experimental.embedding has classes for only five of the thirteen optimizers",
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
        "stock refuses an initial accumulator of 0, which the device supports",
    ),
    *[
        Difference(
            {"property": "inputs", "mode": mode, "input": name},
            "ValueError: Inconsistent shape",
            "if a position has several ids, stock uses the length in the batch instead of "
            "max_sequence_length, so it cannot cut the sequence",
        )
        for mode in ("eager", "function")
        for name in ("sequence of several", "sequence of several, weights")
    ],
    Difference(
        {"mode": "eager"},
        "AttributeError: Tensor.op is undefined when eager execution is enabled",
        "stock enqueues only in a tf.function, because it asks ids for the op that made them",
    ),
    Difference(
        {"mode": "graph"},
        "OperatorNotAllowedInGraphError: Using a symbolic `tf.Tensor` as a Python `bool`",
        "stock builds only in eager mode, because it asks the TPU whether it is configured, and "
        "branches on the answer",
    ),
    Difference(
        {"property": "as it comes"},
        "TypeError: .*(bool|Expected an int)",
        "TensorFlow 2.21 sets low_dimensional_packing_status, an enum in its configuration, to a "
        "bool, which protobuf 7 refuses; all other cases set the attribute to 0",
        here=_installed("protobuf") >= (7, 0),
    ),
    Difference(
        {"property": "as it comes"},
        "_DictWrapper",
        "TensorFlow 2.15 wraps the dicts that it passes to a tf.function, and with "
        "typing_extensions 4.6 or later, a wrapped dict does not match the protocol that stock "
        "checks; all other cases pass plain dicts",
        here=_installed("tensorflow") < (2, 16) and _installed("typing_extensions") >= (4, 6),
    ),
)
"""All cases that stock fails. If several lines match a case, the first line counts."""


def of(levels: Mapping[str, Any]) -> Difference | None:
    """Returns the first line that matches a case, or None."""
    return next((line for line in DIFFERENCES if line.here and is_about(line, levels)), None)


def is_about(line: Difference, levels: Mapping[str, Any]) -> bool:
    """Returns whether a case has all levels of a line."""
    return all(factor in levels and levels[factor] == level for factor, level in line.where.items())


@contextlib.contextmanager
def judged(
    levels: Mapping[str, Any], record: Callable[[str, str], None] | None = None
) -> Iterator[None]:
    """Checks that the code in the `with` block succeeds or, if its case is listed, fails as listed.

    Args:
        record: pytest's `record_property`; called with the outcome "listed" if the code fails.

    Raises:
        AssertionError: the case is listed, but the code succeeds or fails in another way.
    """
    line = of(levels)
    if line is None:
        yield
        return
    try:
        yield
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        assert re.search(line.says, message), f"{dict(line.where)} fails otherwise: {message}"
        if record is not None:
            record("outcome", "listed")
    else:
        raise AssertionError(
            f"Stock does this now: remove {dict(line.where)} ({line.why}) from the list."
        )


class Tests(NamedTuple):
    """The tests of a difference, as `file::test`.

    Attributes:
        bridge: the tests that fail if the bridge's behaviour changes.
        stock: the tests that fail if stock's behaviour changes, on TensorFlow 2.15.1; none if the
            reason for the difference says why stock's behaviour cannot be tested.
    """

    bridge: tuple[str, ...]
    stock: tuple[str, ...] = ()


class OfEstimators(NamedTuple):
    """A difference between the bridge's estimators and stock's that no setting decides.

    Attributes:
        case: the situation in which they differ.
        stock: what stock does.
        bridge: what the bridge does.
        why: the reason.
        tests: the tests of the difference.
    """

    case: str
    stock: str
    bridge: str
    why: str
    tests: Tests


class OfGraphs(NamedTuple):
    """Ops of a canned estimator's graph that only one side has; programs cannot need their names.

    Attributes:
        mode: "train", "evaluate" or "predict".
        side: "bridge" or "stock".
        names: a pattern for the names of the ops.
        of: a pattern for the cases whose graphs have the ops; by default, all cases.
    """

    mode: str
    side: str
    names: str
    of: str = ""


_SDCA_OPS = (
    r"(linear/)?(sdca/(minimize|approximate_duality_gap)/|ShardedMutableHashTable|"
    r"sharded_mutable_hash_table_size|cond|VarIsInitializedOp|zeros|Shape|strided_slice|Cast|"
    r"ToFloat|AddN).*|save/(ShardedMutableHashTable|LookupTableImportV2).*"
)

OPS = (
    OfGraphs("train", "bridge", r"(\w*VariableOp|VarHandleOp|Const|group_deps)(_\d+)?"),
    OfGraphs("evaluate", "stock", r"Read/ReadVariableOp|Identity(_\d+)?"),
    OfGraphs("train", "bridge", _SDCA_OPS, of="SDCA"),
    OfGraphs("train", "stock", _SDCA_OPS, of="SDCA"),
)
"""The rows of `REMAINING` about graphs say what these ops are, and why they differ."""

_CANNED = Tests(*[("canned/test_beside_stock.py::test_values_are_those_of_stock",)] * 2)

_DIFFERENCES = "estimator/test_stock_differences.py::test_"
_DETAILS = "estimator/test_tpu_estimator_details.py::test_"
_HOOKS = "estimator/test_estimator_hooks.py::test_early_stopping_"
_ERRORS = "estimator/test_side_by_side_errors.py::test_what_stock_refuses"
_ESTIMATOR = "estimator/test_estimator.py::test_"
_LOOP = "estimator/test_device_loop.py::test_"
_INPUTS = "estimator/test_inputs.py::test_"
_VARIANTS = "estimator/test_variants.py::test_"
_ZEROS = Tests(
    (
        "translation/test_translation.py::test_a_setting_that_surprises_is_noted_once",
        "engine/test_config_proto.py::test_with_stock_quirks_the_configuration_is_that_of_stock",
    ),
    (f"{_DIFFERENCES}stock_takes_zeros_for_unset",),
)

OF_SETTINGS: Mapping[str, Tests] = {
    "clipping_limit": Tests(
        (f"{_ESTIMATOR}clipping_limit_follows_the_quirks",),
        (f"{_DIFFERENCES}stock_reads_no_clipping_limit",),
    ),
    "combiner_none": Tests(
        (f"{_VARIANTS}the_bridge_does_what_stock_did_on_a_tpu",),
        (
            f"{_VARIANTS}goldens_of_variants_are_fresh",
            f"{_VARIANTS}without_a_tpu_the_bridge_does_what_stock_does",
        ),
    ),
    "dense_ids": Tests(
        (
            f"{_INPUTS}dense_ids_of_rank_two_drop_zeros_and_weights_with_a_warning",
            f"{_INPUTS}documented_dense_ids_of_rank_one_are_taken_as_they_are",
            f"{_INPUTS}stock_dense_ids_of_rank_one_with_zero_fail",
        ),
        (
            f"{_INPUTS}dense_ids_of_rank_two_lose_zeros_as_in_stock",
            f"{_DIFFERENCES}stock_shifts_samples_with_id_0",
        ),
    ),
    "learning_rate_zero": _ZEROS,
    "weight_decay_zero": _ZEROS,
    "learning_rate_fn": Tests(
        (
            "engine/test_config_proto.py::test_dynamic_rates_are_numbered_by_first_use",
            f"{_DETAILS}a_rate_sees_the_step_before_it_is_counted",
            f"{_ESTIMATOR}gradient_multiplier_sees_the_step_before_it_is_counted",
        ),
        (f"{_DIFFERENCES}stock_orders_tags_as_functions_hash",),
    ),
    "config_dicts": Tests(
        (
            "estimator/test_dicts_without_tpu.py::test_one_warning_says_what_differs",
            "estimator/test_tpu_estimator_export.py::"
            "test_config_dicts_are_looked_up_in_the_exported_model",
        ),
        (
            f"{_DIFFERENCES}stock_looks_up_no_dicts_without_a_tpu",
            f"{_DIFFERENCES}stock_exports_no_lookup_of_dicts",
        ),
    ),
    "mod_partitioning": Tests(
        ("estimator/test_dicts_without_tpu.py::test_mod_works_with_one_warning",),
        (_ERRORS,),
    ),
    "predict": Tests(
        (f"{_ESTIMATOR}predictions_come_in_order_to_the_last_sample",),
        (f"{_DIFFERENCES}stock_predicts_nothing_with_embeddings",),
    ),
    "sequence": Tests(
        (
            "estimator/test_tpu_estimator_export.py::test_quirks_decide_whether_exports_cut_sequences",
        ),
        ("estimator/test_tpu_estimator_export.py::test_exports_of_what_a_tpu_trained_are_stocks",),
    ),
    "final_exporter": Tests(
        *[("estimator/test_train_and_evaluate.py::test_a_final_export_that_never_comes_is_told",)]
        * 2
    ),
    "best_exporter": Tests(
        ("estimator/test_train_and_evaluate.py::test_the_best_is_kept_over_restarts",),
        ("estimator/test_train_and_evaluate.py::test_stock_exports_what_is_worse_after_a_restart",),
    ),
    "canned_shared": Tests(
        *[("canned/test_shared_tables.py::test_quirks_decide_whether_shared_tables_are_trained",)]
        * 2
    ),
    "canned_outside": Tests(
        ("canned/test_shared_tables.py::test_variables_of_an_input_fn_are_trained_as_by_stock",),
        ("canned/test_shared_tables.py::test_variables_of_an_input_fn_are_trained_as_by_stock",),
    ),
    "export_to_tpu": Tests(
        ("estimator/test_tpu_estimator_export.py::test_what_of_an_export_is_not_for_tpus",)
    ),
    "model_parallelism": Tests(("estimator/test_replicas.py::test_a_split_model_runs_whole",)),
    "one_core": Tests(("estimator/test_cores.py::test_cores_share_a_batch",)),
    "ids_out_of_range": Tests(("engine/test_engine_bad_batches.py::test_bad_batches_are_refused",)),
    "iterations_per_loop": Tests(
        (f"{_LOOP}a_loop_may_be_given_in_seconds",),
        (f"{_DIFFERENCES}stock_estimates_how_many_steps_a_time_is",),
    ),
}
"""The tests of each difference, keyed by the row of the settings catalogue that describes it."""

REMAINING = (
    OfEstimators(
        "an input that ends inside a loop",
        "raises OutOfRangeError",
        "ends training, and saves the completed steps",
        "no step is lost",
        Tests(
            (f"{_LOOP}an_input_that_ends_inside_a_loop_ends_the_training",),
            (f"{_DIFFERENCES}an_input_of_stock_may_not_end_inside_a_loop",),
        ),
    ),
    OfEstimators(
        "an evaluation without `steps`",
        "refused",
        "runs until its input ends, and calls hooks in every step; an evaluation with `steps` "
        "calls them once, as in stock",
        "stock allows it with `use_tpu=False`",
        Tests((_ERRORS, f"{_LOOP}an_evaluation_of_unknown_length_is_a_call_per_step"), (_ERRORS,)),
    ),
    OfEstimators(
        "the data files of a checkpoint",
        "two files, one of which is for the TPU's host",
        "one file",
        "host and device are one machine",
        Tests(
            *[("estimator/test_side_by_side.py::test_data_of_a_checkpoint_is_in_fewer_files",)] * 2
        ),
    ),
    OfEstimators(
        "a copy of an `EmbeddingConfigSpec`",
        "refused",
        "a spec with the same settings",
        "the fields of stock's spec differ from its arguments",
        Tests(
            ("translation/test_spec.py::test_copies_are_whole",),
            (f"{_DIFFERENCES}stock_copies_no_spec",),
        ),
    ),
    OfEstimators(
        "scalars among `eval_metrics`",
        "refused",
        "accepted with one core",
        "one core has nothing to concatenate",
        Tests((_ERRORS,), (_ERRORS,)),
    ),
    OfEstimators(
        "an input_fn that returns tensors instead of a dataset, with `use_tpu=True`",
        "refused",
        "accepted",
        "queues and feeding hooks, which create tensors, work without a TPU",
        Tests((_ERRORS,), (_ERRORS,)),
    ),
    OfEstimators(
        "weights that two features share, with `use_tpu=True`",
        "refused, because the first feature removes them from the batch",
        "both features use them",
        "in stock, both features use them with `use_tpu=False`",
        Tests(
            (f"{_INPUTS}features_may_share_weights",),
            (f"{_DIFFERENCES}stock_refuses_weights_that_two_features_share",),
        ),
    ),
    OfEstimators(
        "`InMemoryEvaluatorHook` and an input that ends, such as that of `numpy_input_fn`",
        "after the first evaluation no input is left, so every metric is 0.0",
        "each evaluation reads its input from the start",
        "an evaluation without data is useless",
        Tests(
            *[
                (
                    "estimator/test_estimator_hooks.py::test_evaluations_in_memory_read_their_input_anew",
                )
            ]
            * 2
        ),
    ),
    OfEstimators(
        "`InMemoryEvaluatorHook` and a model with its own saver or init_fn",
        "refused",
        "accepted",
        "the hook evaluates a checkpoint, which such a model can read",
        Tests(
            *[
                (
                    "estimator/test_stock_behaviours.py::"
                    "test_an_evaluation_in_memory_with_an_own_saver",
                )
            ]
            * 2
        ),
    ),
    OfEstimators(
        "`tf.compat.v1.summary` in a model_fn",
        "refused",
        "accepted",
        "the bridge runs the model on the host, where summaries work",
        Tests(*[(f"{_DIFFERENCES}stock_refuses_summaries_of_a_model",)] * 2),
    ),
    OfEstimators(
        "the loss in the log with `use_tpu=False`",
        "not written by TPUEstimator",
        "written",
        "the log does not depend on `use_tpu`",
        Tests(*[(f"{_DIFFERENCES}the_bridge_logs_the_loss_without_a_tpu",)] * 2),
    ),
    OfEstimators(
        "the steps at which early stopping checks evaluations, with `run_every_steps`",
        "in some runs one step early or late, because the step may be read before or after its "
        "increment",
        "the first step, and every `run_every_steps` steps after it",
        "training should be repeatable",
        Tests(
            (f"{_HOOKS}asks_at_steps_of_its_own",),
            (f"{_HOOKS}of_stock_asks_by_what_threads_read",),
        ),
    ),
    OfEstimators(
        "ops at the root of a training graph",
        "no ops that count steps",
        "twelve more ops, with default names such as `VarHandleOp` and `group_deps_2`",
        "the ops count batches and steps, so that a signal can cancel a step that waits for input",
        _CANNED,
    ),
    OfEstimators(
        "the step counter of an evaluation",
        "read a second time, by `Read/ReadVariableOp`, and copied by ops such as `Identity_4`",
        "read once",
        "no other op uses the second value",
        _CANNED,
    ),
    OfEstimators(
        "training ops of `LinearSDCA`: ops below `sdca`, and ops of its table",
        "rows of weights are gathered by `DynamicPartition`, ops of the table have no scope, and "
        "copies of the weights get their first value from a `cond`",
        "rows are gathered by `GatherV2`, ops of the table have scopes such as "
        "`…_lookup_table_find/LookupTableFindV2`, and the copies start from zeros",
        "public functions of TensorFlow create these ops; the loss, predictions, weights, the "
        "train_op and summaries have stock's names",
        Tests(*[("canned/test_sdca.py::test_values_are_those_of_stock",)] * 2),
    ),
)
"""Differences from stock that no setting decides."""


def table() -> str:
    """Returns a Markdown table of the differences in `REMAINING`."""
    lines = [f"| {row.case} | {row.stock} | {row.bridge} | {row.why} |" for row in REMAINING]
    return "\n".join(["| case | stock | bridge | why |", "|---|---|---|---|", *lines]) + "\n"
