"""A model_fn with its variables, tables and strategy, and the code that calls the model_fn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping

import tensorflow as tf

import tf2_engine
from tf2_engine import errors, log, specs, tf_compat
from tf2_engine import preprocessing as pre
from tf2_engine.backends.sparsecore.driver import (
    SPARSECORE,
    accumulating,
    check_limits,
    driver_for_sparsecore,
)
from tf2_engine.batch import pad
from tf2_engine.calls import call
from tf2_engine.preprocessing.module import in_order
from tf2_engine.training import differentiation, graph_steps
from tf2_engine.training.iterators import dataset_of
from tf2_engine.training.model_variables import ModelVariables, create_dummies
from tf2_engine.training.replacements import Saver
from tf2_engine.training.strategies import ReplicaContext, make_strategy
from tf2_engine.training.trainer_specs import (
    Embedding,
    ModeKeys,
    ModelSpec,
    RunConfig,
    WithoutTables,
)
from tf2_engine.types import Array, Dataset, Function, Nest, Object, Op, Tensor

PreparedBatch = dict[str, Nest]


class Model:
    """Calls a program's functions: the model_fn for a replica, and the input_fns.

    `batch_sizes` maps modes to global batch sizes. The other arguments are those of `Trainer`.

    Attributes:
        engine, step, store: the tables, the global step and the variables.
        saver: the saver in the model_fn's latest result, or None.
        changes: maps the modes of evaluation and prediction to whether a step may change variables.
    """

    def __init__(
        self,
        model_fn: Function,
        config: RunConfig,
        params: Object,
        batch_sizes: Mapping[str, int | None],
        embedding_config_spec: Object,
        arithmetic: str = "tpu",
        sparse_core_limits: Object = None,
    ) -> None:
        self.model_fn, self.config = model_fn, config
        self.params = dict(params) if isinstance(params, Mapping) else params
        self._batch_sizes = batch_sizes
        specs.check_choice("", "arithmetic", arithmetic, ("tpu", SPARSECORE))
        check_limits(arithmetic, sparse_core_limits)
        if config.tf_random_seed is not None:
            tf.random.set_seed(config.tf_random_seed)
        self.strategy = make_strategy(config)
        self.spec = WithoutTables() if embedding_config_spec is None else embedding_config_spec
        # Only a TPUEstimator passes the batch size to the program's functions.
        self.tells_sizes = self.spec is embedding_config_spec or any(batch_sizes.values())
        with self.strategy.scope():
            self.step = tf.Variable(
                0,
                trainable=False,
                dtype=tf.int64,
                name="global_step",
                # A program may increment the step in its train_op.
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            # Holds the FeatureConfigs, the optimizers, and the conversion of raw features to ids.
            self.embedding = self.spec.to_tf2(step=self.read_step)
            # A TPU is configured for one batch size. On a host, batch sizes may vary.
            self.on_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
            self._size_on_tpu = size = batch_sizes[ModeKeys.TRAIN] if self.on_tpu else None
            engine_spec, driver = self.embedding.engine_spec, None
            if arithmetic == SPARSECORE:
                driver = driver_for_sparsecore(sparse_core_limits)
                engine_spec = accumulating(engine_spec)
            self._on_sparse_cores = self.on_tpu and driver is not None
            if self._on_sparse_cores and size is None:
                raise errors.InvalidInput(
                    "`train_batch_size` is not set, but a TPU needs a fixed batch size. "
                    "Set `train_batch_size`."
                )
            self.engine = (
                self.spec
                if isinstance(self.spec, WithoutTables)
                else tf2_engine.TPUEmbedding(engine_spec, batch_size=size, driver=driver)
            )
            if self._on_sparse_cores:
                self.engine.build()  # Stacks cannot be created while a step is traced.
            self._dummies = create_dummies(table.name for table in engine_spec.tables)
        features = engine_spec.features
        self._tables = {key: features[at].table for key, at in engine_spec.structure.items()}
        self.store = ModelVariables()
        self.saver: Saver | None = None
        self.changes: dict[str, bool] = {}
        self._traced_step: Tensor | None = None

    def preprocessing(self) -> tuple[pre.Preprocessing, set[str]]:
        preprocessing = self.embedding.preprocessing_of_ids
        parts = [part for each in preprocessing.columns.values() for part in (each, *each.parts)]
        return preprocessing, {each.weight_key for each in parts if isinstance(each, pre.Weighted)}

    def arguments(self, mode: str, **data: Nest) -> dict[str, Object]:
        params = self.params
        if self.tells_sizes:
            context = ReplicaContext(self.strategy)
            params = {**params, "batch_size": self._batch_sizes[mode], "context": context}
        return {"mode": mode, "params": params, "config": self.config, **data}

    def batches(self, input_fn: Function, mode: str) -> Object:
        prepare, weight_keys = self.preprocessing()

        def prepared(features: Nest, labels: Nest = None) -> PreparedBatch:
            if not self._tables:  # Features may have any structure.
                batch = {"ids": {}, "weights": {}, "lengths": {}, "rest": features}
                return batch if labels is None else {**batch, "labels": labels}
            ids = prepare(self._with_sparse_ids(features, prepare.columns))
            batch = (in_order(ids) if self._on_sparse_cores else ids)._asdict()
            # A strategy does not allow None in its input.
            weights = batch["weights"] or {}
            batch["weights"] = {key: each for key, each in weights.items() if each is not None}
            used = {*weight_keys, *prepare.columns}
            batch["rest"] = {key: value for key, value in features.items() if key not in used}
            batch = {**batch, "labels": labels} if labels is not None else batch
            size = self._size_on_tpu if mode == ModeKeys.PREDICT else None
            return batch if size is None else padded(batch, size)

        dataset: Dataset = dataset_of(lambda: call(input_fn, self.arguments(mode)))
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.WrongType(
                f"input_fn returned {dataset!r}; in TensorFlow 2 it must return a tf.data.Dataset "
                "of features, or of (features, labels)."
            )
        # Ids of tables are sparse, and sparse tensors cannot be copied to a TPU.
        option = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        return self.strategy.experimental_distribute_dataset(dataset.map(prepared), option)

    def _with_sparse_ids(self, features: PreparedBatch, keys: Iterable[str]) -> PreparedBatch:
        dense = [key for key in keys if isinstance(features[key], tf.Tensor)]
        ranks = {features[key].shape.rank for key in dense}
        if dense and (isinstance(self.spec, Embedding) or ranks != {2}):
            raise errors.InvalidInput(
                f"The ids of {dense} are dense; on a TPU the legacy program ignores 0 in them. "
                "Make them SparseTensors in the input function, with 0 only where it is an id."
            )
        if dense:
            text = "The ids of %s are dense, and 0 is ignored in them, as in the legacy program."
            log.warning(text, dense)
        return {**features, **{key: tf.sparse.from_dense(features[key]) for key in dense}}

    def call(
        self, mode: str, batch: PreparedBatch, outputs_of: Callable[[ModelSpec], tuple[Nest, Nest]]
    ) -> Nest:
        """Calls the model_fn with a replica's batch. In training, also updates the tables.

        As in a session, an op runs only if the outputs or, in training, the train_op depend on it.

        Args:
            outputs_of: computes, from the model_fn's result, the outputs of a step and a dict with
                the final values of metrics. The final values are read after the outputs are
                computed, and become the output "metrics".

        Raises:
            InvalidInput: in training, if no loss trains variables, or several losses train a table.
        """
        trains = mode == ModeKeys.TRAIN
        weights = {key: batch["weights"].get(key) for key in batch["ids"]}
        activations, update = self.engine.differentiable_lookup(
            batch["ids"], weights, training=trains, name=mode
        )
        size = self._static_size(mode, batch)
        for key, ids in batch["ids"].items():
            # As on a TPU, a model_fn can read the size of the batch from the shape.
            activations[key].set_shape([ids.shape[0] or size, *activations[key].shape[1:]])
        data = {"rest": batch["rest"], "labels": batch.get("labels"), "activations": activations}

        def arguments_of(inputs: Nest) -> Nest:
            features, found = inputs["rest"], inputs["activations"]
            if found:
                features = {**features, **as_features(found, batch["lengths"])}
            return {"features": features, "labels": inputs["labels"]}

        self._traced_step = tf.identity(self.step)
        if trains:
            outputs = self._train(data, arguments_of, outputs_of, update)
        else:

            def results(inputs: Nest) -> tuple[Nest, Nest]:
                with self.store.graph_collections(self.step):
                    return outputs_of(self._result(mode, arguments_of(inputs)))

            outputs, self.changes[mode] = _fetched(results, data)
        self._traced_step = None
        return outputs

    def _static_size(self, mode: str, batch: PreparedBatch) -> int | None:
        parts = tf.nest.flatten([batch["ids"], batch["rest"], batch.get("labels")])
        sizes = {each.shape[0] for each in parts if tf.is_tensor(each) and each.shape.rank}
        return self._batch_sizes[mode] if sizes - {None} == {self._batch_sizes[mode]} else None

    def _train(
        self,
        data: Nest,
        arguments_of: Callable[[Nest], Nest],
        outputs_of: Callable[[ModelSpec], tuple[Nest, Nest]],
        update: Callable[[Nest], Op],
    ) -> Nest:
        of_tables = [*self._dummies.values()]

        def step(inputs: Nest) -> Nest:
            with self.store.graph_collections(self.step, of_tables):
                with differentiation.recorded(self._dummies) as differentiated:
                    spec = self._result(ModeKeys.TRAIN, arguments_of(inputs))
                found, gradients = inputs["activations"], {}
                if found:
                    gradients = differentiated.gradients(found, self._tables)
                outputs, _ = outputs_of(spec)
            with tf.control_dependencies(_ops_of(spec.train_op)):
                return {**outputs, "loss": tf.identity(outputs["loss"])}, gradients

        outputs, gradients = graph_steps.needed(step, data)
        if gradients and self.embedding.gradient_multiplier is not None:
            factor = self.embedding.gradient_multiplier()
            gradients = {key: each * factor for key, each in gradients.items()}
        if gradients:
            update(gradients)
        return outputs

    def _result(self, mode: str, data: Nest) -> ModelSpec:
        arguments = self.arguments(mode, **data)
        if self.tells_sizes:  # Tables are trained as on a TPU, on any device.
            arguments["params"] = {**arguments["params"], "use_tpu": bool(self._tables)}
        with _seeded(self.config.tf_random_seed):
            return self.store.call(lambda: self._call_model(arguments))

    def _call_model(self, arguments: dict[str, Object]) -> ModelSpec:
        # In a model without tables, columns look up variables of the model.
        columns = reading_activations if self._tables else contextlib.nullcontext
        with columns(), tf_compat.equal_by_identity(), tf_compat.keras_of_graphs():
            spec = ModelSpec.of(call(self.model_fn, arguments))
            scaffold = spec.scaffold if spec.scaffold_fn is None else spec.scaffold_fn()
        self.saver = getattr(scaffold, "saver", None)
        return spec

    def read_step(self) -> Tensor:
        """Reads the step at the start of a traced step, before the model_fn can increment it."""
        return self.step if self._traced_step is None else self._traced_step


def _ops_of(train_op: Object) -> list[Object]:
    ops = [] if train_op is None else tf.nest.flatten(train_op)
    return [each for each in ops if isinstance(each, (tf.Operation, tf.Tensor, tf.IndexedSlices))]


def _fetched(function: Callable[[Nest], tuple[Nest, Nest]], inputs: Nest) -> tuple[Nest, bool]:
    """Computes the outputs of a function of tensors, and runs only the ops that the outputs need.

    Also returns whether computing them may change variables.
    """
    traced = graph_steps.traced(function, inputs)
    structure, metrics = traced.structured_outputs
    count = len(traced.outputs) - len(tf.nest.flatten(metrics))
    pruned = traced.prune([], traced.outputs[:count])
    changes = any(
        op.op_def.is_stateful and op.type not in _READING for op in pruned.graph.get_operations()
    )
    computed = pruned()
    outputs = graph_steps.packed(structure, computed)
    if metrics:
        # When functions are inlined, control dependencies on a call are lost, but those on its
        # outputs remain.
        with tf.control_dependencies([tf.identity(each) for each in computed]):
            values = traced.prune([], traced.outputs[count:])()
        outputs = {**outputs, "metrics": tf.nest.pack_sequence_as(metrics, values)}
    return outputs, changes


_READING = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def reading_activations() -> Iterator[None]:
    if tf_compat.in_tpu_shard_context():
        yield
        return
    with tf_compat.tpu_shard_context(tf.distribute.get_strategy().num_replicas_in_sync):
        yield


def as_features(
    activations: Mapping[str, Tensor], lengths: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Converts the activations of features to the features that TPU columns read.

    `lengths` maps each sequence feature to the lengths of its sequences, [batch] int64, which may
    exceed the number of steps in the activation.
    """
    features = dict(activations)
    for key, length in lengths.items():
        longest = tf.shape(activations[key], out_type=tf.int64)[1]
        features[tf_compat.sequence_length_key(key)] = tf.minimum(length, longest)
    return features


PRESENT = "short_batches/present"
"""The key of a mask in a padded batch and in its predictions; the mask is False for padding."""


def padded(batch: Mapping[str, Nest], size: int) -> dict[str, Nest]:
    """Pads a batch to `size` samples. Added samples have no ids; their other values are zero or "".

    Args:
        batch: tensors whose first dimension is samples, and SparseTensors under "ids".

    Raises:
        InvalidArgumentError: at run time, if the batch has more than `size` samples.
    """
    samples = next(iter(batch["ids"].values())).dense_shape[0]
    fits = tf.debugging.assert_less_equal(
        samples,
        tf.constant(size, tf.int64),
        f"A TPU is configured for batches of {size} samples, the `train_batch_size`, but a batch "
        f"of predictions has more. Set `predict_batch_size` to at most {size}.",
    )
    with tf.control_dependencies([fits] if fits is not None else []):
        missing = size - samples
    full = tf.nest.map_structure(lambda value: pad(value, size, missing), batch)
    return {**full, PRESENT: tf.range(size, dtype=tf.int64) < samples}


def without_padding(predictions: Mapping[str, Array]) -> dict[str, Array]:
    present = predictions.get(PRESENT)
    return {
        key: value if present is None or not value.shape else value[present]
        for key, value in predictions.items()
        if key != PRESENT
    }
