"""What the second form of `migrate` adds to a program: a training in TensorFlow 2.

Nothing imports this file. Its text is written into the migrated program, whose owner can read and
change it there, and where its names have those of the estimator's parts that they stand for.
"""

import collections
import inspect
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf2

import tf2_engine
from estimator_bridge import declared as bridge
from tf2_engine import columns as tpu_columns
from tf2_engine import preprocessing as pre

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


class TrainSpec(NamedTuple):
    """What `train_and_evaluate` trains on."""

    input_fn: Any
    max_steps: int | None = None


class EvalSpec(NamedTuple):
    """What `train_and_evaluate` evaluates on."""

    input_fn: Any
    steps: int | None = 100


class ServingInputReceiver(NamedTuple):
    """What an exported model is fed, and the features made of that; single tensors get a name."""

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None


class TensorServingInputReceiver(ServingInputReceiver):
    """One whose features are a single tensor, for a model_fn that takes no dict."""


def build_parsing_serving_input_receiver_fn(
    feature_spec: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function whose receiver is fed serialized tf.train.Examples, as "examples"."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = v1.placeholder(tf2.string, [default_batch_size], name="input_example_tensor")
        features = v1.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function whose receiver is fed each feature, of the type and shape of a tensor."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {
            key: v1.placeholder(like.dtype, [default_batch_size, *like.shape[1:]])
            for key, like in features.items()
        }
        return ServingInputReceiver(fed, fed)

    return serving_input_receiver_fn


class PredictOutput(NamedTuple):
    """An output of an exported model: tensors by name, or one."""

    outputs: Any

    def signature(self, received: Any) -> Any:
        """Returns the signature of a model that is fed these tensors."""
        return v1.saved_model.predict_signature_def(received, _named(self.outputs, "output"))


class ClassificationOutput(NamedTuple):
    """Scores, classes or both, of serialized tf.train.Examples."""

    scores: Any = None
    classes: Any = None

    def signature(self, received: Any) -> Any:
        """Returns the signature of a model that is fed these tensors."""
        examples = _examples(received)
        return v1.saved_model.classification_signature_def(examples, self.classes, self.scores)


class RegressionOutput(NamedTuple):
    """A number for each of serialized tf.train.Examples."""

    value: Any

    def signature(self, received: Any) -> Any:
        """Returns the signature of a model that is fed these tensors."""
        return v1.saved_model.regression_signature_def(_examples(received), self.value)


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


_minimized: list[Any] = []


def minimize(
    optimizer: Any, loss: Any, global_step: Any = None, var_list: Any = None, **settings: Any
) -> Any:
    """Trains variables of the model; the gradient of the same loss trains the tables.

    The strategy adds the gradients of all replicas, so each has its share of the loss. The steps
    are counted by `Trainer.train`.
    """
    _minimized.append(loss)
    share = loss / tf2.distribute.get_strategy().num_replicas_in_sync
    return optimizer.minimize(share, var_list=var_list, **settings)


class TF1Scope(tf2.Module):
    """Where `get_variable` and `tf.layers` make variables once, and find them again."""

    @v1.keras.utils.track_tf1_style_variables
    def __call__(self, function: Callable[[], Any]) -> Any:
        """Calls a function that makes or finds them."""
        # On each call unnamed layers are numbered from the beginning, Keras's and others.
        v1.keras.backend.reset_uids()
        with v1.variable_scope(v1.get_variable_scope()), tpu_columns.reading_activations():
            return function()


class Metrics:
    """Metrics of `tf.compat.v1.metrics`, updated on the host after each batch."""

    def __init__(self, metric_fn: Callable[..., Any], values: Any) -> None:
        graph = tf2.Graph()
        with graph.as_default():
            self._feeds = tf2.nest.map_structure(
                lambda value: v1.placeholder(value.dtype, [None, *value.shape[1:]]), values
            )
            made = _called(metric_fn, self._feeds)
            self._values = {name: value for name, (value, _) in made.items()}
            self._updates = [update for _, update in made.values()]
            self._session = v1.Session(graph=graph)
            self._session.run([v1.local_variables_initializer(), v1.tables_initializer()])

    def update(self, values: Any) -> None:
        """Adds a batch."""
        feeds = zip(tf2.nest.flatten(self._feeds), tf2.nest.flatten(values), strict=True)
        self._session.run(self._updates, dict(feeds))

    def results(self) -> dict[str, Any]:
        """Returns the values over all batches."""
        found = self._session.run(self._values)
        self._session.close()
        return dict(found)


@bridge.verifiable
class Trainer:
    """A model_fn and its tables under a strategy: the loop, evaluation and checkpoints.

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
        self._metric_fn: Any = None
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

    def eval_dir(self) -> str:
        """Returns where evaluations may leave something."""
        return os.path.join(self.model_dir, "eval")

    def train(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        max_steps: int | None = None,
        after_save: Callable[[], Any] | None = None,
        callbacks: Sequence[Any] = (),
    ) -> "Trainer":
        """Trains up to a step, for a number of steps, or to the end of the input.

        Of `callbacks`, as Keras has them, `on_train_begin()` is called when all variables have
        their values, and `on_train_batch_end(step)` after each step.
        """
        if steps is not None:
            max_steps = int(self.step.numpy()) + steps
        every, batches = self.config.save_checkpoints_steps, None
        while max_steps is None or int(self.step.numpy()) < max_steps:
            if batches is None:
                batches = iter(self._batches(input_fn, ModeKeys.TRAIN))
                make_step = self._step_of(ModeKeys.TRAIN, batches)
                for callback in callbacks:
                    callback.on_train_begin()
            try:
                make_step(batches)
            except tf2.errors.OutOfRangeError:
                break
            self.step.assign_add(1)
            for callback in callbacks:
                callback.on_train_batch_end(int(self.step.numpy()))
            if every and int(self.step.numpy()) % every == 0:
                self._manager.save(self.step)
                if after_save is not None:
                    after_save()
        if batches is not None:
            self._manager.save(self.step)
        return self

    def evaluate(self, input_fn: Callable[..., Any], steps: int | None = None) -> dict[str, Any]:
        """Returns the metrics over so many batches, the mean loss and the step."""
        losses, metrics = [], None
        for loss, values in self._results(input_fn, ModeKeys.EVAL, steps):
            losses.append(loss)
            if self._metric_fn is not None:
                metrics = metrics or Metrics(self._metric_fn, values)
                metrics.update(values)
        found = metrics.results() if metrics is not None else {}
        found["loss"] = sum(losses) / len(losses)
        found["global_step"] = int(self.step.numpy())
        return found

    def predict(self, input_fn: Callable[..., Any]) -> Iterator[dict[str, Any]]:
        """Yields the predictions of each sample."""
        for batch in self._results(input_fn, ModeKeys.PREDICT, None):
            for number in range(len(next(iter(batch.values())))):
                yield {name: values[number] for name, values in batch.items()}

    def export_saved_model(
        self, export_dir_base: Any, serving_input_receiver_fn: Callable[[], Any]
    ) -> bytes:
        """Writes a SavedModel into a new directory named by the time; returns its path.

        Its values are those of the latest checkpoint, and it needs TensorFlow alone: the model_fn
        makes a graph of its own, in which columns look tables up as they do off a TPU.
        """
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"There is no checkpoint in {self.model_dir} to export; train first.")
        self._check_form(checkpoint)
        final, parts = _new_directories(os.fsdecode(export_dir_base))
        try:
            with tf2.Graph().as_default(), v1.Session() as session:
                variables, signatures = self._export_graph(serving_input_receiver_fn)
                self._load(session, checkpoint, variables)
                builder = v1.saved_model.Builder(parts)
                builder.add_meta_graph_and_variables(
                    session,
                    ["serve"],
                    signatures,
                    assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
                    main_op=v1.group(v1.local_variables_initializer(), v1.tables_initializer()),
                    saver=v1.train.Saver(variables, sharded=True),
                    strip_default_attrs=True,
                )
                builder.save()
            tf2.io.gfile.rename(parts, final)  # Whoever watches finds all of it, or nothing.
        finally:
            if tf2.io.gfile.exists(parts):
                tf2.io.gfile.rmtree(parts)
        return os.fsencode(final)

    def _export_graph(self, receiver_fn: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
        """Makes the graph that is exported; returns its variables and its signatures by name."""
        made: dict[str, Any] = {}
        self._counts.clear()

        def note(make: Callable[..., Any], **settings: Any) -> Any:
            name = self._numbered(settings["name"])
            made[name] = variable = make(**settings)
            return variable

        with v1.variable_creator_scope(note):
            v1.train.create_global_step()
            receiver = receiver_fn()
            if not hasattr(receiver, "features") or not hasattr(receiver, "receiver_tensors"):
                raise ValueError(
                    "serving_input_receiver_fn must return a ServingInputReceiver, of features "
                    f"and receiver_tensors; it returned {receiver!r}."
                )
            arguments = {
                "features": self._features_to_export(receiver),
                "labels": None,
                "mode": ModeKeys.PREDICT,
                "params": dict(self.params),
                "config": self.config,
            }
            spec = _called(self._model_fn, arguments)
        kept = {id(variable) for variable in v1.global_variables()}  # Local ones start anew.
        variables = {name: variable for name, variable in made.items() if id(variable) in kept}
        return variables, _signatures(spec, receiver)

    def _features_to_export(self, receiver: Any) -> Any:
        """Returns the features of a receiver as the model_fn takes them off a TPU."""
        if isinstance(receiver, TensorServingInputReceiver):
            return receiver.features
        features = dict(_named(receiver.features, "feature"))
        spec = self.embedding.engine_spec
        if self._spec.feature_columns:
            # Columns look up what there is; the engine cuts and pads sequences.
            for feature in spec.features:
                if feature.max_sequence_length and feature.name in features:
                    ids, length = features[feature.name], feature.max_sequence_length
                    features[feature.name] = _cut(ids, length)
            return features
        prepare, weight_keys = self._prepare()
        columns = prepare.columns
        for key, config in self._spec.feature_to_config_dict.items():
            if not isinstance(features.get(key), tf2.Tensor):
                continue
            # What the legacy program makes of dense ids: without weights, and in rows without 0.
            table = self._spec.table_to_config_dict[config.table_id]
            columns[key] = pre.Identity(key, table.vocabulary_size)
            if features[key].shape.rank == 2 and table.combiner is not None:
                features[key] = tf2.sparse.from_dense(features[key])
        ids, weights, lengths = pre.Preprocessing(columns)(features)
        tables = {
            table.name: v1.get_variable(table.name, [table.vocabulary_size, table.dim])
            for table in spec.tables
        }
        activations = tf2_engine.cpu_embedding_lookup(ids, weights, tables, spec)
        rest = {key: features[key] for key in features if key not in {*weight_keys, *columns}}
        return {**rest, **tpu_columns.as_features(activations, lengths)}

    def _load(self, session: Any, checkpoint: str, variables: dict[str, Any]) -> None:
        """Gives the variables of a graph their values in a checkpoint."""
        reader = tf2.train.load_checkpoint(checkpoint)
        for name, variable in variables.items():
            keys = [f"global_step/{_VALUE}"] if name == "global_step" else []
            keys += [_key("variables", name)]
            keys += [
                _key("embedding", table.name)
                for table in self.embedding.engine_spec.tables
                if _name_of_table(table).fullmatch(name)
            ]
            found = [key for key in keys if reader.has_tensor(key)]
            if not found:
                raise ValueError(
                    f"{checkpoint} lacks {name!r}, a variable that the model_fn makes for "
                    "predictions; so the model cannot be exported."
                )
            value = reader.get_tensor(found[0])
            session.run(variable.initializer, {variable.initial_value: value})

    def _results(self, input_fn: Callable[..., Any], mode: str, steps: int | None) -> Iterator[Any]:
        """Yields what each batch comes to, as arrays."""
        batches, done = iter(self._batches(input_fn, mode)), 0
        make_step = self._step_of(mode, batches)
        while steps is None or done < steps:
            try:
                replicas = self.strategy.experimental_local_results(make_step(batches))
            except tf2.errors.OutOfRangeError:
                return
            yield tf2.nest.map_structure(_together, *replicas)
            done += 1

    def _batches(self, input_fn: Callable[..., Any], mode: str) -> Any:
        """Returns ids, weights and lengths, the rest of the features and labels of each batch."""
        prepare, weight_keys = self._prepare()

        def prepared(features: Any, labels: Any = None) -> Any:
            dense = [key for key in prepare.columns if isinstance(features[key], tf2.Tensor)]
            if dense:
                raise ValueError(
                    f"The ids of {dense} are dense, of which the legacy program left out 0 on a "
                    "TPU. Make them SparseTensors in the input function, with 0 or without."
                )
            batch = prepare(features)._asdict()
            # A strategy's input has no place for what is None.
            weights = batch["weights"] or {}
            batch["weights"] = {key: each for key, each in weights.items() if each is not None}
            gone = {*weight_keys, *prepare.columns}
            batch["rest"] = {key: value for key, value in features.items() if key not in gone}
            return {**batch, "labels": labels} if labels is not None else batch

        params = {**self.params, "batch_size": self._batch_sizes[mode]}
        dataset = _called(input_fn, {"params": params, "mode": mode, "config": self.config})
        dataset = dataset.map(prepared)
        # Ids of tables are sparse, and those are not copied to a TPU.
        option = tf2.distribute.InputOptions(experimental_fetch_to_device=False)
        return self.strategy.experimental_distribute_dataset(dataset, option)

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

    def _step_of(self, mode: str, batches: Any) -> Any:
        """Returns a function of an iterator; the model's variables are made and restored."""
        if mode not in self._steps:
            self._steps[mode] = tf2.function(
                lambda iterator: self.strategy.run(
                    self._step_on_replica, args=(mode, next(iterator))
                ),
                autograph=False,
            )
        self._steps[mode].get_concrete_function(batches)
        for name, variable in self.variables.items():
            if name not in vars(self._saved):
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
            self._check_restored(str(self._start))
            self._restored.assert_existing_objects_matched().expect_partial()
        return self._steps[mode]

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

    def _step_on_replica(self, mode: str, batch: Any) -> Any:
        weights = {key: batch["weights"].get(key) for key in batch["ids"]}
        activations, update = self.engine.differentiable_lookup(
            batch["ids"], weights, training=mode == ModeKeys.TRAIN, name=mode
        )
        features = {**batch["rest"], **tpu_columns.as_features(activations, batch["lengths"])}
        spec = self._call_model(features, batch.get("labels"), mode)
        if mode == ModeKeys.PREDICT:
            predictions = spec.predictions
            return predictions if isinstance(predictions, dict) else {"output": predictions}
        if mode == ModeKeys.EVAL:
            self._metric_fn, values = spec.eval_metrics or (None, [])
            return spec.loss, values
        if len(set(map(id, _minimized))) != 1:
            raise ValueError("Of several losses, or none, it cannot be told which trains tables.")
        share = _minimized[0] / self.strategy.num_replicas_in_sync
        gradients = tf2.gradients(
            share, list(activations.values()), unconnected_gradients=tf2.UnconnectedGradients.ZERO
        )
        if self.embedding.gradient_multiplier is not None:
            factor = self.embedding.gradient_multiplier()
            gradients = [gradient * factor for gradient in gradients]
        update(dict(zip(activations, gradients, strict=True)))
        return spec.loss

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
        _minimized.clear()

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


def _signatures(spec: Any, receiver: Any) -> dict[str, Any]:
    """Returns the signatures of an exported model; outputs that do not fit the input have none."""
    default = "serving_default"
    outputs = spec.export_outputs or {default: PredictOutput(spec.predictions)}
    if len(outputs) == 1:
        outputs = {default: next(iter(outputs.values())), **outputs}
    elif default not in outputs:
        raise ValueError(f"Of the export_outputs {list(outputs)} one must be {default!r}.")
    alternatives = getattr(receiver, "receiver_tensors_alternatives", None) or {}
    found = {}
    for prefix, fed in [("", receiver.receiver_tensors), *alternatives.items()]:
        for name, output in outputs.items():
            try:
                signature = output.signature(_named(fed, "input"))
                found[f"{prefix}:{name}" if prefix else name] = signature
            except ValueError as error:
                v1.logging.warning("%s has no signature: %s", name, error)
    return found


def _named(tensors: Any, name: str) -> dict[str, Any]:
    """Returns tensors by name."""
    return tensors if isinstance(tensors, dict) else {name: tensors}


def _examples(received: dict[str, Any]) -> Any:
    """Returns the one tensor of strings that an exported model is fed."""
    if [tensor.dtype for tensor in received.values()] != [tf2.string]:
        raise ValueError(f"it takes serialized tf.train.Examples, not {sorted(received)}")
    return next(iter(received.values()))


def _cut(ids: Any, length: int) -> Any:
    """Returns the ids of sequences, cut and padded to a length."""
    if isinstance(ids, tf2.RaggedTensor):
        ids = ids.to_sparse()
    if not isinstance(ids, tf2.SparseTensor):
        return ids
    kept = tf2.sparse.retain(ids, ids.indices[:, 1] < length)
    shape = tf2.concat([ids.dense_shape[:1], [length], ids.dense_shape[2:]], 0)
    return tf2.SparseTensor(kept.indices, kept.values, shape)


def _new_directories(base: str) -> tuple[str, str]:
    """Returns a directory named by the time, and one to write it in; neither is there yet."""
    while True:
        name = str(int(time.time()))
        # Servers leave directories alone whose name is no number.
        paths = os.path.join(base, name), os.path.join(base, f"temp-{name}")
        if not any(map(tf2.io.gfile.exists, paths)):
            return paths
        time.sleep(1)


def train_and_evaluate(
    trainer: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[Any, list[Any]]:
    """Trains, and evaluates each checkpoint; returns the last metrics."""
    found: list[Any] = []
    trainer.train(
        train_spec.input_fn,
        max_steps=train_spec.max_steps,
        after_save=lambda: found.append(trainer.evaluate(eval_spec.input_fn, eval_spec.steps)),
    )
    if not found or found[-1]["global_step"] != int(trainer.step.numpy()):
        found.append(trainer.evaluate(eval_spec.input_fn, eval_spec.steps))
    return found[-1], []


def _called(function: Callable[..., Any], arguments: Any) -> Any:
    """Calls a function with a list of arguments, or with those of a dict that it takes."""
    if not isinstance(arguments, dict):
        return function(*arguments)
    taken = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in taken})


def _together(*parts: Any) -> Any:
    """Returns what the replicas found as one array; the mean of scalars."""
    arrays = [part.numpy() for part in parts]
    if not arrays[0].shape:
        return sum(arrays) / len(arrays)
    return arrays[0] if len(arrays) == 1 else tf2.concat(arrays, 0).numpy()
