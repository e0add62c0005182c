"""Runs a program, legacy or migrated, and writes down what it predicts.

python -m compat_tests.programs.predicting PREDICTIONS.npz PROGRAM.py ARGUMENTS...

Instead of a file, "stock" runs a legacy program on stock's estimator, on the software TPU; it
predicts nothing then, since stock's `predict` with tables is broken on a TPU. With --cores=N before
it, the program runs in the scope of a SoftTPUStrategy of N cores.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from estimator_bridge.run import install

install.use_legacy_keras()


def main() -> None:
    """Runs the program's `main`, with its estimator's `predict` overheard."""
    given = sys.argv[1:]
    cores = int(given.pop(0).partition("=")[2]) if given[0].startswith("--cores=") else None
    path, program, *arguments = given
    sys.argv = [program, *arguments]
    if path == "stock":
        from compat_tests.support import stock
        from estimator_bridge.run import software_tpu

        with software_tpu.stock_on_software_tpu():
            run(program, arguments, stock.ESTIMATOR.tpu.TPUEstimator, lambda _: iter(()))
        return
    install.install(replace=True)
    from estimator_bridge.estimator import tpu

    def write(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        found = list(samples)
        np.savez(path, **{key: np.stack([each[key] for each in found]) for key in found[0]})
        return iter(found)

    with contextlib.ExitStack() as stack:
        if cores is not None:
            from tf2_engine import soft_tpu

            stack.enter_context(soft_tpu.SoftTPUStrategy(cores).scope())
        run(program, arguments, tpu.TPUEstimator, write)


def run(program: str, arguments: list[str], legacy: Any, hear: Callable[[Any], Any]) -> None:
    """Runs a program's `main`.

    Args:
        legacy: the estimator of a legacy program.
        hear: is given the predictions, and returns what the program gets in their place.
    """
    import tensorflow.compat.v1 as tf
    from absl import app

    found = runpy.run_path(program, run_name="program")
    kind = found.get("Trainer", legacy)
    if kind is legacy:
        tf.disable_v2_behavior()
    predict = kind.predict
    kind.predict = lambda *given, **named: hear(predict(*given, **named))
    app.run(found["main"], argv=[program, *arguments])


if __name__ == "__main__":
    main()
