"""Predictors, which compute the outputs of a SavedModel or an estimator from arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Object, Session, Tensor

_SERVE = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class Predictor:
    """Computes a dict of outputs from a dict of arrays, in a session that stays open."""

    def __init__(
        self, session: Session, inputs: Mapping[str, str], outputs: Mapping[str, str]
    ) -> None:
        self.session, self.graph = session, session.graph
        self.feed_tensors = {key: self._tensor(name) for key, name in inputs.items()}
        self.fetch_tensors = {key: self._tensor(name) for key, name in outputs.items()}

    def _tensor(self, name: str) -> Tensor:
        return self.graph.get_tensor_by_name(name)

    def __call__(self, input_dict: Mapping[str, object]) -> dict[str, np.ndarray]:
        other = sorted({*input_dict} - {*self.feed_tensors})
        if other:
            raise errors.InvalidInput(
                f"The model has no inputs {', '.join(other)}. It has "
                f"{', '.join(sorted(self.feed_tensors))}."
            )
        feeds = {self.feed_tensors[key]: value for key, value in input_dict.items()}
        outputs: dict[str, np.ndarray] = self.session.run(self.fetch_tensors, feeds)
        return outputs


def from_saved_model(
    export_dir: str,
    signature_def_key: str | None = None,
    signature_def: Object = None,
    input_names: Mapping[str, str] | None = None,
    output_names: Mapping[str, str] | None = None,
    tags: str | None = None,
    graph: tf.Graph | None = None,
    config: Object = None,
) -> Predictor:
    """Loads a SavedModel as a predictor, for one of its signatures or for named tensors.

    Args:
        signature_def_key: the signature; None means "serving_default".
        tags: the tags of the graph, separated by commas; None means "serve".

    Raises:
        InvalidInput: inputs and outputs are chosen in several ways, or the signature is missing.
    """
    ways = (signature_def_key, signature_def, input_names)
    if (input_names is None) != (output_names is None) or sum(
        each is not None for each in ways
    ) > 1:
        raise errors.InvalidInput(
            "Give signature_def_key, or signature_def, or both input_names and output_names."
        )
    with (graph or tf.Graph()).as_default() as used:
        session = tf.Session(graph=used, config=config)
        wanted = [each.strip() for each in (tags or "serve").split(",")]
        model = tf.saved_model.loader.load(session, wanted, export_dir)
    if input_names is not None and output_names is not None:
        return Predictor(session, input_names, output_names)
    key = signature_def_key or _SERVE
    if signature_def is None and key not in model.signature_def:
        raise errors.InvalidInput(
            f"{export_dir} has no signature {key!r}. It has {', '.join(model.signature_def)}."
        )
    signature = signature_def or model.signature_def[key]
    inputs, outputs = (
        {key: info.name for key, info in infos.items()}
        for infos in (signature.inputs, signature.outputs)
    )
    return Predictor(session, inputs, outputs)


def from_estimator(
    estimator: Object,
    serving_input_receiver_fn: Callable[[], Object],
    output_key: str | None = None,
    graph: tf.Graph | None = None,
    config: Object = None,
) -> Predictor:
    """Exports an estimator's latest checkpoint, and loads the export's signature `output_key`."""
    with tempfile.TemporaryDirectory() as folder:
        exported = estimator.export_saved_model(folder, serving_input_receiver_fn)
        return from_saved_model(tf.compat.as_str(exported), output_key, graph=graph, config=config)
