"""Lists the rules by which the Keras form refuses programs, and what each rule refuses."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.migrate.selection import REFUSED, Rule

_TEXTS: Mapping[str, str] = {
    "keras-argument": "an argument that would be lost, or a required argument that is missing",
    "keras-config": "a config whose values are not known where the estimator is made",
    "keras-estimator": "an estimator that is passed around",
    "keras-estimator-argument": (
        "an argument of the estimator, of its config or of an EvalSpec that has no counterpart"
    ),
    "keras-estimator-class": "a canned estimator whose model or head cannot be translated",
    "keras-estimator-method": (
        "a method of the estimator that a Keras model does not have, or a result that the new "
        "program would lose"
    ),
    "keras-estimators": "no estimator, or several estimators, one of them canned",
    "keras-exporter": "an exporter class of the program, or one that this training cannot have",
    "keras-hook": "a hook or a listener for which Keras has no callback that does the same",
    "keras-import": (
        "an import of TensorFlow that is the only statement in its block, or an import from the "
        "package that cannot be followed"
    ),
    "keras-input-fn": "an input function that returns no dataset, or uses more than a batch size",
    "keras-layer-argument": "an argument of a layer that cannot be translated",
    "keras-layer": "a layer or a cell that Keras does not have",
    "keras-loss": "a loss that no loss or head of tf2_engine.keras computes",
    "keras-metric": "a metric that is not in the dict of a metric_fn",
    "keras-missing-name": (
        "a name that the new program would use but does not have, or that has another value there"
    ),
    "keras-no-counterpart": "a function that TensorFlow 2 and Keras do not have",
    "keras-model-fn": "a model_fn that does not become a class of Keras (only with --target)",
    "keras-of-estimator": "a name of `tf.estimator` that the Keras form has no use for",
    "keras-of-train": "a name of `tf.train` that Keras does not have: optimizers, hooks, averages",
    "keras-optimizer": "an optimizer of a canned estimator that Keras cannot reproduce",
    "keras-receiver": "a receiver that is not made by a function of the program",
    "keras-spec": "an EmbeddingConfigSpec or EstimatorSpec whose creation the source does not show",
    "keras-summary": "a summary, which needs a writer and a step in TensorFlow 2",
    "keras-train-spec": "a TrainSpec or EvalSpec whose creation the source does not show",
    "keras-variable": "a variable that belongs to no layer",
}

RULES: Mapping[str, Rule] = {name: Rule(REFUSED, text) for name, text in _TEXTS.items()}
"""The rules by id. All of them are refusals.

Replacements have no rules, because users could skip rules, and a program in the Keras form cannot
contain a call of an estimator.
"""
