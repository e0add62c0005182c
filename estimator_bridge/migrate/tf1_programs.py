"""Programs of TensorFlow 1 are refused: in no form could they run by themselves."""

from __future__ import annotations

import pathlib

from estimator_bridge import errors
from estimator_bridge.run.tf1 import detection


def refuse(path: pathlib.Path, form: str, tf1: bool | None = None) -> None:
    """Raises Untranslatable for a program of TensorFlow 1.

    Args:
        form: the name of the form, for the error.
        tf1: whether it is one; None finds out by its source.
    """
    use = detection.find_use(str(path)) if tf1 is None else None
    if use is None and not tf1:
        return
    cause = "is a program of TensorFlow 1 (--tf1)"
    if use is not None:
        cause = f"names {use}, which TensorFlow 2 lacks"
    raise errors.Untranslatable(
        f"migrate: {path} {cause}: its {form} form could not run by itself. Run it as it is: "
        f"estimator-bridge run --tf1 {path}. Or port such names to tf.compat.v1 first, which "
        "TensorFlow's tf_upgrade_v2 does for all but tf.contrib, and migrate then; --no-tf1 "
        "rewrites it all the same."
    )
