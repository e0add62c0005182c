"""Stock's names: those that the bridge provides, and those that it does not support."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.settings.optimizer_rows import OPTIMIZERS

Names = Mapping[str, str]
"""Maps a name in a module to its target: "module" or "module:attribute"."""

NAMESPACE = "estimator_bridge.estimator"
"""The bridge's module for `tf.compat.v1.estimator`."""

NAMESPACE_V2 = f"{NAMESPACE}.v2"
"""The bridge's module for `tf.compat.v2.estimator`, which is also `tf.estimator`."""


class Symbol(NamedTuple):
    """One of stock's names that the bridge provides.

    Attributes:
        home, home_v2: where the bridge defines the name, as "module" or "module:attribute".
            `home_v2` is for `tf.compat.v2.estimator`, and `home` for `tf.compat.v1.estimator`.
        namespace: the public namespace below `tf.estimator`; None if only private modules have the
            name.
        modules: stock's private modules with the name: full paths, or paths below
            `tensorflow_estimator.python.estimator`.
    """

    name: str
    home: str
    namespace: str | None
    modules: tuple[str, ...]
    home_v2: str = ""

    @property
    def target(self) -> str:
        if self.namespace is None:
            return self.home
        return f"{namespace_module(self.namespace)}:{self.name}"


def namespace_module(below: str) -> str:
    return f"{NAMESPACE}.{below}" if below else NAMESPACE


COORDINATOR = "tensorflow.python.distribute.estimator_training"
_EXPORT = "export.export export.export_lib"
_HOOKS = "hooks.hooks"
_OUTPUT = "export.export_lib export.export_output"
_TPU_CONFIG = "tpu.tpu_config tensorflow.python.tpu.tpu_config"
_TPU_CONTEXT = "tpu.tpu_context tensorflow.python.tpu.tpu_context"
_TPU_EMBEDDING = "tensorflow.python.tpu.tpu_embedding"
_TPU_ESTIMATOR = "tpu.tpu_estimator tensorflow.python.tpu.tpu_estimator"
_OF_EMBEDDINGS = f"{_TPU_ESTIMATOR} tpu._tpu_estimator_embedding"
_PARSING = "canned.parsing_utils estimator_lib"
_REGRESSION = "head.regression_head"
_TRAIN = "tensorflow:compat.v1.train"
_STOPPING = "hooks.early_stopping"
_INPUTS = "canned.memory_inputs"
_LOOP = "runtime.loop.train_and_evaluate"
_OPTIMIZERS = "canned.constructor_arguments"
_PRIVATE = "legacy.private_names"

_FAMILIES = {
    "Baseline": "canned.baseline",
    "DNN": "canned.dnn",
    "DNNLinearCombined": "canned.dnn_linear_combined",
    "Linear": "canned.linear",
}
_TASKS = ("Classifier", "Estimator", "Regressor")

# Home, namespace, private modules, names. A home without a colon is below `estimator_bridge`.
_ROWS: tuple[tuple[str, str | None, str, str], ...] = (
    # Classes of TensorFlow 1 and 2; the namespace of TensorFlow 2 has both under the same name.
    *(
        (module, namespace, module, " ".join(f"{family}{task}{version}" for task in _TASKS))
        for family, module in _FAMILIES.items()
        for namespace, version in (("", ""), (None, "V2"))
    ),
    ("canned.dnn", "experimental", "canned.dnn", "dnn_logit_fn_builder"),
    *(
        ("canned.heads.head_functions", None, "canned.head", name)
        for name in (
            "LossSpec _Head _regression_head",
            "_binary_logistic_head_with_sigmoid_cross_entropy_loss",
            "_multi_class_head_with_softmax_cross_entropy_loss",
        )
    ),
    ("canned.heads.classifier_heads", "", "head.binary_class_head", "BinaryClassHead"),
    ("canned.heads.head", "", "head.base_head", "Head"),
    ("canned.heads.classifier_heads", "", "head.multi_class_head", "MultiClassHead"),
    ("canned.heads.composed_heads", "", "head.multi_head", "MultiHead"),
    ("canned.heads.multi_label", "", "head.multi_label_head", "MultiLabelHead"),
    ("canned.heads.regression", "", _REGRESSION, "LogisticRegressionHead RegressionHead"),
    ("canned.heads.regression", "", _REGRESSION, "PoissonRegressionHead"),
    ("canned.keras_models", None, "keras_lib", "model_to_estimator"),
    ("canned.kmeans", "experimental", "", "KMeans"),
    ("canned.kmeans", None, "canned.kmeans", "KMeansClustering"),
    ("canned.linear", "experimental", "canned.linear", "linear_logit_fn_builder"),
    ("canned.extenders", "experimental", "model_fn", "call_logit_fn"),
    ("canned.extenders", "", "extenders", "add_metrics"),
    (_OPTIMIZERS, None, "canned.optimizers", "get_optimizer_instance get_optimizer_instance_v2"),
    ("canned.result_names", None, "canned.metric_keys", "MetricKeys"),
    ("canned.result_names", None, "canned.prediction_keys", "PredictionKeys"),
    (_INPUTS, "inputs", "inputs.inputs inputs.numpy_io", "numpy_input_fn"),
    (_INPUTS, "inputs", "inputs.inputs inputs.pandas_io", "pandas_input_fn"),
    ("canned.rnn", "experimental", "canned.rnn", "RNNClassifier RNNEstimator"),
    ("canned.sdca", "experimental", "canned.linear", "LinearSDCA"),
    ("estimator", "", "estimator_lib", "export inputs"),
    ("estimator", "", "", "experimental tpu"),
    ("estimator.tpu", "tpu", "", "experimental"),
    ("runtime.estimator.base_estimator", "", "estimator estimator_lib", "Estimator"),
    ("runtime.estimator.base_estimator", None, "estimator", "EstimatorV2"),
    (_LOOP, "", "estimator_lib training", "EvalSpec TrainSpec train_and_evaluate"),
    (
        _LOOP,
        None,
        "training",
        "_ContinuousEvalListener _EvalResult _EvalStatus _TrainingExecutor _assert_eval_spec",
    ),
    (
        "runtime.estimator.estimator_arguments",
        None,
        "estimator",
        "maybe_overwrite_model_dir_and_session_config",
    ),
    ("legacy.base_run_config", "", "estimator_lib run_config", "RunConfig"),
    ("legacy.tf_config", None, "run_config", "TaskType"),
    ("legacy.estimator_spec", "", "estimator_lib model_fn", "EstimatorSpec"),
    ("legacy.estimator_spec", "", "estimator_lib mode_keys model_fn", "ModeKeys"),
    (_PRIVATE, None, "gc", "Path _get_paths _largest_export_versions _negation"),
    (_PRIVATE, None, "gc", "_mod_export_version _one_of_every_n_export_versions _union"),
    ("legacy.exporters", "", "exporter", "BestExporter"),
    ("legacy.exporters", None, "exporter", "_SavedModelExporter"),
    ("legacy.exporters", "", "estimator_lib exporter", "Exporter FinalExporter LatestExporter"),
    ("legacy.receivers", "", _PARSING, "classifier_parse_example_spec"),
    ("legacy.receivers", "", _PARSING, "regressor_parse_example_spec"),
    ("legacy.receivers", None, "canned.parsing_utils", "classifier_parse_example_spec_v2"),
    ("legacy.receivers", None, "canned.parsing_utils", "regressor_parse_example_spec_v2"),
    ("runtime.saving.warm_starting", "", "estimator estimator_lib", "WarmStartSettings"),
    # TensorFlow still has these; the estimator namespace was only another name for them.
    (_TRAIN, "", "estimator estimator_lib", "VocabInfo"),
    (_TRAIN, "", "", "CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook"),
    (_TRAIN, "", "", "GlobalStepWaiterHook LoggingTensorHook NanLossDuringTrainingError"),
    (_TRAIN, "", "", "NanTensorHook ProfilerHook SecondOrStepTimer StepCounterHook"),
    (_TRAIN, "", "", "SessionRunArgs SessionRunContext SessionRunHook SessionRunValues"),
    (_TRAIN, "", "", "StopAtStepHook SummarySaverHook"),
    ("tensorflow:compat.v1.data.experimental", "experimental", "", "make_saveable_from_iterator"),
    (_STOPPING, "experimental", "early_stopping", "make_early_stopping_hook stop_if_higher_hook"),
    (_STOPPING, "experimental", "early_stopping", "stop_if_lower_hook stop_if_no_decrease_hook"),
    (_STOPPING, "experimental", "early_stopping", "stop_if_no_increase_hook"),
    ("hooks.in_memory_evaluator", "experimental", _HOOKS, "InMemoryEvaluatorHook"),
    ("hooks.input_pipeline", "experimental", "", "CheckpointInputPipelineHook"),
    (_STOPPING, "experimental", _HOOKS, "make_stop_at_checkpoint_step_hook"),
    ("legacy.receivers", "experimental", _EXPORT, "build_raw_supervised_input_receiver_fn"),
    ("legacy.receivers", "export", _EXPORT, "ServingInputReceiver TensorServingInputReceiver"),
    ("legacy.receivers", "export", _EXPORT, "build_parsing_serving_input_receiver_fn"),
    ("legacy.receivers", "export", _EXPORT, "build_raw_serving_input_receiver_fn"),
    ("legacy.receivers", None, _EXPORT, "SupervisedInputReceiver"),
    ("estimator.export", "export", _OUTPUT, "ClassificationOutput EvalOutput ExportOutput"),
    ("estimator.export", "export", _OUTPUT, "PredictOutput RegressionOutput"),
    ("runtime.estimator.tpu_estimator", "tpu", _TPU_ESTIMATOR, "TPUEstimator"),
    ("runtime.estimator.cores_and_hosts", None, _TPU_CONTEXT, "TPUContext"),
    ("legacy.estimator_spec", "tpu", _TPU_ESTIMATOR, "TPUEstimatorSpec"),
    ("legacy.run_config", "tpu", f"{_TPU_CONFIG} {_TPU_ESTIMATOR}", "InputPipelineConfig"),
    ("legacy.run_config", "tpu", _TPU_CONFIG, "RunConfig TPUConfig"),
    ("legacy.run_config", None, "tpu.util", "parse_iterations_per_loop"),
    (_PRIVATE, None, "tpu.util", "check_positive_integer"),
    (_PRIVATE, None, "model_fn", "AVERAGE_LOSS_METRIC_KEY LOSS_METRIC_KEY"),
    (_PRIVATE, None, _TPU_ESTIMATOR, "BatchConfig ExportSavedModelApiVersion"),
    (_PRIVATE, None, _TPU_ESTIMATOR, "model_fn_inference_on_tpu"),
    (_PRIVATE, None, _TPU_EMBEDDING, "INFERENCE TRAINING"),
    (_PRIVATE, None, _EXPORT, "build_supervised_input_receiver_fn_from_input_fn"),
    (_PRIVATE, None, "export.export_lib", "EXPORT_TAG_MAP"),
    (_PRIVATE, None, "util", "MultiHostDatasetInitializerHook fn_args"),
    (_PRIVATE, None, "util", "tf_keras tf_keras_v1 tf_keras_v2"),
    (_PRIVATE, None, "estimator_export", "estimator_export"),
    (_PRIVATE, None, COORDINATOR, "should_run_distribute_coordinator"),
    (_PRIVATE, None, "util", "parse_input_fn_result parse_iterator_result"),
    (_PRIVATE, None, "estimator", "_load_global_step_from_checkpoint_dir"),
    ("legacy.spec", "tpu.experimental", _OF_EMBEDDINGS, "EmbeddingConfigSpec"),
    # Stock's modules import these, and programs import them from stock's modules.
    ("legacy.parameters", None, _OF_EMBEDDINGS, "AdagradParameters AdamParameters"),
    ("legacy.parameters", None, _OF_EMBEDDINGS, "StochasticGradientDescentParameters"),
    ("legacy.table_config", None, _TPU_EMBEDDING, "FeatureConfig TableConfig"),
    *(("legacy.parameters", None, _TPU_EMBEDDING, kind) for kind in sorted(OPTIMIZERS)),
)

# Names that stand for different objects in `tf.compat.v1.estimator` and `tf.compat.v2.estimator`.
_IN_V2: Mapping[str, str] = {
    **{
        f"{family}{task}": f"{module}:{family}{task}V2"
        for family, module in _FAMILIES.items()
        for task in _TASKS
    },
    "Estimator": "runtime.estimator.base_estimator:EstimatorV2",
    "classifier_parse_example_spec": "legacy.receivers:classifier_parse_example_spec_v2",
    "regressor_parse_example_spec": "legacy.receivers:regressor_parse_example_spec_v2",
}

OTHERS_IN_V2 = frozenset(_IN_V2) - {"Estimator"}
"""Names, besides `Estimator`, that stand for a different object in `tf.compat.v2.estimator`."""

CANNED = frozenset(name for name, home in _IN_V2.items() if home.startswith("canned."))
"""The names of canned estimators."""

CANNED_EXPERIMENTAL = frozenset(("KMeans", "LinearSDCA", "RNNClassifier", "RNNEstimator"))
"""The names of canned estimators in `tf.estimator.experimental`."""


def _symbols() -> Iterator[Symbol]:
    for home, namespace, modules, names in _ROWS:
        for name in names.split():
            if home.startswith("tensorflow:"):
                path = f"{home}.{name}"
            else:
                path = f"estimator_bridge.{home}:{name}"
            in_v2 = f"estimator_bridge.{_IN_V2[name]}" if name in _IN_V2 else path
            yield Symbol(name, path, namespace, tuple(modules.split()), in_v2)


SYMBOLS = (
    Symbol("estimator", NAMESPACE, None, ("tensorflow_estimator", "api._v1")),
    Symbol("estimator", NAMESPACE_V2, None, ("api._v2",)),
    *_symbols(),
)

PARAMETERS = tuple(
    f"{name}Parameters" for name in ("Adagrad", "Adam", "Ftrl", "StochasticGradientDescent")
)
"""The parameter classes that stock exports under `tf.compat.v1.tpu.experimental`."""

_NAMESPACE_OF_VERSION = {"v1": NAMESPACE, "v2": NAMESPACE_V2}

PUBLIC_NAMESPACES: Mapping[str, str] = {
    "tensorflow": NAMESPACE_V2,
    "tensorflow.compat.v1": NAMESPACE,
    "tensorflow.compat.v2": NAMESPACE_V2,
}
"""The bridge's modules for `tf.estimator`, `tf.compat.v1.estimator`, `tf.compat.v2.estimator`."""

ESTIMATOR_PARENTS: Mapping[str, str] = {
    **PUBLIC_NAMESPACES,
    **{
        f"tensorflow.compat.{outer}.compat.{inner}": namespace
        for outer in _NAMESPACE_OF_VERSION
        for inner, namespace in _NAMESPACE_OF_VERSION.items()
    },
}
"""Maps each module that has an attribute `estimator` to the bridge's module that replaces it."""

SUBMODULES = ("experimental", "export", "inputs", "tpu", "tpu.experimental")
"""Modules of `tf.estimator` that programs may import by path."""

INPUT_HOOK = "CheckpointInputPipelineHook"
INPUT_HOOK_MODULES = tuple(f"{path}.data.experimental" for path in PUBLIC_NAMESPACES)
"""The modules that have `INPUT_HOOK` in old versions of TensorFlow."""

_STACKING = ("parallel_stack", "stack", "unstack")
_CONVERSION = "register_tensor_conversion_function"
MOVED = (
    ("tensorflow.python.framework.ops", _CONVERSION, f"tensorflow:{_CONVERSION}"),
    *(("tensorflow.python.ops.array_ops", each, f"tensorflow:{each}") for each in _STACKING),
    ("tensorflow.python.util.nest", "is_sequence", "tensorflow:nest.is_nested"),
    (
        "tensorflow.python.util.tf_export",
        "estimator_export",
        "estimator_bridge.legacy.private_names:estimator_export",
    ),
)
"""Names that TensorFlow moved: the old private module, the name, and the new module."""

MOVED_MODULES: Mapping[str, Names] = {
    "tensorflow.python.training.tracking": {"graph_view": "tensorflow.python.checkpoint.graph_view"}
}
"""Maps each package to the modules that TensorFlow moved out of it, with the new paths."""

RESOLVERS = tuple(f"{path}.distribute.cluster_resolver" for path in PUBLIC_NAMESPACES)
"""The modules that have `TPUClusterResolver`."""

RESOLVER = "TPUClusterResolver"
_STAND_INS = "estimator_bridge.run.cluster_resolver"
RESOLVER_STAND_IN = f"{_STAND_INS}:in_place_of"

STAND_INS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (RESOLVERS, RESOLVER, RESOLVER_STAND_IN),
    (
        (
            *("tensorflow.distribute", "tensorflow.compat.v2.distribute"),
            *(f"{path}.distribute.experimental" for path in PUBLIC_NAMESPACES),
        ),
        "TPUStrategy",
        f"{_STAND_INS}:strategy_in_place_of",
    ),
    *(
        (
            tuple(f"{path}.tpu.experimental" for path in PUBLIC_NAMESPACES),
            name,
            f"{_STAND_INS}:function_in_place_of",
        )
        for name in ("initialize_tpu_system", "shutdown_tpu_system")
    ),
)
"""Names that look for a TPU: the modules with the name, the name, and a maker of its stand-in."""

KEPT = (COORDINATOR, _TPU_EMBEDDING)
"""Modules of TensorFlow in which the bridge replaces only the names that it provides."""

_LIBRARY = "tensorflow_estimator.python.estimator"
_OLD_LIBRARY = "tensorflow.python.estimator"
LIBRARIES = (_LIBRARY, _OLD_LIBRARY)
"""The packages with stock's private modules: the present package, and TensorFlow's old one."""

_OLD_CANNED = ("head", "metric_keys", "optimizers", "parsing_utils", "prediction_keys")
# The modules that the estimator library already had when it was a part of TensorFlow.
_OLD_MODULES = {
    *(f"canned.{name}" for name in _OLD_CANNED),
    *_FAMILIES.values(),
    *("estimator", "estimator_lib", "export.export", "export.export_lib", "export.export_output"),
    *("exporter", "gc", "model_fn", "run_config", "training", "util"),
    *("inputs.inputs", "inputs.numpy_io", "inputs.pandas_io"),
}


def parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


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
"""Stock's private modules that programs import. Packages above these are made as needed."""

ROOTS = ("tensorflow_estimator", _OLD_LIBRARY)
"""Packages that are replaced as a whole: programs can import none of stock's modules in these."""

_LACKING = pathlib.Path(__file__).with_name("lacking_names.txt")
"""Stock's names that the bridge lacks. Each line has the path of a private module, and names."""


def lacking(module: str) -> frozenset[str]:
    names = (_lacking_names().get(module.removeprefix(f"{root}."), ()) for root in LIBRARIES)
    return frozenset(name for each in names for name in each)


@functools.cache
def _lacking_names() -> dict[str, list[str]]:
    lines = (line.split() for line in _LACKING.read_text(encoding="ascii").splitlines())
    return {module: names for module, *names in lines}


_BOOSTED = (
    "TensorFlow 2.15 has no boosted trees any more. Train them with TensorFlow Decision Forests"
)
_SDCA = (
    "the bridge does not have the parts of this optimizer. Give a linear estimator "
    "`optimizer=tf.estimator.experimental.LinearSDCA(...)`"
)
_TIMESERIES = (
    "the bridge has no models for time series. Write a model_fn for `Estimator`, or a Keras model"
)

UNSUPPORTED: Mapping[str, str] = {f"BoostedTrees{task}": _BOOSTED for task in _TASKS}
"""Maps names of `tf.estimator` that the bridge does not support to the reason."""

REASONS_OF_MODULES: Mapping[str, str] = {
    "canned.boosted_trees": _BOOSTED,
    "canned.linear_optimizer": _SDCA,
    "canned.timeseries": _TIMESERIES,
}
"""Maps a module's path below `tensorflow_estimator.python.estimator` to why it is missing."""

REASON_OF_OTHER_MODULES = (
    "the bridge replaces the whole package, and has only the modules that programs use. Import "
    "public names from tf.compat.v1.estimator"
)

REASONS_IN_MODULES: Mapping[str, str] = {
    "TPUEmbedding": "use tf2_engine.TPUEmbedding, or an `embedding_config_spec`",
}
"""What to use instead of a name in stock's private modules."""
