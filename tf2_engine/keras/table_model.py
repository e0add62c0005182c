"""`TableModel`: a Keras model with tables. It trains until a global step and saves checkpoints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import declared, errors, forks, output_folders, tf_compat
from tf2_engine.backends.ps import is_server_strategy
from tf2_engine.backends.tpu import topology
from tf2_engine.export_folders import new_directories
from tf2_engine.keras.layer_bases.column_layers import ColumnEmbeddingLayer, NoTables, Observer
from tf2_engine.keras.model_checkpoints import (
    SLOT_NAMES,
    ModelCheckpoints,
    WarmStart,
    name_in_checkpoints,
    warm_start,
)
from tf2_engine.keras.rule_optimizer import value_of
from tf2_engine.keras.saved_model import (
    Outputs,
    Specs,
    exportable,
    outputs_of,
    request_of,
    resources_of,
    serving_in,
)
from tf2_engine.summaries.events import EventFile
from tf2_engine.types import Array, Dataset, Function, Nest, Object, Tensor

_FOR_EVER = 2**31 - 1


@dataclasses.dataclass(eq=False)
class _State:
    """The state of a model, kept in a separate object so that Keras does not track it.

    Attributes:
        of_tape: the last tape that computed gradients, its loss, and a dict from the `id` of each
            variable to the variable's gradient.
        trained_by: maps the `id` of each optimizer to the variables that it was given.
        restored_for: why the checkpoint was restored, "predictions" or "training"; "" before the
            first restore.
        evaluated: the metrics of the latest evaluation by `fit`, with the global step.
    """

    names: dict[str, str]
    slot_names: str = SLOT_NAMES
    without_tables: NoTables | None = None
    checkpoints: ModelCheckpoints | None = None
    of_tape: tuple[Object, Object, dict[int, Object]] = (None, None, {})
    trained_by: dict[int, list[Object]] = dataclasses.field(default_factory=dict)
    restored_for: str = ""
    observer: Observer | None = None
    evaluated: dict[str, Object] | None = None
    events: EventFile | None = None
    warm_start: WarmStart | None = None


class TableModelBase:
    """A `keras.Model`, usually with tables, that trains until a global step and saves checkpoints.

        class Model(TableModel):
            def __init__(self, embedding):
                super().__init__(embedding)
                self.dense = tf.keras.layers.Dense(1, name="dense")

            def call(self, features, training=False):
                return self.dense(self.embedding(features)["user"])

            def train_step(self, batch):
                features, labels = batch
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(labels - self(features, training=True)))
                self.minimize(loss, tape)
                return {"loss": loss}

    Checkpoints have the format of `tf2_engine.training` and `estimator-bridge convert`: the name of
    a variable consists of the names of its layers, joined by "/". As in the legacy program, Adam's
    betas are rounded to float32.

    Args:
        embedding: a `ColumnEmbedding`, which becomes an attribute; None for a model without tables.
        names: maps the names of layers to their names in checkpoints, where these differ, for
            instance {"wide_dense": "wide/dense"}.
        slot_names: the pattern of slot names in checkpoints, by default as in `tf.compat.v1.train`.
            Canned estimators use "{variable}/t_0/{slot}" or "{variable}/part_0/{slot}". Canned
            estimators of TensorFlow 2 use "training/{optimizer}/{variable}/{keras_slot}", and also
            save settings of optimizers.

    Raises:
        InvalidSpec: the model is created under a strategy for several machines.
    """

    embedding: Object
    optimizer: Object
    layers: Sequence[Object]
    distribute_strategy: Object
    __call__: Function
    predict_step: Function
    train_step: Function

    def __init__(
        self,
        embedding: ColumnEmbeddingLayer | None = None,
        names: dict[str, str] | None = None,
        slot_names: str = SLOT_NAMES,
    ) -> None:
        declared.used(TableModelBase)
        _check_is_on_one_machine(type(self).__name__)
        super().__init__()
        self.embedding = embedding
        self._state = _State(dict(names or {}), slot_names)
        if embedding is None:
            self._state.without_tables = NoTables()

    @property
    def with_tables(self) -> Object:
        """The embedding or, in a model without tables, an object that only counts the steps."""
        return self._state.without_tables or self.embedding

    @property
    def global_step(self) -> int:
        """The number of steps for which the model has been trained."""
        return int(self.with_tables.step.numpy())

    def keep_checkpoints(
        self, directory: str | None, save_steps: int | None = None, max_to_keep: int = 5
    ) -> None:
        """Makes `fit` save checkpoints. All methods then start from the latest checkpoint.

        Args:
            directory: the folder, or None for no checkpoints.
            save_steps: the number of steps between checkpoints. `fit` also saves one at the end.
        """
        if directory is not None:
            self._state.checkpoints = ModelCheckpoints(
                self, directory, self._state.names, save_steps, max_to_keep, self._state.slot_names
            )

    def warm_start_from(
        self,
        checkpoint: str | WarmStart | None,
        names: str = ".*",
        old_names: Mapping[str, str] | None = None,
    ) -> None:
        """Makes trainable variables and tables start with the values of another model.

        Slots get their usual initial values. If this model has a checkpoint of its own, it starts
        from that checkpoint instead.

        Args:
            checkpoint: a checkpoint that an estimator or `convert` wrote, or its directory; or a
                `WarmStart`, which also contains the other arguments. None means no warm start.
            names: a regular expression that matches the start of a name. The prefix "tbl_" of table
                names is ignored.
            old_names: maps names in this model to other names in the checkpoint.
        """
        if checkpoint is not None:
            self._state.warm_start = warm_start(checkpoint, names, old_names)

    @property
    def checkpoints(self) -> ModelCheckpoints | None:
        return self._state.checkpoints

    def observe(self, observer: Observer) -> None:
        self._state.observer = self.with_tables.observer = observer

    def latest_checkpoint(self) -> str | None:
        return None if self._state.checkpoints is None else self._state.checkpoints.latest()

    def minimize(
        self,
        loss: Tensor,
        tape: Object,
        variables: Sequence[Object] | None = None,
        optimizer: Object = None,
    ) -> None:
        """Updates variables with the gradients of the loss, averaged over replicas.

        Args:
            variables: by default all `dense_variables`.
            optimizer: by default the optimizer that `compile` got.

        Raises:
            InvalidInput: the tape has already computed the gradients of another loss.
        """
        gradients, chosen = self.gradients(loss, tape, variables)
        self.apply_gradients(zip(gradients, chosen, strict=True), optimizer)

    def gradients(
        self, loss: Tensor, tape: Object, variables: Sequence[Object] | None = None
    ) -> tuple[list[Object], list[Object]]:
        """Returns the gradients of the loss, averaged over replicas, and the variables."""
        gradients = self._gradients(loss, tape)
        chosen = list(self.dense_variables if variables is None else variables)
        return [gradients[id(each)] for each in chosen], chosen

    def apply_gradients(self, pairs: Object, optimizer: Object = None) -> None:
        """Applies (gradient, variable) pairs, by default with the optimizer that `compile` got."""
        pairs, optimizer = list(pairs), optimizer or self.optimizer
        self._state.trained_by[id(optimizer)] = [each for _, each in pairs]
        if self._state.observer is not None:
            see = self._state.observer.gradient
            pairs = [(see(self.name_of(each), gradient), each) for gradient, each in pairs]
        optimizer.apply_gradients(pairs)

    def variables_below(self, scope: str) -> list[Object]:
        return [each for each in self.dense_variables if self.name_of(each).startswith(scope)]

    def trained_by(self, optimizer: Object) -> list[Object]:
        return self._state.trained_by.get(id(optimizer), self.dense_variables)

    def name_of(self, variable: Object) -> str:
        return name_in_checkpoints(variable, self._state.names)

    def _gradients(self, loss: Tensor, tape: Object) -> dict[int, Object]:
        """Updates the tables, counts the step, and maps the `id` of each variable to its gradient.

        Later calls for the same tape return the same dict, so the tables are updated only once.
        """
        used_tape, used_loss, gradients = self._state.of_tape
        if used_tape is tape:
            if used_loss is not loss:
                raise errors.InvalidInput(
                    f"The tape has already computed the gradients of {used_loss!r}, so it cannot "
                    f"compute those of {loss!r}: only one loss can update the tables in a step. "
                    "Add the losses, and pass their sum in every call."
                )
            return gradients
        variables = list(self.trainable_variables)  # type: ignore[attr-defined]
        scale = tf.constant(1.0 / self.distribute_strategy.num_replicas_in_sync, loss.dtype)
        computed = tape.gradient(loss, variables, output_gradients=tf.fill(tf.shape(loss), scale))
        dense = {id(each) for each in self.dense_variables}
        pairs = list(zip(computed, variables, strict=True))
        # Computing the gradient of the tables' variable updates the tables. It must not be pruned.
        updates = [one for one, each in pairs if id(each) not in dense and one is not None]
        with tf.control_dependencies(updates):
            self.with_tables.step.assign_add(1)
            gradients = {
                id(each): None if one is None else _identity(one)
                for one, each in pairs
                if id(each) in dense
            }
        self._state.of_tape = tape, loss, gradients
        return gradients

    def fit(
        self,
        x: Dataset,
        *,
        max_steps: int | None = None,
        steps: int | None = None,
        save_every: int | None = None,
        callbacks: Sequence[Object] = (),
        **options: Object,
    ) -> Object:
        """Trains until a global step, for a number of steps, or until the end of the dataset.

        After `keep_checkpoints`, training starts from the latest checkpoint and saves further ones.
        With `validation_data`, each new checkpoint is evaluated, and the metrics are written to the
        folder `eval` below the checkpoint folder.

        Args:
            x: a dataset of (features, labels).
            max_steps, steps: the global step at which to stop, or the number of steps; not both.
            save_every: the number of steps between checkpoints; by default that of
                `keep_checkpoints`.
            options: as in `keras.Model.fit`.

        Raises:
            CannotWrite: the checkpoint folder is a file or read-only.
        """
        forks.check()
        checkpoints = self._state.checkpoints
        if checkpoints is not None:
            output_folders.create(checkpoints.directory)
        self.restore(x, training=True)
        if max_steps is not None:
            steps = max_steps - self.global_step
        elif steps is not None:
            max_steps = self.global_step + steps
        if steps is not None and steps <= 0:
            return None
        period, epochs = steps, 1
        if steps is None and x.cardinality() == tf.data.INFINITE_CARDINALITY:
            period = _FOR_EVER  # Keras 2 needs a number; a callback ends training.
        save_every = save_every or (checkpoints.save_steps if checkpoints else None)
        if "validation_data" in options and steps and checkpoints and save_every:
            period = min(save_every, steps)
            epochs = -(-steps // period)
            data = _first(options["validation_data"], options, "validation_steps")
            options["validation_data"] = self.prepared(data)
        saving = [] if checkpoints is None else [checkpoints.callback(max_steps, save_every)]
        # Without shuffle=False, Keras warns that it does not shuffle datasets.
        options = {"verbose": 2, "shuffle": False, **options}
        return super().fit(  # type: ignore[misc]
            self.prepared(x),
            epochs=epochs,
            steps_per_epoch=period,
            callbacks=[*callbacks, *saving],  # A StopIfNaN runs before a checkpoint is saved.
            **options,
        )

    def evaluate(self, x: Object = None, *args: Object, **options: Object) -> Object:
        """Evaluates the latest checkpoint, and returns a dict of metrics and the `global_step`.

        `x` is a dataset of (features, labels). Other arguments are as in `keras.Model.evaluate`.
        """
        if "return_dict" in options:  # Called by `fit`.
            results = super().evaluate(x, *args, **options)  # type: ignore[misc]
            self._state.evaluated = {**results, "global_step": self.global_step}
            self._write_evaluation(results)
            return results
        self.restore(x)
        options = {"verbose": 2, **options, "return_dict": True}
        x = _first(x, options, "steps")
        results = super().evaluate(self.prepared(x), *args, **options)  # type: ignore[misc]
        return {**results, "global_step": self.global_step}

    @property
    def latest_evaluation(self) -> dict[str, Object] | None:
        """The result of the latest evaluation by `fit`, or None."""
        return self._state.evaluated

    @property
    def eval_dir(self) -> str | None:
        checkpoints = self._state.checkpoints
        return None if checkpoints is None else os.path.join(checkpoints.directory, "eval")

    def _write_evaluation(self, results: Mapping[str, Object]) -> None:
        if self.eval_dir is None:
            return
        if self._state.events is None:
            self._state.events = EventFile(self.eval_dir)
        self._state.events.scalars(self.global_step, results)
        self._state.events.flush()

    def predictions(self, x: Dataset) -> Iterator[dict[str, Array]]:
        """Yields the result of `predict_step` for each sample, with the latest checkpoint's values.

        `x` is a dataset of features, or of (features, labels). Labels are ignored.
        """
        self.restore(x)
        strategy = self.distribute_strategy
        step = tf.function(lambda batch: strategy.run(self.predict_step, args=(batch,)))
        for batch in self.prepared(x.map(lambda *parts: parts[0])):
            replicas = strategy.experimental_local_results(step(batch))
            for result in replicas:
                arrays = {key: value.numpy() for key, value in result.items()}
                for number in range(len(next(iter(arrays.values())))):
                    yield {key: values[number] for key, values in arrays.items()}

    def export_saved_model(
        self,
        export_dir_base: str,
        inputs: Nest,
        to_features: Function,
        *tracked: Object,
        table_dtype: str | Mapping[str, str] = "float32",
    ) -> bytes:
        """Writes a SavedModel for predictions to a new directory, and returns its path.

        Args:
            inputs: what clients send, a `tf.TensorSpec` or a dict of specs.
            to_features: computes features from the inputs.
            tracked: lookup tables and other objects that `to_features` uses.
            table_dtype: as in `tf2_engine.keras.export_saved_model`, with the same InvalidSpec
                errors.
        """
        named = inputs if isinstance(inputs, dict) else {inputs.name or "inputs": inputs}

        def outputs(*received: Tensor) -> Mapping[str, Outputs]:
            request = dict(zip(named, received, strict=True))
            features = to_features(request if isinstance(inputs, dict) else received[0])
            return self.signatures(self.predict_step(features))

        def serve(name: str, specs: Specs) -> Function:
            return lambda **received: outputs_of(outputs(*(received[key] for key in specs))[name])

        def trace() -> dict[str, Object]:
            requests: dict[str, Specs | None] = {}

            def read(*received: Tensor) -> None:
                of_outputs = outputs(*received)
                requests.update(
                    (name, request_of(each, named)) for name, each in of_outputs.items()
                )

            with tf_compat.saved_model_export():  # With TensorFlow's own ops.
                # This also creates the variables.
                tf.function(read, autograph=False).get_concrete_function(*named.values())
                return {
                    name: tf.function(serve(name, specs), autograph=False).get_concrete_function(
                        **specs
                    )
                    for name, specs in requests.items()
                    if specs is not None
                }

        functions = trace()
        self._read_checkpoint("predictions")
        path, _ = new_directories(os.fsdecode(export_dir_base))
        with serving_in(self, table_dtype) as is_small:
            functions = trace() if is_small else functions
            module = exportable(self)
            module.tracked = [*tracked, *resources_of(to_features)]
            module.step = self.with_tables.step  # An estimator also exports the step.
            tf.saved_model.save(module, path, signatures=functions)
        return os.fsencode(path)

    def signatures(self, predictions: dict[str, Tensor]) -> Mapping[str, Outputs]:
        """Maps each signature of an export to its outputs."""
        return {"serving_default": predictions}

    def build_from_batch(self, spec: Nest) -> None:
        """Creates all variables for batches with this `element_spec`."""
        features = spec[0] if isinstance(spec, tuple) else spec
        self._trace(self.__call__, features)
        optimizers = self.optimizers
        for each in optimizers:
            round_betas(each)
        if len(optimizers) == 1:
            optimizers[0].build(self.dense_variables)
        elif isinstance(spec, tuple):
            self._trace(self.train_step, spec)  # Records the variables that each optimizer trains.

    def _trace(self, function: Function, spec: Nest) -> None:
        run = self.distribute_strategy.run
        # A TPUStrategy reads the function's signature, and cannot use that of a model's `__call__`.
        tf.function(
            lambda value: run(lambda batch: function(batch), args=(value,)), autograph=False
        ).get_concrete_function(spec)

    @property
    def optimizers(self) -> list[Object]:
        candidates = [self.optimizer, *vars(self).values()]
        return [
            *{id(each): each for each in candidates if hasattr(each, "apply_gradients")}.values()
        ]

    @property
    def dense_variables(self) -> list[Object]:
        virtual = {id(each) for each in self.with_tables.tables.trainable_variables}
        variables = self.trainable_variables  # type: ignore[attr-defined]
        return [each for each in variables if id(each) not in virtual]

    def restore(self, x: Dataset, training: bool = False) -> None:
        """Creates variables for `x`. Restores the latest checkpoint if that has not been done."""
        purpose = "training" if training else "predictions"
        if self._state.restored_for in ("training", purpose):
            return
        data = x if training else x.map(lambda *parts: parts[0])
        self.build_from_batch(self.prepared(data).element_spec)
        self._read_checkpoint(purpose)

    def _read_checkpoint(self, purpose: str) -> None:
        if self._state.restored_for in ("training", purpose):
            return
        if self._state.checkpoints is not None:
            self._state.checkpoints.restore_latest()
        if self._state.warm_start is not None and self.latest_checkpoint() is None:
            variables = {self.name_of(each): value_of(each) for each in self.dense_variables}
            engine = None if self.embedding is None else self.embedding.tables.embedding
            self._state.warm_start.assign(variables, engine)
        self._state.restored_for = purpose

    def prepared(self, x: Dataset) -> Object:
        dataset = x if self.embedding is None else x.map(self._with_ids)
        dataset = dataset.prefetch(2)
        strategy = self.distribute_strategy
        if not topology.is_tpu(strategy):
            return dataset
        # Tables read ids on the host.
        option = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        return strategy.experimental_distribute_dataset(dataset, option)

    def _with_ids(self, features: Nest, *others: Nest) -> Nest:
        prepared = self.embedding.prepare(features)
        return (prepared, *others) if others else prepared


def _check_is_on_one_machine(model: str) -> None:
    strategy = tf.distribute.get_strategy()
    is_of_servers = is_server_strategy(strategy)
    if is_of_servers or isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        name = "ParameterServerStrategy" if is_of_servers else "MultiWorkerMirroredStrategy"
        raise errors.InvalidSpec(
            f"`{model}`, a TableModel, is made under {name}, but a TableModel trains on one "
            "machine only. Train it on one machine, with MirroredStrategy for several devices. On "
            "a cluster, train an ordinary model with the layer `tf2_engine.keras.TPUEmbedding`, "
            "ParameterServerStrategy and a ClusterCoordinator; or train the original estimator "
            "with TF_CONFIG (docs/clusters.md)."
        )


def round_betas(optimizer: Object) -> None:
    for name in ("beta_1", "beta_2"):
        beta = getattr(optimizer, name, None)
        if isinstance(beta, float):
            setattr(optimizer, name, float(np.float32(beta)))


def _identity(gradient: Object) -> Object:
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.identity(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)


def _first(dataset: Object, options: dict[str, Object], name: str) -> Object:
    if not isinstance(dataset, tf.data.Dataset) or options.get(name) is None:
        return dataset
    return dataset.take(options.pop(name))
