"""Runs a program, legacy or migrated, and writes its predictions to a file.

python -m compat_tests.programs.predicting PREDICTIONS.npz PROGRAM.py ARGUMENTS...

Instead of a file, "stock" runs a legacy program on stock's estimator, on the software TPU; it makes
no predictions then, since stock's `predict` with tables is broken on a TPU. With --cores=N before
it, the program runs in the scope of a SoftTPUStrategy of N cores; with --sparse_cores=S after that
they have S SparseCores each.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from estimator_bridge.run import install, keras_choice

keras_choice.use_legacy_keras()


def main() -> None:
    """Runs the program's `main`, and intercepts its estimator's `predict`."""
    argv = sys.argv[1:]
    cores, sparse_cores = (
        int(argv.pop(0).partition("=")[2]) if argv[0].startswith(option) else None
        for option in ("--cores=", "--sparse_cores=")
    )
    path, program, *arguments = argv
    sys.argv = [program, *arguments]
    if path == "stock":
        from compat_tests.support import stock
        from estimator_bridge.run import software_tpu

        with software_tpu.stock_on_software_tpu():
            run(program, arguments, stock.ESTIMATOR.tpu.TPUEstimator, lambda _: iter(()))
        return
    install.install(replace=True)
    from estimator_bridge.estimator import tpu
    from estimator_bridge.legacy.spec import set_default_quirks

    set_default_quirks("stock")  # as `estimator-bridge run` does

    def write(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        predictions = list(samples)
        keys = predictions[0]
        np.savez(path, **{key: np.stack([each[key] for each in predictions]) for key in keys})
        return iter(predictions)

    with contextlib.ExitStack() as stack:
        if cores is not None:
            from tf2_engine import soft_tpu

            hardware = {}
            if sparse_cores is not None:
                hardware = {"hardware": "sparsecore", "sparse_cores": sparse_cores}
            stack.enter_context(soft_tpu.SoftTPUStrategy(cores, **hardware).scope())
        run(program, arguments, tpu.TPUEstimator, write)


def run(program: str, arguments: list[str], legacy: Any, intercept: Callable[[Any], Any]) -> None:
    """Runs a program's `main`.

    Args:
        legacy: the estimator of a legacy program.
        intercept: takes the predictions, and returns those for the program.
    """
    import tensorflow.compat.v1 as tf
    from absl import app

    names = runpy.run_path(program, run_name="program")
    kind = names.get("Trainer", legacy)
    if kind is legacy:
        tf.disable_v2_behavior()
    predict = kind.predict
    kind.predict = lambda *args, **kwargs: intercept(predict(*args, **kwargs))
    app.run(names["main"], argv=[program, *arguments])


if __name__ == "__main__":
    main()
