"""Says which test files run on only one version of TensorFlow.

The quick tests of a listed folder or file run only on the version for which it is listed. An entry
for a file takes precedence over one for its folder. Files that are listed for both versions run on
both, as do files that are not listed. Marks take precedence over the lists: a test marked `whole`
runs on both versions, and a test marked `stock` wherever stock's estimators are installed.

The full tier runs the quick tests of every file on both versions. Tests that are marked `full` or
`soak` run on both versions too, except those in the folders of `MATRICES`, which follow the lists.
"""

from __future__ import annotations

ON_2_15 = (
    "convert/test_checkpoint_commands.py",
    "convert/test_convert.py",
    "convert/test_inspect_rows.py",
    "convert/test_stock_checkpoints.py",
    "estimator/test_interchange_with_stock.py",
    "estimator/test_side_by_side.py",
    "estimator/test_side_by_side_errors.py",
    "estimator/test_software_tpu_estimator.py",
    "estimator/test_stock_behaviours.py",
    "estimator/test_stock_differences.py",
    "estimator/test_stock_takes_ours.py",
    "estimator/test_stock_words.py",
    "estimator/test_variants.py",
    "keras",
    "keras/test_keras_files.py",
    "keras/test_keras_generations.py",
    "keras/test_keras_layer.py",
    "keras/test_keras_preprocessing.py",
    "meta",
    "migrate",
    "native",
    "planner",
    "recording",
    "serving",
    "summaries",
    "tpu",
    "translation",
    "verify",
    "verify/test_verify_sides.py",
)
"""Folders and files for TensorFlow 2.15, which has stock's estimators to compare with."""

ON_LATER = (
    "canned",
    "cluster",
    "convert",
    "engine",
    "estimator",
    "keras/test_keras_files.py",
    "keras/test_keras_generations.py",
    "keras/test_keras_layer.py",
    "keras/test_keras_preprocessing.py",
    "migrate/test_sparse_core_target.py",
    "project",
    "run/test_audit.py",
    "run/test_audit_sparsecore.py",
    "run/test_examples.py",
    "run/test_progress_line.py",
    "run/test_public_names.py",
    "run/test_quiet_start.py",
    "run/test_run_like_python.py",
    "run/test_tf1_commands.py",
    "run/test_tf1_contrib.py",
    "run/test_tf1_detection.py",
    "run/test_tf1_programs.py",
    "sparsecore",
    "training",
    "translation/test_to_sparse_cores_beside_stock.py",
    "verify/test_verify_sides.py",
)
"""Folders and files for the newest TensorFlow, which has SparseCores and Keras 3 as tf.keras."""

MATRICES = ("convert", "engine", "native", "serving", "tpu", "translation")
"""Folders whose thorough tests combine many settings, too many to run all of them twice."""


def is_elsewhere(file: str, version: str, thorough: bool = False) -> bool:
    """Returns whether a test in a file runs only on the other version of TensorFlow.

    Args:
        file: the path below compat_tests.
        version: the version of TensorFlow.
        thorough: whether the test is marked `full` or `soak`.
    """
    folder = file.partition("/")[0]
    if thorough and folder not in MATRICES:
        return False
    mine, other = ON_LATER, ON_2_15
    if version.startswith("2.15."):
        mine, other = other, mine
    return file not in mine and (file in other or folder in other)
