"""The text that the tf2 form of `migrate` adds to a program: the training in TensorFlow 2.

Like that of `tf2_model`, the text is written into the migrated program.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf2

from estimator_bridge import declared as bridge
from estimator_bridge.migrate.tf2_model import EmbeddingModel, Function, ModeKeys, Nest, _call
from tf2_engine import tpu_columns

v1 = tf2.compat.v1


class TrainSpec(NamedTuple):
    """The training of `train_and_evaluate`."""

    input_fn: Function
    max_steps: int | None = None


class EvalSpec(NamedTuple):
    """The evaluations of `train_and_evaluate`."""

    input_fn: Function
    steps: int | None = 100


_minimized: list[tf2.Tensor] = []


def minimize(
    optimizer: tf2.compat.v1.train.Optimizer,
    loss: tf2.Tensor,
    global_step: tf2.Variable | None = None,
    var_list: list[tf2.Variable] | None = None,
    **settings: Any,
) -> tf2.Operation:
    """Trains variables of the model; `Trainer` trains the tables with the gradient of the loss.

    The strategy adds the gradients of all replicas, so each replica contributes its share of the
    loss. `Trainer.train` counts the steps.
    """
    _minimized.append(loss)
    share = loss / tf2.distribute.get_strategy().num_replicas_in_sync
    return optimizer.minimize(share, var_list=var_list, **settings)


class Metrics:
    """Metrics of `tf.compat.v1.metrics`, updated on the host after each batch."""

    def __init__(self, metric_fn: Function, values: Nest) -> None:
        graph = tf2.Graph()
        with graph.as_default():
            self._feeds = tf2.nest.map_structure(
                lambda value: v1.placeholder(value.dtype, [None, *value.shape[1:]]), values
            )
            metrics = _call(metric_fn, self._feeds)
            self._values = {name: value for name, (value, _) in metrics.items()}
            self._updates = [update for _, update in metrics.values()]
            self._session = v1.Session(graph=graph)
            self._session.run([v1.local_variables_initializer(), v1.tables_initializer()])

    def update(self, values: Nest) -> None:
        """Adds a batch."""
        feeds = zip(tf2.nest.flatten(self._feeds), tf2.nest.flatten(values), strict=True)
        self._session.run(self._updates, dict(feeds))

    def results(self) -> dict[str, Any]:
        """Returns the values over all batches."""
        results = self._session.run(self._values)
        self._session.close()
        return dict(results)


@bridge.verifiable
class Trainer(EmbeddingModel):
    """A model with training, evaluation and prediction."""

    _metric_fn: Function | None = None

    def eval_dir(self) -> str:
        """Returns the directory for files of evaluations."""
        return os.path.join(self.model_dir, "eval")

    def train(
        self,
        input_fn: Function,
        steps: int | None = None,
        max_steps: int | None = None,
        after_save: Function | None = None,
        callbacks: Sequence[Any] = (),
    ) -> "Trainer":
        """Trains up to a step, for a number of steps, or to the end of the input.

        For each of `callbacks`, as Keras has them, `on_train_begin()` is called once all variables
        have their values, and `on_train_batch_end(step)` after each step. `after_save` is called
        after each checkpoint but the last one.
        """
        if steps is not None:
            max_steps = int(self.step.numpy()) + steps
        if max_steps is not None and int(self.step.numpy()) >= max_steps:
            return self
        batches = iter(self._batches(input_fn, ModeKeys.TRAIN))
        run_step = self._step_function(ModeKeys.TRAIN, batches)
        for callback in callbacks:
            callback.on_train_begin()
        every = self.config.save_checkpoints_steps
        for step in self._run_steps(run_step, batches, max_steps):
            for callback in callbacks:
                callback.on_train_batch_end(step)
            if every and step % every == 0:
                self._manager.save(self.step)
                if after_save is not None:
                    after_save()
        self._manager.save(self.step)
        return self

    def _run_steps(
        self, run_step: Function, batches: Iterator[Nest], max_steps: int | None
    ) -> Iterator[int]:
        """Runs steps until `max_steps` or the end of the input; yields the global step of each."""
        while max_steps is None or int(self.step.numpy()) < max_steps:
            try:
                run_step(batches)
            except tf2.errors.OutOfRangeError:
                return
            self.step.assign_add(1)
            yield int(self.step.numpy())

    def evaluate(self, input_fn: Function, steps: int | None = None) -> dict[str, Any]:
        """Returns the metrics over a number of batches, the mean loss and the global step."""
        losses, metrics = [], None
        for loss, values in self._results(input_fn, ModeKeys.EVAL, steps):
            losses.append(loss)
            if self._metric_fn is not None:
                metrics = metrics or Metrics(self._metric_fn, values)
                metrics.update(values)
        results = metrics.results() if metrics is not None else {}
        results["loss"] = sum(losses) / len(losses)
        results["global_step"] = int(self.step.numpy())
        return results

    def predict(self, input_fn: Function) -> Iterator[dict[str, Any]]:
        """Yields the predictions of each sample."""
        for batch in self._results(input_fn, ModeKeys.PREDICT, None):
            for number in range(len(next(iter(batch.values())))):
                yield {name: values[number] for name, values in batch.items()}

    def _results(self, input_fn: Function, mode: str, steps: int | None) -> Iterator[Any]:
        """Yields the results of each batch, as arrays."""
        batches, num_batches = iter(self._batches(input_fn, mode)), 0
        run_step = self._step_function(mode, batches)
        while steps is None or num_batches < steps:
            try:
                replicas = self.strategy.experimental_local_results(run_step(batches))
            except tf2.errors.OutOfRangeError:
                return
            yield tf2.nest.map_structure(_merge_replicas, *replicas)
            num_batches += 1

    def _batches(self, input_fn: Function, mode: str) -> tf2.distribute.DistributedDataset:
        """Returns batches of ids, weights and lengths, the other features, and labels."""
        prepare, weight_keys = self._prepare()

        def prepared(features: Nest, labels: Nest = None) -> dict[str, Nest]:
            dense = [key for key in prepare.columns if isinstance(features[key], tf2.Tensor)]
            if dense:
                raise ValueError(
                    f"The ids of {dense} are dense; on a TPU the legacy program ignores 0 in them. "
                    "Make them SparseTensors in the input function, with 0 or without."
                )
            batch = prepare(features)._asdict()
            # The input of a strategy must not contain None.
            weights = batch["weights"] or {}
            batch["weights"] = {key: each for key, each in weights.items() if each is not None}
            used = {*weight_keys, *prepare.columns}
            batch["rest"] = {key: value for key, value in features.items() if key not in used}
            return {**batch, "labels": labels} if labels is not None else batch

        params = {**self.params, "batch_size": self._batch_sizes[mode]}
        dataset = _call(input_fn, self._arguments(mode, params)).map(prepared)
        # Ids of tables are sparse, and sparse tensors cannot be copied to a TPU.
        option = tf2.distribute.InputOptions(experimental_fetch_to_device=False)
        return self.strategy.experimental_distribute_dataset(dataset, option)

    def _step_function(self, mode: str, batches: Iterator[Nest]) -> Function:
        """Returns the function that runs a step on the next batch; creates all variables."""
        if mode not in self._steps:
            self._steps[mode] = tf2.function(
                lambda iterator: self.strategy.run(
                    self._step_on_replica, args=(mode, next(iterator))
                ),
                autograph=False,
            )
        self._steps[mode].get_concrete_function(batches)
        self._restore_created()
        return self._steps[mode]

    def _step_on_replica(self, mode: str, batch: dict[str, Nest]) -> Nest:
        """Runs a step on the batch of a replica; returns its loss or its results."""
        weights = {key: batch["weights"].get(key) for key in batch["ids"]}
        _minimized.clear()
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
            raise ValueError(
                "The model_fn must minimize one loss, which trains the tables; it minimizes "
                f"{len(set(map(id, _minimized)))}."
            )
        share = _minimized[0] / self.strategy.num_replicas_in_sync
        gradients = tf2.gradients(
            share, list(activations.values()), unconnected_gradients=tf2.UnconnectedGradients.ZERO
        )
        if self.embedding.gradient_multiplier is not None:
            factor = self.embedding.gradient_multiplier()
            gradients = [gradient * factor for gradient in gradients]
        update(dict(zip(activations, gradients, strict=True)))
        return spec.loss


def train_and_evaluate(
    estimator: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any], list[Any]]:
    """Trains, and evaluates each checkpoint; returns the last metrics."""
    results: list[dict[str, Any]] = []

    def evaluate() -> None:
        results.append(estimator.evaluate(eval_spec.input_fn, eval_spec.steps))

    estimator.train(train_spec.input_fn, max_steps=train_spec.max_steps, after_save=evaluate)
    if not results or results[-1]["global_step"] != int(estimator.step.numpy()):
        evaluate()
    return results[-1], []


def _merge_replicas(*parts: tf2.Tensor) -> Any:
    """Returns the results of all replicas as one array; of scalars, the mean."""
    arrays = [part.numpy() for part in parts]
    if not arrays[0].shape:
        return sum(arrays) / len(arrays)
    return arrays[0] if len(arrays) == 1 else tf2.concat(arrays, 0).numpy()
