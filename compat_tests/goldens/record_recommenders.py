"""Records tensorflow-recommenders' layer: `python -m` this in .envs/bench-recommenders."""

from __future__ import annotations

import json
import pathlib

import tensorflow as tf
import tensorflow_recommenders as tfrs

from compat_tests.programs.recommenders import RUNS, run

PATH = pathlib.Path(__file__).with_name("recommenders.json")


def main() -> None:
    layer = tfrs.layers.embedding.TPUEmbedding
    lines = []
    for name in RUNS:
        numbers = {key: value.tolist() for key, value in run(name, layer, tf.keras).items()}
        lines.append(f" {json.dumps(name)}: {json.dumps(numbers)}")
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
