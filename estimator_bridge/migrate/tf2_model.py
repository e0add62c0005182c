"""The text that the tf2 form of `migrate` adds to a program: model, tables and checkpoints.

Nothing runs this file. Its text is written into the migrated program, where its owner can read and
change it; classes have the names of the parts of the estimator that they replace. The training is
in `tf2_program`, the export in `tf2_export`.
"""

import collections
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf2

import tf2_engine
from tf2_engine import preprocessing as pre
from tf2_engine import tpu_columns

v1 = tf2.compat.v1

Nest = Any
"""Tensors in dicts, lists and tuples, or a tensor."""

Function = Callable[..., Any]


class ModeKeys:
    """The modes that a model_fn is called in."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ModelSpec(NamedTuple):
    """The result of a model_fn."""

    mode: str
    predictions: Nest = None
    loss: tf2.Tensor | None = None
    train_op: tf2.Operation | None = None
    eval_metrics: tuple[Function, Nest] | None = None
    export_outputs: dict[str, Any] | None = None


class RunConfig(NamedTuple):
    """Where and how a model is trained."""

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_checkpoints_steps: int | None = None
    cluster: tf2.distribute.cluster_resolver.ClusterResolver | None = None
    master: str | None = None


class WarmStartSettings(NamedTuple):
    """Which trainable variables and tables are initialized from another model's checkpoint."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: str = ".*"


def make_strategy(config: RunConfig) -> tf2.distribute.Strategy:
    """Returns a TPUStrategy if the config names a TPU, else the strategy in whose scope it is."""
    resolver = config.cluster
    if resolver is None and config.master:
        resolver = tf2.distribute.cluster_resolver.TPUClusterResolver(config.master)
    if resolver is None:
        return tf2.distribute.get_strategy()
    tf2.config.experimental_connect_to_cluster(resolver)
    tf2.tpu.experimental.initialize_tpu_system(resolver)
    return tf2.distribute.TPUStrategy(resolver)


class TF1Scope(tf2.Module):
    """A scope in which `get_variable` and `tf.layers` create each variable once, and reuse it."""

    @v1.keras.utils.track_tf1_style_variables
    def __call__(self, function: Function) -> Any:
        """Calls a function in the scope."""
        # Unnamed layers, Keras's and others, are numbered from the beginning in each call.
        v1.keras.backend.reset_uids()
        with v1.variable_scope(v1.get_variable_scope()), tpu_columns.reading_activations():
            return function()


class EmbeddingModel:
    """A model_fn with its variables and tables under a strategy, and checkpoints.

    Checkpoints have the variables under their legacy names, so that training can be resumed from
    a converted checkpoint of the legacy program.

    Attributes:
        engine: the tables.
        step: the global step.
        variables: those of the model and its optimizer, by legacy name; the first batch creates
            them.
    """

    def __init__(
        self,
        model_fn: Function,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        *,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        embedding_config_spec: Any,
        warm_start_from: str | WarmStartSettings | None = None,
    ) -> None:
        self.config = config or RunConfig()
        self.model_dir: Any = model_dir or self.config.model_dir
        self.params = dict(params or {})
        self._model_fn = model_fn
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        if self.config.tf_random_seed is not None:
            tf2.random.set_seed(self.config.tf_random_seed)
        self.strategy = make_strategy(self.config)
        with self.strategy.scope():
            self.step = tf2.Variable(0, trainable=False, dtype=tf2.int64, name="global_step")
            # FeatureConfigs, optimizers, and the transformation of raw features into ids.
            self.embedding = embedding_config_spec.to_tf2(step=self.step)
            # A TPU is configured for one size of batches; a host takes any.
            on_tpu = isinstance(self.strategy, tf2.distribute.TPUStrategy)
            self.engine = tf2_engine.TPUEmbedding(
                self.embedding.engine_spec, batch_size=train_batch_size if on_tpu else None
            )
        self._spec = embedding_config_spec
        self._scope = TF1Scope()
        self.variables: dict[str, tf2.Variable] = {}
        self._counts: collections.Counter[str] = collections.Counter()
        self._saved = tf2.Module()
        self._steps: dict[str, Any] = {}
        self._checkpoint: tf2.train.Checkpoint = None  # both made with the first variables
        self._manager: tf2.train.CheckpointManager = None
        self._restored: Any = None
        self._warm_start = warm_start_from
        self._start: str | None = None
        latest = self.latest_checkpoint()
        if latest:
            self.restore(latest)

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint; None if there is none."""
        return tf2.train.latest_checkpoint(self.model_dir)

    def restore(self, checkpoint: str) -> None:
        """Restores the step now, and the variables when the first batch creates them."""
        self._check_converted(checkpoint)
        tf2.train.Checkpoint(global_step=self.step).restore(checkpoint).expect_partial()
        self._start = checkpoint
        if self._checkpoint is not None:
            self._restored = self._checkpoint.restore(checkpoint)

    def _prepare(self) -> tuple[pre.Preprocessing, set[str]]:
        """Returns the preprocessing into ids, weights and lengths, and the keys of the weights.

        Ids are those of the input function, as they are on a TPU. `self.embedding.preprocessing`
        transforms raw values as columns do off a TPU.
        """
        preprocessing = self.embedding.preprocessing_of_ids
        parts = [part for each in preprocessing.columns.values() for part in (each, *each.parts)]
        return preprocessing, {each.weight_key for each in parts if isinstance(each, pre.Weighted)}

    def _call_model(self, features: Nest, labels: Nest, mode: str) -> ModelSpec:
        """Calls the model_fn with the step and the trainable variables in their collections."""
        params = {**self.params, "batch_size": self._batch_sizes[mode]}
        arguments = self._arguments(mode, params, features=features, labels=labels)
        v1.get_collection_ref(v1.GraphKeys.GLOBAL_STEP)[:] = [self.step]
        trainable = v1.get_collection_ref(v1.GraphKeys.TRAINABLE_VARIABLES)
        before = list(trainable)
        trainable[:] = [variable for variable in self.variables.values() if variable.trainable]
        self._counts.clear()

        outside = tf2.get_current_name_scope()

        def create_once(create: Function, **settings: Any) -> tf2.Variable:
            name = self._numbered(settings["name"], outside)
            if name not in self.variables:
                with v1.name_scope(None):
                    variable = create(**{**settings, "name": name})
                self.variables[name] = variable
                if variable.trainable:
                    trainable.append(variable)
            return self.variables[name]

        try:
            with tf2.variable_creator_scope(create_once):
                return self._scope(lambda: _call(self._model_fn, arguments))
        finally:
            trainable[:] = before

    def _arguments(self, mode: str, params: dict[str, Any], **data: Nest) -> dict[str, Any]:
        """Returns what a function of the program may take."""
        return {"mode": mode, "params": params, "config": self.config, **data}

    def _numbered(self, name: str, outside: str = "") -> str:
        """Returns the name that a variable has in a graph.

        Layers of Keras give the last part, and the open scopes the ones before it. Variables of the
        same name are numbered: Adam's powers, for instance.
        """
        scope = tf2.get_current_name_scope().removeprefix(outside).strip("/")
        base = f"{scope}/{name}".strip("/")
        number = self._counts[base]
        self._counts[base] += 1
        return f"{base}_{number}" if number else base

    def _restore_created(self) -> None:
        """Adds the variables that were created to the checkpoint, and restores them."""
        new = {
            name: self.variables[name] for name in self.variables if name not in vars(self._saved)
        }
        if self._start and new:  # Else a variable might get the value of another one of its name.
            self._check_complete(self._start)
        for name, variable in new.items():
            setattr(self._saved, name, variable)
        if self._checkpoint is None:
            self._checkpoint = tf2.train.Checkpoint(
                embedding=self.engine, global_step=self.step, variables=self._saved
            )
            self._manager = tf2.train.CheckpointManager(
                self._checkpoint, self.model_dir, max_to_keep=5, checkpoint_name="model.ckpt"
            )
            if self._start:
                self._restored = self._checkpoint.restore(self._start)
            elif self._warm_start is not None:
                self._start_warm(self._warm_start)
        if self._restored is not None:
            self._restored.assert_existing_objects_matched().expect_partial()

    def _check_complete(self, checkpoint: str) -> None:
        """Raises ValueError with the names of variables that a checkpoint lacks."""
        stored = dict(tf2.train.list_variables(checkpoint))
        keys = {name: _key("variables", name) for name in self.variables}
        lacking = [name for name, key in keys.items() if key not in stored]
        if lacking:
            spare = {key for key in stored if key.startswith("variables/")} - {*keys.values()}
            raise ValueError(
                f"{checkpoint} lacks {', '.join(lacking)}. The model lacks "
                f"{', '.join(sorted(spare)) or 'nothing'} of the checkpoint. Rename variables with "
                "`estimator-bridge convert --rename OLD=NEW`."
            )

    def _start_warm(self, settings: str | WarmStartSettings) -> None:
        """Initializes variables and tables whose legacy name matches from another model."""
        if isinstance(settings, str):
            settings = WarmStartSettings(settings)
        reader = tf2.train.load_checkpoint(settings.ckpt_to_initialize_from)
        for name, variable in self.variables.items():
            if variable.trainable and re.match(settings.vars_to_warm_start, name):
                variable.assign(reader.get_tensor(_key("variables", name)))
        for table, variable in self.engine.embedding_tables.items():
            name = str(getattr(table, "name", table))
            if re.match(settings.vars_to_warm_start, name.removeprefix("tbl_")):
                variable.assign(reader.get_tensor(_key("embedding", name)))
        self.engine.load()

    def _check_converted(self, checkpoint: str) -> None:
        """Raises ValueError with the command that converts a checkpoint of the legacy program."""
        shapes = dict(tf2.train.list_variables(checkpoint))
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
            return
        words = ["estimator-bridge", "convert", checkpoint, f"{self.model_dir}_tf2"]
        others = {name for name, shape in shapes.items() if len(shape) == 2}
        for table in self.embedding.engine_spec.tables:
            names = [name for name in shapes if _name_of_table(table).fullmatch(name)]
            words += [f"--table {table.name}={name}" for name in names]
            others.difference_update(names)
        # Embeddings of the model itself look like tables, and are ordinary variables.
        alike = re.compile(r"^[^/]+$|(_embedding|embedding_weights)(_\d+)?$")
        words += [f"--allow {name}" for name in sorted(others) if alike.search(name)]
        if self._spec.partition_strategy != "div":
            words.append(f"--from_partition {self._spec.partition_strategy}")
        raise ValueError(
            f"{checkpoint} is of the legacy program. Convert it, and resume from the result: "
            + " ".join(words)
        )


_VALUE = ".ATTRIBUTES/VARIABLE_VALUE"


def _key(place: str, name: str) -> str:
    """Returns the key of a variable or a table in a checkpoint."""
    return f"{place}/{name.replace('.', '..').replace('/', '.S')}/{_VALUE}"


def _name_of_table(table: Any) -> re.Pattern[str]:
    """Returns a pattern of the names that a table's variable may have in the legacy program."""
    name = re.escape(table.name.removeprefix("tbl_"))
    return re.compile(rf"(.*/)?{name}(_embedding/embedding_weights)?")


def _call(function: Function, arguments: Any) -> Any:
    """Calls a function with a list of arguments, or with those of a dict that it takes."""
    if not isinstance(arguments, dict):
        return function(*arguments)
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in parameters})
