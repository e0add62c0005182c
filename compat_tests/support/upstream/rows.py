"""Lists upstream's tests that do not pass, and those that do not count, with the reasons."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FOLDER = "tensorflow_estimator/python/estimator"
"""The folder of the tests in a checkout of tensorflow/estimator."""

PRIVATE = "tests private functions and classes of stock"
HARDWARE = "needs a TPU"


class NotCounted(NamedTuple):
    """Tests that are not about the bridge: a file below `FOLDER`, a pattern, and the reason."""

    file: str
    tests: str
    why: str


class Difference(NamedTuple):
    """Tests that do not pass, and are not meant to.

    Attributes:
        file: the path below `FOLDER`.
        tests: a pattern for names of methods without the class, including parameterized cases.
        stock: describes what stock does.
        bridge: describes what the bridge does.
        why: the reason; if there is no difference, why the test fails nevertheless.
    """

    file: str
    tests: str
    stock: str
    bridge: str
    why: str


_TPU = "tpu/tpu_estimator_test.py"
_CONTEXT, _CONFIG = "TPUEstimatorTPUContextTest", "TPUConfigTest"

NOT_COUNTED: tuple[NotCounted, ...] = (
    NotCounted("tpu/autotuning_iterations_per_loop_test.py", "*", PRIVATE),
    NotCounted("tpu/error_handling_test.py", "*", PRIVATE),
    NotCounted("tpu/tpu_config_test.py", "*.test_valid_iterations_per_loop", PRIVATE),
    NotCounted(
        "tpu/tpu_estimator_embedding_test.py",
        "*.test_get_tpu_embedding_config_from_feature_columns",
        PRIVATE,
    ),
    NotCounted("tpu/tpu_estimator_export_test.py", "*.test_export_tpu_savedmodel_e2e*", HARDWARE),
    NotCounted("tpu/tpu_estimator_export_test.py", "*.test_export_estimator_savedmodel*", HARDWARE),
    NotCounted("tpu/tpu_estimator_export_test.py", "*_roundtrip*", PRIVATE),
    NotCounted("tpu/tpu_estimator_model_parallelism_test.py", "*.test_infeed_*", PRIVATE),
    NotCounted("tpu/tpu_estimator_signals_test.py", "*.test_output_with_stopping*", PRIVATE),
    NotCounted("tpu/tpu_estimator_signals_test.py", "*WithPaddingTest.*", PRIVATE),
    NotCounted(_TPU, f"{_CONFIG}.test_*cluster_spec*", PRIVATE),
    NotCounted(_TPU, f"{_CONFIG}.test_session_config_none", PRIVATE),
    NotCounted(_TPU, f"{_CONFIG}.test_override_name", PRIVATE),
    NotCounted(_TPU, "*.test_fail_with_queue_based_input_fn_in_while_loop", PRIVATE),
    NotCounted(_TPU, "TPUEstimatorInputPipelinePlacementTest.*", PRIVATE),
    NotCounted(_TPU, f"{_CONTEXT}.test_input_deployment_*", HARDWARE),
    NotCounted(
        _TPU,
        f"{_CONTEXT}.test_num_cores_per_replica_is_not_greater_than_num_cores_per_host",
        PRIVATE,
    ),
    NotCounted(_TPU, "*.test_evaluate_1host_and_replicas_larger_than_1_with_PER_HOST_V2", HARDWARE),
    NotCounted(_TPU, "*.test_error_num_hosts_and_replicas_larger_than_1_in_eval*", PRIVATE),
)
"""The other tests in these files test what programs can see without a TPU."""

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "tpu/tpu_estimator_embedding_test.py",
        "test_mod_partition_strategy_on_cpu",
        'refuses `partition_strategy="mod"` without a TPU',
        "accepts it",
        "the strategy is only a layout of checkpoints, and changes no result",
    ),
    Difference(
        "tpu/tpu_estimator_embedding_test.py",
        "test_embedding_with_weighted_categorical_column_share_weights_error",
        "refuses two columns with the same weights",
        "accepts them",
        "the bridge has no reason to refuse them",
    ),
    Difference(
        "tpu/tpu_estimator_evaluation_test.py",
        "test_eval_metrics_ops_tpu_training_failure",
        "refuses an EstimatorSpec in an evaluation on a TPU",
        "accepts it",
        "the metrics are computed on the host",
    ),
    Difference(
        _TPU,
        "test_scaffold*capture_tpu_tensor",
        "refuses a Scaffold that holds tensors of the TPU",
        "accepts it",
        "all tensors are on the host",
    ),
    Difference(
        _TPU,
        "test_missing_params",
        "refuses a model_fn without `params`",
        "accepts it",
        "a model_fn need not use the batch size",
    ),
    Difference(
        _TPU,
        "test_error_dynamic_shape_*",
        "refuses tensors without a static shape",
        "accepts them",
        "a host has dynamic shapes",
    ),
    Difference(
        _TPU,
        "test_non_static_shape",
        "refuses predictions without a static shape",
        "returns them",
        "a host has dynamic shapes",
    ),
    Difference(
        _TPU,
        "test_invalid_num_shards",
        "refuses another number of cores than the TPU has",
        "accepts any number",
        "cores are emulated",
    ),
    Difference(
        "tpu/tpu_estimator_model_parallelism_test.py",
        "test_fail_with_wrong_num_shards",
        "refuses another number of replicas than the TPU has",
        "accepts any number",
        "cores are emulated",
    ),
    Difference(
        "tpu/tpu_estimator_export_test.py",
        "test_export_tpu_savedmodel_export_to_cpu_false",
        "exports only a graph for TPUs",
        "exports only a graph for CPUs",
        "no graph for TPUs is exported",
    ),
    Difference(
        "tpu/tpu_config_test.py",
        "test_no_session_config_*_with_cluster_spec",
        "accepts a chief and a worker in TF_CONFIG",
        "refuses several workers",
        "one process does all the work",
    ),
    Difference(
        _TPU,
        "test_warning_with_queue_based_input_fn",
        "warns about an input_fn with queues",
        "gives the same warning",
        "the test looks for the warning in a private module of TensorFlow",
    ),
)
"""The list is strict: a listed test must fail, and any other test must pass."""


def counts(file: str, test: str) -> bool:
    return not any(row.file == file and fnmatch.fnmatch(test, row.tests) for row in NOT_COUNTED)


def difference_of(file: str, test: str) -> Difference | None:
    """Finds the row that says why a test does not pass; None if the test must pass."""
    method = test.rpartition(".")[2]
    rows = (row for row in DIFFERENCES if row.file == file)
    return next((row for row in rows if fnmatch.fnmatch(method, row.tests)), None)


def surprises(passed: Mapping[tuple[str, str], bool], *, whole: bool = True) -> Iterator[str]:
    """Yields a line for each contradiction between outcomes and rows.

    Args:
        passed: maps the file and "Class.method" of each test that was run to whether it passed.
        whole: whether all tests of these files were run.
    """
    seen = set()
    for (file, test), has_passed in passed.items():
        row = difference_of(file, test)
        seen.add(row)
        if row is None and not has_passed:
            yield f"{file}: {test} does not pass, and no row says why."
        if row is not None and has_passed:
            yield f"{file}: {test} passes, though a row says why it does not."
    files = {file for file, _ in passed}
    for row in DIFFERENCES:
        if whole and row.file in files and row not in seen:
            yield f"{row.file}: no test has the name of the row {row.tests!r}."
