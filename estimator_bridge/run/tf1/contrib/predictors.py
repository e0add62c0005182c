"""Functions that compute the outputs of a SavedModel, or of an estimator, from arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Object, Session, Tensor

_SERVE = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class Predictor:
    """Maps a dictionary of arrays to one of outputs, in a session that stays open.

    Attributes:
        graph, session: where the model is.
        feed_tensors, fetch_tensors: the input and output tensors by name.
    """

    def __init__(
        self, session: Session, inputs: Mapping[str, str], outputs: Mapping[str, str]
    ) -> None:
        self.session, self.graph = session, session.graph
        self.feed_tensors = {key: self._tensor(name) for key, name in inputs.items()}
        self.fetch_tensors = {key: self._tensor(name) for key, name in outputs.items()}

    def _tensor(self, name: str) -> Tensor:
        return self.graph.get_tensor_by_name(name)

    def __call__(self, input_dict: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Computes the outputs; inputs with a default may be left out.

        Raises:
            InvalidInput: the model has no such input.
        """
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
    """Loads a SavedModel; returns the function of one of its signatures, or of tensors by name.

    Args:
        signature_def_key: the signature; None is "serving_default".
        tags: of the graph, separated by commas; None is "serve".

    Raises:
        InvalidInput: inputs and outputs are given in several ways, or the signature is missing.
    """
    ways = (signature_def_key, signature_def, input_names)
    if (input_names is None) != (output_names is None) or sum(
        each is not None for each in ways
    ) > 1:
        raise errors.InvalidInput(
            "Give signature_def_key, or signature_def, or both of input_names and output_names."
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
    return _of_signature(session, signature_def or model.signature_def[key])


def from_estimator(
    estimator: Object,
    serving_input_receiver_fn: Callable[[], Object],
    output_key: str | None = None,
    graph: tf.Graph | None = None,
    config: Object = None,
) -> Predictor:
    """Returns the function that a model_fn computes for PREDICT with the last checkpoint."""
    with (graph or tf.Graph()).as_default():
        receiver = serving_input_receiver_fn()
        mode = tf.estimator.ModeKeys.PREDICT
        spec = estimator.model_fn(receiver.features, None, mode, estimator.config)
        key = output_key or _SERVE
        if key not in (spec.export_outputs or {}):
            raise errors.InvalidInput(
                f"The model_fn has no export_outputs[{key!r}]. It has "
                f"{', '.join(spec.export_outputs or ()) or 'none'}."
            )
        signature = spec.export_outputs[key].as_signature_def(receiver.receiver_tensors)
        creator = tf.train.ChiefSessionCreator(config=config, checkpoint_dir=estimator.model_dir)
        return _of_signature(tf.train.MonitoredSession(creator), signature)


def _of_signature(session: Session, signature: Object) -> Predictor:
    inputs, outputs = (
        {key: info.name for key, info in infos.items()}
        for infos in (signature.inputs, signature.outputs)
    )
    return Predictor(session, inputs, outputs)
