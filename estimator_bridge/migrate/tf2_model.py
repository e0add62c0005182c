"""What the second form of `migrate` adds to a program: its model, tables and checkpoints.

Nothing runs this file. Its text is written into the migrated program, whose owner can read and
change it there, and where its names have those of the estimator's parts that they stand for. What
trains the model is `tf2_program`, and what exports it `tf2_export`.
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


class ModeKeys:
    """What a model_fn is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ModelSpec(NamedTuple):
    """What a model_fn returns."""

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: Any = None
    export_outputs: Any = None


class RunConfig(NamedTuple):
    """Where and how a model is trained."""

    model_dir: Any = None
    tf_random_seed: int | None = None
    save_checkpoints_steps: int | None = None
    cluster: Any = None
    master: str | None = None


class WarmStartSettings(NamedTuple):
    """Which trainable variables and tables start with the values of another model."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: str = ".*"


def make_strategy(config: RunConfig) -> Any:
    """Returns a TPUStrategy where the program names a TPU, else the strategy that is in force."""
    resolver = config.cluster
    if resolver is None and config.master:
        resolver = tf2.distribute.cluster_resolver.TPUClusterResolver(config.master)
    if resolver is None:
        return tf2.distribute.get_strategy()
    tf2.config.experimental_connect_to_cluster(resolver)
    tf2.tpu.experimental.initialize_tpu_system(resolver)
    return tf2.distribute.TPUStrategy(resolver)


class TF1Scope(tf2.Module):
    """Where `get_variable` and `tf.layers` make variables once, and find them again."""

    @v1.keras.utils.track_tf1_style_variables
    def __call__(self, function: Callable[[], Any]) -> Any:
        """Calls a function that makes or finds them."""
        # On each call unnamed layers are numbered from the beginning, Keras's and others.
        v1.keras.backend.reset_uids()
        with v1.variable_scope(v1.get_variable_scope()), tpu_columns.reading_activations():
            return function()


class EmbeddingModel:
    """A model_fn, its variables and its tables under a strategy, with checkpoints.

    Variables are in the checkpoint under their legacy names, so that one of the legacy program,
    converted, is gone on from.

    Attributes:
        engine: the tables.
        step: the global step.
        variables: of the model and its optimizer, by legacy name; the first batch makes them.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Any = None,
        *,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        embedding_config_spec: Any,
        warm_start_from: Any = None,
    ) -> None:
        self.config = config or RunConfig()
        self.model_dir = model_dir or self.config.model_dir
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
            # FeatureConfigs, optimizers, and what makes ids of raw features.
            self.embedding = embedding_config_spec.to_tf2(step=self.step)
            # A TPU is configured for one size of batches; a host takes any.
            on_tpu = isinstance(self.strategy, tf2.distribute.TPUStrategy)
            self.engine = tf2_engine.TPUEmbedding(
                self.embedding.engine_spec, batch_size=train_batch_size if on_tpu else None
            )
        self._spec = embedding_config_spec
        self._scope = TF1Scope()
        self.variables: dict[str, Any] = {}
        self._counts: collections.Counter[str] = collections.Counter()
        self._saved = tf2.Module()
        self._steps: dict[str, Any] = {}
        self._checkpoint: Any = None
        self._manager: Any = None
        self._restored: Any = None
        self._warm_start = warm_start_from
        self._start: str | None = None
        latest = self.latest_checkpoint()
        if latest:
            self.restore(latest)

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint; None if there is none."""
        found: str | None = tf2.train.latest_checkpoint(self.model_dir)
        return found

    def restore(self, checkpoint: str) -> None:
        """Goes on from a checkpoint: the step at once, what the first batch makes with it."""
        self._check_form(checkpoint)
        tf2.train.Checkpoint(global_step=self.step).restore(checkpoint).expect_partial()
        self._start = checkpoint
        if self._checkpoint is not None:
            self._restored = self._checkpoint.restore(checkpoint)

    def _prepare(self) -> tuple[Any, set[str]]:
        """Returns what makes ids, weights and lengths, and the keys of weights.

        Ids are those of the input function, as they are on a TPU. What the columns make of raw
        values off a TPU is `self.embedding.preprocessing`.
        """
        known = self.embedding.preprocessing
        if known is None:
            raise ValueError(f"How ids are made is yours to say: {self.embedding.report}")
        rows = {table.name: table.vocabulary_size for table in self.embedding.engine_spec.tables}
        columns, weight_keys = {}, set()
        for feature in self.embedding.engine_spec.features:
            column: pre.Column = pre.Identity(feature.name, rows[feature.table])
            old = known.columns[feature.name]
            for part in (old, *old.parts):
                if isinstance(part, pre.Weighted):
                    column = pre.Weighted(column, part.weight_key)
                    weight_keys.add(part.weight_key)
            if old.is_sequence:
                column = pre.Sequence(column)
            columns[feature.name] = column
        return pre.Preprocessing(columns), weight_keys

    def _call_model(self, features: Any, labels: Any, mode: str) -> Any:
        """Calls the model_fn where it finds the step and the trainable variables as in a graph."""
        arguments = {
            "features": features,
            "labels": labels,
            "mode": mode,
            "params": {**self.params, "batch_size": self._batch_sizes[mode]},
            "config": self.config,
        }
        v1.get_collection_ref(v1.GraphKeys.GLOBAL_STEP)[:] = [self.step]
        trainable = v1.get_collection_ref(v1.GraphKeys.TRAINABLE_VARIABLES)
        before = list(trainable)
        trainable[:] = [variable for variable in self.variables.values() if variable.trainable]
        self._counts.clear()

        outside = tf2.get_current_name_scope()

        def make_once(make: Callable[..., Any], **settings: Any) -> Any:
            name = self._numbered(settings["name"], outside)
            if name not in self.variables:
                with v1.name_scope(None):
                    made = make(**{**settings, "name": name})
                self.variables[name] = made
                if made.trainable:
                    trainable.append(made)
            return self.variables[name]

        try:
            with tf2.variable_creator_scope(make_once):
                return self._scope(lambda: _called(self._model_fn, arguments))
        finally:
            trainable[:] = before

    def _numbered(self, name: str, outside: str = "") -> str:
        """Returns the name that a graph gives a variable.

        Layers of Keras say the last part, and the scopes in front of it are open. Those of the same
        name are numbered: Adam's powers, for instance.
        """
        scope = tf2.get_current_name_scope().removeprefix(outside).strip("/")
        base = f"{scope}/{name}".strip("/")
        number = self._counts[base]
        self._counts[base] += 1
        return f"{base}_{number}" if number else base

    def _restore_made(self) -> None:
        """Puts all variables there are into the checkpoint, and gives them their values in it."""
        new = {
            name: self.variables[name] for name in self.variables if name not in vars(self._saved)
        }
        if self._start and new:  # Before a variable gets what another one of its name had.
            self._check_restored(self._start)
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

    def _check_restored(self, checkpoint: str) -> None:
        """Raises ValueError with the names of variables that a checkpoint lacks."""
        found = dict(tf2.train.list_variables(checkpoint))
        lacking = [name for name in self.variables if _key("variables", name) not in found]
        if lacking:
            others = {_key("variables", name) for name in self.variables}
            spare = sorted(key for key in found if key.startswith("variables/"))
            raise ValueError(
                f"{checkpoint} lacks {', '.join(lacking)}. It has, and the model has not: "
                f"{', '.join(key for key in spare if key not in others) or 'nothing'}. What has "
                "another name gets it with `estimator-bridge convert --rename OLD=NEW`."
            )

    def _start_warm(self, settings: Any) -> None:
        """Gives variables and tables whose legacy name matches the values of another model."""
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

    def _check_form(self, checkpoint: str) -> None:
        """Raises ValueError with the command to type for a checkpoint of the legacy program."""
        shapes = dict(tf2.train.list_variables(checkpoint))
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
            return
        words = ["estimator-bridge", "convert", checkpoint, f"{self.model_dir}_tf2"]
        others = {name for name, shape in shapes.items() if len(shape) == 2}
        for table in self.embedding.engine_spec.tables:
            found = [name for name in shapes if _name_of_table(table).fullmatch(name)]
            words += [f"--table {table.name}={name}" for name in found]
            others.difference_update(found)
        # The model's own embeddings look like tables, and are variables like any others.
        alike = re.compile(r"^[^/]+$|(_embedding|embedding_weights)(_\d+)?$")
        words += [f"--allow {name}" for name in sorted(others) if alike.search(name)]
        if self._spec.partition_strategy != "div":
            words.append(f"--from_partition {self._spec.partition_strategy}")
        raise ValueError(
            f"{checkpoint} is of the legacy program. Convert it, and go on in what comes out: "
            + " ".join(words)
        )


_VALUE = ".ATTRIBUTES/VARIABLE_VALUE"


def _key(place: str, name: str) -> str:
    """Returns where a checkpoint has a variable or a table."""
    return f"{place}/{name.replace('.', '..').replace('/', '.S')}/{_VALUE}"


def _name_of_table(table: Any) -> re.Pattern[str]:
    """Returns what matches the names that the legacy program's variable of a table may have."""
    own = re.escape(table.name.removeprefix("tbl_"))
    return re.compile(rf"(.*/)?{own}(_embedding/embedding_weights)?")


def _called(function: Callable[..., Any], arguments: Any) -> Any:
    """Calls a function with a list of arguments, or with those of a dict that it takes."""
    if not isinstance(arguments, dict):
        return function(*arguments)
    taken = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in taken})
