"""The names of stock that lead to the bridge: one row for each, and the modules that have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Names = Mapping[str, str]
"""By the name in a module, its target: "module" or "module:attribute"."""

NAMESPACE = "estimator_bridge.estimator"
"""The module that stands for `tf.estimator`."""

_LEGACY = "estimator_bridge.legacy"
_HOOKS = "estimator_bridge.hooks"
_RUNTIME = "estimator_bridge.runtime"


class Symbol(NamedTuple):
    """A name of stock that the bridge has.

    Attributes:
        home: where the bridge defines it: "module" or "module:attribute".
        namespace: the public namespace that has it, below `tf.estimator` ("" for that itself); None
            if programs find it in private modules only.
        modules: stock's private modules that have it: full paths, or names below
            `tensorflow_estimator.python.estimator`.
    """

    name: str
    home: str
    namespace: str | None
    modules: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Where users import it from: the namespace, or else its home."""
        if self.namespace is None:
            return self.home
        return f"{namespace_module(self.namespace)}:{self.name}"


def namespace_module(below: str) -> str:
    """Returns the module of a namespace, given as in `Symbol.namespace`."""
    return f"{NAMESPACE}.{below}" if below else NAMESPACE


def _defined_in(
    module: str, namespace: str | None, modules: Sequence[str], *names: str
) -> Iterator[Symbol]:
    for name in names:
        yield Symbol(name, f"{module}:{name}", namespace, tuple(modules))


PARAMETERS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)
"""The parameter classes that stock exports under `tf.compat.v1.tpu.experimental`."""

_TPU = "tensorflow.python.tpu"
_TPU_CONFIG = ("tpu.tpu_config", f"{_TPU}.tpu_config")
_TPU_ESTIMATOR = ("tpu.tpu_estimator", f"{_TPU}.tpu_estimator")
_EXPORT = ("export.export", "export.export_lib")

SYMBOLS: tuple[Symbol, ...] = (
    Symbol("estimator", NAMESPACE, None, ("tensorflow_estimator", "api._v1")),
    Symbol("experimental", f"{NAMESPACE}.experimental", ""),
    Symbol("export", f"{NAMESPACE}.export", "", ("estimator_lib",)),
    Symbol("inputs", f"{NAMESPACE}.inputs", "", ("estimator_lib",)),
    Symbol("tpu", f"{NAMESPACE}.tpu", ""),
    Symbol("experimental", f"{NAMESPACE}.tpu.experimental", "tpu"),
    *_defined_in(
        f"{_RUNTIME}.estimator.estimator", "", ["estimator", "estimator_lib"], "Estimator"
    ),
    *_defined_in(f"{_LEGACY}.warm_start", "", ["estimator", "estimator_lib"], "WarmStartSettings"),
    *_defined_in(f"{_LEGACY}.base_run_config", "", ["estimator_lib", "run_config"], "RunConfig"),
    *_defined_in(f"{_LEGACY}.cluster", None, ["run_config"], "TaskType"),
    *_defined_in(f"{_LEGACY}.estimator_spec", "", ["estimator_lib", "model_fn"], "EstimatorSpec"),
    *_defined_in(
        f"{_LEGACY}.estimator_spec", "", ["estimator_lib", "mode_keys", "model_fn"], "ModeKeys"
    ),
    *_defined_in(f"{_LEGACY}.exporters", "", ["exporter"], "BestExporter"),
    *_defined_in(
        f"{_LEGACY}.exporters",
        "",
        ["estimator_lib", "exporter"],
        *("Exporter", "FinalExporter", "LatestExporter"),
    ),
    *_defined_in(
        f"{_LEGACY}.parsing_specs",
        "",
        ["estimator_lib"],
        *("classifier_parse_example_spec", "regressor_parse_example_spec"),
    ),
    *_defined_in(
        f"{_LEGACY}.train_and_eval_specs",
        "",
        ["estimator_lib", "training"],
        "EvalSpec",
        "TrainSpec",
    ),
    *_defined_in(
        f"{_RUNTIME}.loop.train_and_evaluate",
        "",
        ["estimator_lib", "training"],
        "train_and_evaluate",
    ),
    # TensorFlow still has these; the estimator namespace was only another name for them.
    *(
        Symbol(name, f"tensorflow:compat.v1.train.{name}", "")
        for name in (
            "CheckpointSaverHook",
            "CheckpointSaverListener",
            "FeedFnHook",
            "FinalOpsHook",
            "GlobalStepWaiterHook",
            "LoggingTensorHook",
            "NanLossDuringTrainingError",
            "NanTensorHook",
            "ProfilerHook",
            "SecondOrStepTimer",
            "SessionRunArgs",
            "SessionRunContext",
            "SessionRunHook",
            "SessionRunValues",
            "StepCounterHook",
            "StopAtStepHook",
            "SummarySaverHook",
        )
    ),
    Symbol("VocabInfo", "tensorflow:compat.v1.train.VocabInfo", "", ("estimator", "estimator_lib")),
    Symbol(
        "make_saveable_from_iterator",
        "tensorflow:compat.v1.data.experimental.make_saveable_from_iterator",
        "experimental",
    ),
    *_defined_in(
        f"{_HOOKS}.early_stopping",
        "experimental",
        ["early_stopping"],
        "make_early_stopping_hook",
        "stop_if_higher_hook",
        "stop_if_lower_hook",
        "stop_if_no_decrease_hook",
        "stop_if_no_increase_hook",
    ),
    *_defined_in(
        f"{_HOOKS}.in_memory_evaluator", "experimental", ["hooks.hooks"], "InMemoryEvaluatorHook"
    ),
    *_defined_in(
        f"{_HOOKS}.stop_at_checkpoint",
        "experimental",
        ["hooks.hooks"],
        "make_stop_at_checkpoint_step_hook",
    ),
    *_defined_in(f"{_HOOKS}.input_pipeline", "experimental", [], "CheckpointInputPipelineHook"),
    *_defined_in(
        f"{_LEGACY}.receivers", "experimental", _EXPORT, "build_raw_supervised_input_receiver_fn"
    ),
    *_defined_in(
        f"{_LEGACY}.receivers",
        "export",
        _EXPORT,
        "ServingInputReceiver",
        "TensorServingInputReceiver",
        "build_parsing_serving_input_receiver_fn",
        "build_raw_serving_input_receiver_fn",
    ),
    *_defined_in(f"{_LEGACY}.receivers", None, _EXPORT, "SupervisedInputReceiver"),
    *_defined_in(
        f"{NAMESPACE}.export",
        "export",
        ["export.export_lib", "export.export_output"],
        "ClassificationOutput",
        "EvalOutput",
        "ExportOutput",
        "PredictOutput",
        "RegressionOutput",
    ),
    *_defined_in(
        f"{_LEGACY}.run_config", "tpu", _TPU_CONFIG, "InputPipelineConfig", "RunConfig", "TPUConfig"
    ),
    *_defined_in(f"{_LEGACY}.run_config", None, ["tpu.util"], "parse_iterations_per_loop"),
    *_defined_in(f"{_LEGACY}.estimator_spec", "tpu", _TPU_ESTIMATOR, "TPUEstimatorSpec"),
    *_defined_in(f"{_RUNTIME}.estimator.tpu_estimator", "tpu", _TPU_ESTIMATOR, "TPUEstimator"),
    *_defined_in(
        f"{_RUNTIME}.estimator.tpu_context",
        None,
        ["tpu.tpu_context", f"{_TPU}.tpu_context"],
        "TPUContext",
    ),
    *_defined_in(
        f"{_LEGACY}.spec",
        "tpu.experimental",
        ["tpu._tpu_estimator_embedding", "tpu.tpu_estimator"],
        "EmbeddingConfigSpec",
    ),
    *_defined_in(
        f"{_LEGACY}.parameters",
        None,
        [f"{_TPU}.tpu_embedding"],
        "AdagradMomentumParameters",
        "FrequencyEstimatorParameters",
        "MomentumParameters",
        "ProximalAdagradParameters",
        "ProximalYogiParameters",
        "RMSPropParameters",
        *PARAMETERS,
    ),
    *_defined_in(
        f"{_LEGACY}.table_config", None, [f"{_TPU}.tpu_embedding"], "FeatureConfig", "TableConfig"
    ),
)

PUBLIC_NAMESPACES = ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2")
"""The modules that have an attribute `estimator`."""

SUBMODULES = ("experimental", "export", "inputs", "tpu", "tpu.experimental")
"""The modules of the namespace; programs may import them by their paths."""

INPUT_HOOK = "CheckpointInputPipelineHook"
INPUT_HOOK_MODULES = (
    "tensorflow.data.experimental",
    "tensorflow.compat.v1.data.experimental",
    "tensorflow.compat.v2.data.experimental",
)
"""The modules that have `INPUT_HOOK`; newer versions of TensorFlow lack it."""

RESOLVERS = (
    "tensorflow.distribute.cluster_resolver",
    "tensorflow.compat.v1.distribute.cluster_resolver",
    "tensorflow.compat.v2.distribute.cluster_resolver",
)
"""The modules that have `TPUClusterResolver`."""

_LIBRARY = "tensorflow_estimator.python.estimator"
_OLD_LIBRARY = "tensorflow.python.estimator"
# The modules of the library that were there when it was a part of TensorFlow.
_OLD_MODULES = {
    *("estimator", "estimator_lib", "export.export", "export.export_lib", "export.export_output"),
    *("exporter", "model_fn", "run_config", "training"),
}


def _modules() -> dict[str, dict[str, str]]:
    modules: dict[str, dict[str, str]] = {}
    for symbol in SYMBOLS:
        for module in symbol.modules:
            for path in _paths(module):
                modules.setdefault(path, {})[symbol.name] = symbol.target
    return modules


def _paths(module: str) -> Iterator[str]:
    """Yields the full paths of a module, given as in `Symbol.modules`."""
    if module.startswith("tensorflow"):
        yield module
        return
    yield f"{_LIBRARY}.{module}"
    if module in _OLD_MODULES:
        yield f"{_OLD_LIBRARY}.{module}"


MODULES: Mapping[str, Names] = _modules()
"""Private modules of stock that programs import; packages above them are made as needed."""

ROOTS = ("tensorflow_estimator", _OLD_LIBRARY)
"""Packages that are replaced as a whole: no module of stock below them stays importable."""
