"""Context managers in which a program finds TensorFlow 1."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from estimator_bridge.run.tf1 import detection, reading
from estimator_bridge.run.tf1.view import TF1View, seen_by_programs
from tf2_engine import tf_compat


@contextlib.contextmanager
def as_tf1(script: str | None = None) -> Iterator[None]:
    """Makes a program import TensorFlow 1 inside the context, and disables TensorFlow 2's behavior.

    The effect of `disable_v2_behavior` cannot be undone and stays after the context.
    """
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    with names_of_tf1(script):
        yield


@contextlib.contextmanager
def names_of_tf1(script: str | None = None) -> Iterator[None]:
    with tf_compat.names_of_tf1(), seen_by_programs(TF1View(), script):
        yield


@contextlib.contextmanager
def as_needed(
    script: str,
    tf1: bool | None,
    tell: Callable[[str], object],
    view: Callable[[str], AbstractContextManager[None]] = as_tf1,
    folder: str | None = None,
) -> Iterator[bool]:
    """Makes a program that needs TensorFlow 1 import it inside the context; yields whether it does.

    If `tf1` is None, the source decides. `tell` is called with the reason, or with advice if the
    program fails. `folder` is the folder from which the program imports, by default the folder of
    the script.
    """
    use = None
    if tf1 is None:
        use = detection.find_use(script, folder)
        tf1 = use is not None
        if use is not None:
            tell(
                f"the program names {use}, which TensorFlow 2 lacks, so it runs as with --tf1, "
                "which shows it TensorFlow 1 (--no-tf1 leaves TensorFlow as it is)."
            )
    if tf1:
        try:
            with view(script):
                yield True
        except Exception as error:
            _explain(error, use, tell)
            raise
        return
    try:
        yield False
    except (AttributeError, ImportError) as error:
        remedy = remedy_for(error)
        if remedy is not None:
            tell(remedy)
        raise


def _explain(error: Exception, use: reading.Use | None, tell: Callable[[str], object]) -> None:
    name = detection.missing_name(error)
    if name is not None:
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        tell(
            f"{file} needs {name}, which only TensorFlow 1 has. It belongs to an installed "
            "library, and libraries see TensorFlow 2. If this file is a part of the program, do "
            "not install it: keep it in the program's folder, or put its folder on PYTHONPATH."
        )
    elif use is not None:
        tell(
            f"the program that failed saw TensorFlow 1, because it names {use}. If it is written "
            "for TensorFlow 2, run it with --no-tf1."
        )


def remedy_for(error: BaseException) -> str | None:
    name = detection.missing_name(error)
    if name is None:
        return None
    return f"the program fails for {name}, which only TensorFlow 1 has. Run it with --tf1."
