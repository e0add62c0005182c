"""The names of stock that lead to the bridge: a row for each, and the modules that have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

Names = Mapping[str, str]
"""By the name in a module, its target: "module" or "module:attribute"."""

NAMESPACE = "estimator_bridge.estimator"
"""The module that stands for `tf.estimator`."""


class Symbol(NamedTuple):
    """A name of stock that the bridge has.

    Attributes:
        home: where it is defined: "module" or "module:attribute".
        namespace: the public namespace that has it, below `tf.estimator` ("" for that itself); None
            if programs find it in private modules only.
        modules: stock's private modules that have it: full paths, or names below
            `tensorflow_estimator.python.estimator`.
    """

    name: str
    home: str
    namespace: str | None
    modules: tuple[str, ...]

    @property
    def target(self) -> str:
        """Where users import it from: the namespace, or else its home."""
        if self.namespace is None:
            return self.home
        return f"{namespace_module(self.namespace)}:{self.name}"


def namespace_module(below: str) -> str:
    """Returns the module of a namespace, given as in `Symbol.namespace`."""
    return f"{NAMESPACE}.{below}" if below else NAMESPACE


_EXPORT = "export.export export.export_lib"
_HOOKS = "hooks.hooks"
_OUTPUT = "export.export_lib export.export_output"
_TPU_CONFIG = "tpu.tpu_config tensorflow.python.tpu.tpu_config"
_TPU_CONTEXT = "tpu.tpu_context tensorflow.python.tpu.tpu_context"
_TPU_EMBEDDING = "tensorflow.python.tpu.tpu_embedding"
_TPU_ESTIMATOR = "tpu.tpu_estimator tensorflow.python.tpu.tpu_estimator"
_TRAIN = "tensorflow:compat.v1.train"

# Home, namespace, private modules, names. A home without a colon is below `estimator_bridge`.
_ROWS: tuple[tuple[str, str | None, str, str], ...] = (
    ("estimator", "", "estimator_lib", "export inputs"),
    ("estimator", "", "", "experimental tpu"),
    ("estimator.tpu", "tpu", "", "experimental"),
    ("runtime.estimator.base_estimator", "", "estimator estimator_lib", "Estimator"),
    ("runtime.loop.train_and_evaluate", "", "estimator_lib training", "train_and_evaluate"),
    ("legacy.base_run_config", "", "estimator_lib run_config", "RunConfig"),
    ("legacy.cluster", None, "run_config", "TaskType"),
    ("legacy.estimator_spec", "", "estimator_lib model_fn", "EstimatorSpec"),
    ("legacy.estimator_spec", "", "estimator_lib mode_keys model_fn", "ModeKeys"),
    ("legacy.exporters", "", "exporter", "BestExporter"),
    ("legacy.exporters", "", "estimator_lib exporter", "Exporter FinalExporter LatestExporter"),
    ("legacy.parsing_specs", "", "estimator_lib", "classifier_parse_example_spec"),
    ("legacy.parsing_specs", "", "estimator_lib", "regressor_parse_example_spec"),
    ("legacy.train_and_eval_specs", "", "estimator_lib training", "EvalSpec TrainSpec"),
    ("legacy.warm_start", "", "estimator estimator_lib", "WarmStartSettings"),
    # TensorFlow still has these; the estimator namespace was only another name for them.
    (_TRAIN, "", "estimator estimator_lib", "VocabInfo"),
    (_TRAIN, "", "", "CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook"),
    (_TRAIN, "", "", "GlobalStepWaiterHook LoggingTensorHook NanLossDuringTrainingError"),
    (_TRAIN, "", "", "NanTensorHook ProfilerHook SecondOrStepTimer StepCounterHook"),
    (_TRAIN, "", "", "SessionRunArgs SessionRunContext SessionRunHook SessionRunValues"),
    (_TRAIN, "", "", "StopAtStepHook SummarySaverHook"),
    ("tensorflow:compat.v1.data.experimental", "experimental", "", "make_saveable_from_iterator"),
    ("hooks.early_stopping", "experimental", "early_stopping", "make_early_stopping_hook"),
    ("hooks.early_stopping", "experimental", "early_stopping", "stop_if_higher_hook"),
    ("hooks.early_stopping", "experimental", "early_stopping", "stop_if_lower_hook"),
    ("hooks.early_stopping", "experimental", "early_stopping", "stop_if_no_decrease_hook"),
    ("hooks.early_stopping", "experimental", "early_stopping", "stop_if_no_increase_hook"),
    ("hooks.in_memory_evaluator", "experimental", _HOOKS, "InMemoryEvaluatorHook"),
    ("hooks.input_pipeline", "experimental", "", "CheckpointInputPipelineHook"),
    ("hooks.early_stopping", "experimental", _HOOKS, "make_stop_at_checkpoint_step_hook"),
    ("legacy.receivers", "experimental", _EXPORT, "build_raw_supervised_input_receiver_fn"),
    ("legacy.receivers", "export", _EXPORT, "ServingInputReceiver TensorServingInputReceiver"),
    ("legacy.receivers", "export", _EXPORT, "build_parsing_serving_input_receiver_fn"),
    ("legacy.receivers", "export", _EXPORT, "build_raw_serving_input_receiver_fn"),
    ("legacy.receivers", None, _EXPORT, "SupervisedInputReceiver"),
    ("estimator.export", "export", _OUTPUT, "ClassificationOutput EvalOutput ExportOutput"),
    ("estimator.export", "export", _OUTPUT, "PredictOutput RegressionOutput"),
    ("runtime.estimator.tpu_estimator", "tpu", _TPU_ESTIMATOR, "TPUEstimator"),
    ("runtime.estimator.tpu_context", None, _TPU_CONTEXT, "TPUContext"),
    ("legacy.estimator_spec", "tpu", _TPU_ESTIMATOR, "TPUEstimatorSpec"),
    ("legacy.run_config", "tpu", f"{_TPU_CONFIG} {_TPU_ESTIMATOR}", "InputPipelineConfig"),
    ("legacy.run_config", "tpu", _TPU_CONFIG, "RunConfig TPUConfig"),
    ("legacy.run_config", None, "tpu.util", "parse_iterations_per_loop"),
    ("legacy.private_names", None, "tpu.util", "check_positive_integer"),
    ("legacy.private_names", None, "model_fn", "AVERAGE_LOSS_METRIC_KEY LOSS_METRIC_KEY"),
    ("legacy.private_names", None, _TPU_ESTIMATOR, "BatchConfig ExportSavedModelApiVersion"),
    ("legacy.private_names", None, _TPU_ESTIMATOR, "model_fn_inference_on_tpu"),
    ("legacy.private_names", None, _TPU_EMBEDDING, "INFERENCE TRAINING"),
    ("legacy.private_names", None, "util", "MultiHostDatasetInitializerHook"),
    ("legacy.private_names", None, "util", "parse_input_fn_result parse_iterator_result"),
    ("legacy.private_names", None, "estimator", "_load_global_step_from_checkpoint_dir"),
    ("legacy.spec", "tpu.experimental", "tpu.tpu_estimator", "EmbeddingConfigSpec"),
    ("legacy.spec", "tpu.experimental", "tpu._tpu_estimator_embedding", "EmbeddingConfigSpec"),
    ("legacy.table_config", None, _TPU_EMBEDDING, "FeatureConfig TableConfig"),
    ("legacy.parameters", None, _TPU_EMBEDDING, "AdagradMomentumParameters AdagradParameters"),
    ("legacy.parameters", None, _TPU_EMBEDDING, "AdamParameters FrequencyEstimatorParameters"),
    ("legacy.parameters", None, _TPU_EMBEDDING, "FtrlParameters MomentumParameters"),
    ("legacy.parameters", None, _TPU_EMBEDDING, "ProximalAdagradParameters RMSPropParameters"),
    ("legacy.parameters", None, _TPU_EMBEDDING, "ProximalYogiParameters"),
    ("legacy.parameters", None, _TPU_EMBEDDING, "StochasticGradientDescentParameters"),
)


def _symbols() -> Iterator[Symbol]:
    for home, namespace, modules, names in _ROWS:
        for name in names.split():
            if home.startswith("tensorflow:"):
                path = f"{home}.{name}"
            else:
                path = f"estimator_bridge.{home}:{name}"
            yield Symbol(name, path, namespace, tuple(modules.split()))


SYMBOLS = (
    Symbol("estimator", NAMESPACE, None, ("tensorflow_estimator", "api._v1")),
    *_symbols(),
)

PARAMETERS = tuple(
    f"{name}Parameters" for name in ("Adagrad", "Adam", "Ftrl", "StochasticGradientDescent")
)
"""The parameter classes that stock exports under `tf.compat.v1.tpu.experimental`."""

_VERSIONS = ("v1", "v2")

PUBLIC_NAMESPACES = ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2")

ESTIMATOR_PARENTS = (
    *PUBLIC_NAMESPACES,
    *(f"tensorflow.compat.{outer}.compat.{inner}" for outer in _VERSIONS for inner in _VERSIONS),
)
"""The modules that have an attribute `estimator`."""

SUBMODULES = ("experimental", "export", "inputs", "tpu", "tpu.experimental")
"""The modules of the namespace; programs may import them by their paths."""

INPUT_HOOK = "CheckpointInputPipelineHook"
INPUT_HOOK_MODULES = tuple(f"{path}.data.experimental" for path in PUBLIC_NAMESPACES)
"""The modules that have `INPUT_HOOK`; newer versions of TensorFlow lack it."""

RESOLVERS = tuple(f"{path}.distribute.cluster_resolver" for path in PUBLIC_NAMESPACES)
"""The modules that have `TPUClusterResolver`."""

RESOLVER = "TPUClusterResolver"
RESOLVER_STAND_IN = "estimator_bridge.run.cluster_resolver:in_place_of"

_TPU_SYSTEM = "estimator_bridge.run.tpu_system"
STAND_INS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (RESOLVERS, RESOLVER, RESOLVER_STAND_IN),
    (
        (
            *("tensorflow.distribute", "tensorflow.compat.v2.distribute"),
            *(f"{path}.distribute.experimental" for path in PUBLIC_NAMESPACES),
        ),
        "TPUStrategy",
        f"{_TPU_SYSTEM}:strategy_in_place_of",
    ),
    *(
        (
            tuple(f"{path}.tpu.experimental" for path in PUBLIC_NAMESPACES),
            name,
            f"{_TPU_SYSTEM}:function_in_place_of",
        )
        for name in ("initialize_tpu_system", "shutdown_tpu_system")
    ),
)
"""Modules, the name in them of what looks for a TPU, and what makes a stand-in of it."""

KEPT = (_TPU_EMBEDDING,)
"""Modules of TensorFlow whose other names stay: only those that the bridge has are replaced."""

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
            path = module if module.startswith("tensorflow") else f"{_LIBRARY}.{module}"
            modules.setdefault(path, {})[symbol.name] = symbol.target
            if module in _OLD_MODULES:
                modules.setdefault(f"{_OLD_LIBRARY}.{module}", {})[symbol.name] = symbol.target
    return modules


MODULES: Mapping[str, Names] = _modules()
"""Private modules of stock that programs import; packages above them are made as needed."""

ROOTS = ("tensorflow_estimator", _OLD_LIBRARY)
"""Packages that are replaced as a whole: no module of stock below them stays importable."""
