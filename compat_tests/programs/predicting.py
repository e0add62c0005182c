"""Runs a program, legacy or migrated, and writes down what it predicts.

python -m compat_tests.programs.predicting PREDICTIONS.npz PROGRAM.py ARGUMENTS...
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from estimator_bridge import install

install.use_legacy_keras()


def main() -> None:
    """Runs the program's `main`, with its estimator's `predict` overheard."""
    import tensorflow.compat.v1 as tf
    from absl import app

    path, program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    install.install(replace=True)
    found = runpy.run_path(program, run_name="program")
    kind: Any = found.get("Trainer")
    if kind is None:
        from estimator_bridge.estimator import tpu

        kind = tpu.TPUEstimator
        tf.disable_v2_behavior()
    predict = kind.predict

    def overheard(*given: Any, **named: Any) -> Iterator[dict[str, Any]]:
        samples = list(predict(*given, **named))
        np.savez(path, **{key: np.stack([each[key] for each in samples]) for key in samples[0]})
        return iter(samples)

    kind.predict = overheard
    app.run(found["main"], argv=[program, *arguments])


if __name__ == "__main__":
    main()
