"""What the second form of `migrate` adds to a program: a training in TensorFlow 2.

Like that of `tf2_model`, the text is written into the migrated program.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf2

from estimator_bridge import declared as bridge
from estimator_bridge.migrate.tf2_model import EmbeddingModel, ModeKeys, _called
from tf2_engine import tpu_columns

v1 = tf2.compat.v1


class TrainSpec(NamedTuple):
    """What `train_and_evaluate` trains on."""

    input_fn: Any
    max_steps: int | None = None


class EvalSpec(NamedTuple):
    """What `train_and_evaluate` evaluates on."""

    input_fn: Any
    steps: int | None = 100


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
class Trainer(EmbeddingModel):
    """A model with its training: the loop, evaluation and predictions."""

    _metric_fn: Any = None

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
        self._restore_made()
        return self._steps[mode]

    def _step_on_replica(self, mode: str, batch: Any) -> Any:
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


def _together(*parts: Any) -> Any:
    """Returns what the replicas found as one array; the mean of scalars."""
    arrays = [part.numpy() for part in parts]
    if not arrays[0].shape:
        return sum(arrays) / len(arrays)
    return arrays[0] if len(arrays) == 1 else tf2.concat(arrays, 0).numpy()
