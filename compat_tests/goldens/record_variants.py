"""Records what stock makes of tiny programs on the software TPU: `python -m` this on TF 2.15.1."""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.programs.variants import VARIANTS, Variant

PATH = pathlib.Path(__file__).with_name("variants.json")
STEPS = 4


def run(variant: Variant, estimator: Any, model_dir: Any, *, use_tpu: bool) -> dict[str, Any]:
    """Trains and evaluates; returns what the checkpoint holds, and the metrics."""
    job = variant.make(estimator, model_dir, use_tpu=use_tpu)
    job.train(variant.input_fn, steps=STEPS)
    reader = tf.train.load_checkpoint(job.latest_checkpoint())
    variables = {
        name: np.asarray(reader.get_tensor(name), np.float64).tolist()
        for name in sorted(reader.get_variable_to_shape_map())
    }
    evaluated = job.evaluate(variant.input_fn, steps=1)
    metrics = {name: np.asarray(value, np.float64).tolist() for name, value in evaluated.items()}
    return {"variables": variables, "metrics": metrics}


def main() -> None:
    from compat_tests.support import stock
    from estimator_bridge.run import software_tpu

    goldens = {}
    with software_tpu.stock_on_software_tpu(), tempfile.TemporaryDirectory() as folder:
        for variant in VARIANTS:
            model_dir = pathlib.Path(folder, variant.name)
            goldens[variant.name] = run(variant, stock.ESTIMATOR, model_dir, use_tpu=True)
    lines = [f" {json.dumps(name)}: {json.dumps(golden)}" for name, golden in goldens.items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
