"""Runs SavedModels with both loaders of TensorFlow, in a process that imports TensorFlow alone.

python -I answering.py REQUESTS.npz ANSWERS.npz SAVED_MODEL...

The keys of requests are names of inputs, or "SIGNATURE/INPUT" for a single signature; others are
ignored. The keys of answers are "NUMBER OF THE MODEL/LOADER/SIGNATURE/OUTPUT".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Arrays = Mapping[str, Any]


def main() -> None:
    """Writes the answers of each model to the file."""
    requests_path, answers_path, *models = sys.argv[1:]
    requests = dict(np.load(requests_path, allow_pickle=True))
    outputs: dict[str, Any] = {}
    for number, path in enumerate(models):
        for loader, ask in (("objects", by_objects), ("session", by_session)):
            for signature, answers in ask(path, requests).items():
                for name, value in answers.items():
                    # An array of Python objects could not be read without pickle.
                    array = value.astype("S") if value.dtype == object else value
                    outputs[f"{number}/{loader}/{signature}/{name}"] = array
    ours = {name.partition(".")[0] for name in sys.modules} & {"tf2_engine", "estimator_bridge"}
    assert not ours, ours
    np.savez(answers_path, **outputs)


def by_objects(path: str, requests: Arrays) -> dict[str, Arrays]:
    """Returns the answers of the signatures that `tf.saved_model.load` returns."""
    answers = {}
    for name, signature in tf.saved_model.load(path).signatures.items():
        kinds = {key: spec.dtype for key, spec in signature.structured_input_signature[1].items()}
        fed = fitting(name, kinds, requests)
        tensors = {key: tf.constant(value) for key, value in fed.items()}
        answers[name] = {key: value.numpy() for key, value in signature(**tensors).items()}
    return answers


def by_session(path: str, requests: Arrays) -> dict[str, Arrays]:
    answers = {}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], path)
        for name, signature in graph.signature_def.items():
            if name == "__saved_model_init_op":
                continue
            kinds = {key: tf.as_dtype(info.dtype) for key, info in signature.inputs.items()}
            fed = fitting(name, kinds, requests)
            answers[name] = session.run(
                {key: info.name for key, info in signature.outputs.items()},
                {signature.inputs[key].name: value for key, value in fed.items()},
            )
    return answers


def fitting(signature: str, kinds: Arrays, requests: Arrays) -> Arrays:
    """Returns the requests of a signature, cast to its types."""
    inputs = {}
    for key, kind in kinds.items():
        request = requests.get(f"{signature}/{key}", requests.get(key))
        inputs[key] = np.asarray(request, kind.as_numpy_dtype)
    return inputs


if __name__ == "__main__":
    main()
