"""Where programs look for stock's names, and what is put there: the tables of `install`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Names = Mapping[str, str]
"""By the name in a module, what it leads to: "module" or "module:attribute"."""

_NAMESPACE = "estimator_bridge.estimator"
_LEGACY = "estimator_bridge.legacy"
_HOOKS = "estimator_bridge.hooks"


def _from(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


PUBLIC_NAMESPACES = ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2")
"""The modules that have an attribute `estimator`."""

SUBMODULES = ("experimental", "export", "inputs", "tpu", "tpu.experimental")
"""Of the namespace; programs may import them by their paths."""

PARAMETERS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)
"""The parameter classes that stock exports under `tf.compat.v1.tpu.experimental`."""

INPUT_HOOK = "CheckpointInputPipelineHook"
INPUT_HOOK_MODULES = (
    "tensorflow.data.experimental",
    "tensorflow.compat.v1.data.experimental",
    "tensorflow.compat.v2.data.experimental",
)
"""The modules that have `INPUT_HOOK`; newer versions of TensorFlow have it no more."""

RESOLVERS = (
    "tensorflow.distribute.cluster_resolver",
    "tensorflow.compat.v1.distribute.cluster_resolver",
    "tensorflow.compat.v2.distribute.cluster_resolver",
)
"""The modules that have `TPUClusterResolver`."""

_TPU_EMBEDDING = {
    **_from(
        f"{_LEGACY}.parameters",
        "AdagradMomentumParameters",
        "FrequencyEstimatorParameters",
        "MomentumParameters",
        "ProximalAdagradParameters",
        "ProximalYogiParameters",
        "RMSPropParameters",
        *PARAMETERS,
    ),
    **_from(f"{_LEGACY}.table_config", "FeatureConfig", "TableConfig"),
}
_TPU_CONFIG = _from(f"{_LEGACY}.run_config", "InputPipelineConfig", "RunConfig", "TPUConfig")
_TPU_CONTEXT = _from("estimator_bridge.runtime.estimator.tpu_context", "TPUContext")
_TPU_ESTIMATOR = _from("estimator_bridge.estimator.tpu", "TPUEstimator", "TPUEstimatorSpec")
_TPU_UTIL = _from(f"{_LEGACY}.run_config", "parse_iterations_per_loop")

_EXPORT_FUNCTIONS = (
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
)
_EXPORT_OUTPUTS = (
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
)
_RECEIVERS = _from(
    f"{_LEGACY}.receivers",
    *_EXPORT_FUNCTIONS,
    "SupervisedInputReceiver",
    "build_raw_supervised_input_receiver_fn",
)

_ESTIMATOR_LIBRARY: dict[str, Names] = {
    "estimator": _from(_NAMESPACE, "Estimator", "VocabInfo", "WarmStartSettings"),
    "estimator_lib": _from(
        _NAMESPACE,
        *("Estimator", "EstimatorSpec", "EvalSpec", "Exporter", "FinalExporter"),
        *("LatestExporter", "ModeKeys", "RunConfig", "TrainSpec", "VocabInfo"),
        *("WarmStartSettings", "export", "inputs", "train_and_evaluate"),
        *("classifier_parse_example_spec", "regressor_parse_example_spec"),
    ),
    "export.export": _RECEIVERS,
    "export.export_lib": {
        **_RECEIVERS,
        **_from("estimator_bridge.estimator.export", *_EXPORT_OUTPUTS),
    },
    "export.export_output": _from("estimator_bridge.estimator.export", *_EXPORT_OUTPUTS),
    "exporter": _from(
        f"{_LEGACY}.exporters", "BestExporter", "Exporter", "FinalExporter", "LatestExporter"
    ),
    "model_fn": _from(f"{_LEGACY}.estimator_spec", "EstimatorSpec", "ModeKeys"),
    "run_config": {
        **_from(f"{_LEGACY}.base_run_config", "RunConfig"),
        **_from(f"{_LEGACY}.cluster", "TaskType"),
    },
    "training": {
        **_from(f"{_LEGACY}.train_and_eval_specs", "EvalSpec", "TrainSpec"),
        **_from("estimator_bridge.runtime.loop.train_and_evaluate", "train_and_evaluate"),
    },
}
"""Below `tensorflow_estimator.python.estimator`, and the older `tensorflow.python.estimator`."""

_NEWER_LIBRARY: dict[str, Names] = {
    "api._v1": {"estimator": _NAMESPACE},
    "early_stopping": _from(
        f"{_HOOKS}.early_stopping",
        "make_early_stopping_hook",
        "stop_if_higher_hook",
        "stop_if_lower_hook",
        "stop_if_no_decrease_hook",
        "stop_if_no_increase_hook",
    ),
    "hooks.hooks": {
        **_from(f"{_HOOKS}.in_memory_evaluator", "InMemoryEvaluatorHook"),
        **_from(f"{_HOOKS}.stop_at_checkpoint", "make_stop_at_checkpoint_step_hook"),
    },
    "mode_keys": _from(f"{_LEGACY}.estimator_spec", "ModeKeys"),
    "tpu._tpu_estimator_embedding": _from(f"{_LEGACY}.spec", "EmbeddingConfigSpec"),
    "tpu.tpu_config": _TPU_CONFIG,
    "tpu.tpu_context": _TPU_CONTEXT,
    "tpu.tpu_estimator": {
        **_TPU_ESTIMATOR,
        **_from(f"{_LEGACY}.spec", "EmbeddingConfigSpec"),
    },
    "tpu.util": _TPU_UTIL,
}
"""Below `tensorflow_estimator.python.estimator` only."""


def _below(root: str, modules: Mapping[str, Any]) -> dict[str, Names]:
    return {f"{root}.{name}": names for name, names in modules.items()}


MODULES: dict[str, Names] = {
    "tensorflow_estimator": {"estimator": _NAMESPACE},
    **_below("tensorflow_estimator.python.estimator", {**_ESTIMATOR_LIBRARY, **_NEWER_LIBRARY}),
    **_below("tensorflow.python.estimator", _ESTIMATOR_LIBRARY),
    **_below(
        "tensorflow.python.tpu",
        {
            "tpu_config": _TPU_CONFIG,
            "tpu_context": _TPU_CONTEXT,
            "tpu_embedding": _TPU_EMBEDDING,
            "tpu_estimator": _TPU_ESTIMATOR,
        },
    ),
}
"""Private modules of stock that programs import; packages above them are made as needed."""

ROOTS = ("tensorflow_estimator", "tensorflow.python.estimator")
"""Packages that are replaced as a whole: no module of stock's below them stays importable."""
