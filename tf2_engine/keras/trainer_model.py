"""`TrainerModel`: a Keras model whose step is the model_fn of an estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine.training.trainer import Trainer
from tf2_engine.types import Array, Dataset, Function, Nest, Object, Tensor

Input = Dataset | Function
"""A dataset, or an input function, which may take `params` and returns a dataset."""

_OF_TRAINER = (
    *("config", "engine", "eval_dir", "export_saved_model", "get_variable_names"),
    *("get_variable_value", "latest_checkpoint", "model_dir", "params", "step"),
)

_OF_TPUS = ("use_tpu", "eval_on_tpu", "export_to_tpu", "export_to_cpu")


class TrainerModelBase:
    """A `keras.Model` with a model_fn, whose steps run in a `tf2_engine.training.Trainer`.

        model = TrainerModel(model_fn, "model", params={"rate": 0.1}, train_batch_size=64)
        model.fit(input_fn, max_steps=1000, callbacks=[tf.keras.callbacks.TerminateOnNaN()])
        print(model.evaluate(input_fn, steps=10))

    Keras' `fit` loops over the steps, calls callbacks and returns the history; the `Trainer` does
    the rest. For a model that consists of layers, use the simpler `TableModel`.

    Args:
        model_fn, model_dir, config, params, options: as in `Trainer`. `use_tpu` and similar options
            of estimators have no effect.

    Attributes:
        trainer: the `Trainer`. Its `engine`, `step`, `model_dir`, `config`, `params`, `eval_dir`,
            `latest_checkpoint`, `get_variable_names`, `get_variable_value` and `export_saved_model`
            are also attributes of the model.
    """

    stop_training: bool
    train_function: Function

    def __init__(
        self,
        model_fn: Function,
        model_dir: str | None = None,
        config: Object = None,
        params: Object = None,
        **options: Object,
    ) -> None:
        super().__init__()
        options = {name: each for name, each in options.items() if name not in _OF_TPUS}
        self.trainer = Trainer(model_fn, model_dir, config, params, **options)
        self._running: Iterator[Sequence[Tensor]] = iter(())
        self.built = True
        self.compile()

    def __getattr__(self, name: str) -> Object:
        if name in _OF_TRAINER:
            return getattr(self.trainer, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def metrics(self) -> list[Object]:
        return []  # Keras 3 would report its own mean of the loss, which is not updated.

    @property
    def weights(self) -> list[Object]:
        return [*self.trainer.variables.values()]

    @property
    def trainable_weights(self) -> list[Object]:
        return [each for each in self.weights if each.trainable]

    @property
    def non_trainable_weights(self) -> list[Object]:
        return [each for each in self.weights if not each.trainable]

    def fit(
        self,
        x: Input | None = None,
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        callbacks: Sequence[Object] | None = None,
        saving_listeners: Sequence[Object] | None = None,
        **options: Object,
    ) -> Object:
        """Trains until a global step, for a number of steps, or until the end of the data.

        Args:
            steps, max_steps, saving_listeners: as in `Trainer.train`.
            callbacks: Keras callbacks, and the hooks and callbacks of `Trainer.train`.
            options: as in `keras.Model.fit`, for instance `verbose`.

        Returns:
            The history, or None if `max_steps` was already reached.
        """
        of_keras = [each for each in callbacks or () if hasattr(each, "set_model")]
        hooks = [each for each in callbacks or () if not hasattr(each, "set_model")]
        histories: list[Object] = []
        fit = super().fit  # type: ignore[misc]

        def drive(losses: Iterator[Sequence[Tensor]]) -> None:
            self._running = losses
            data = tf.data.Dataset.from_tensors(0).filter(lambda _: True)  # with unknown length
            kept = {"verbose": 2, "shuffle": False, **options}  # Otherwise Keras warns.
            histories.append(fit(data, callbacks=of_keras, **kept))
            self.trainer.stop_training |= self.stop_training
            for _ in losses:
                pass  # Ends and saves the training.

        self.trainer.drive = drive
        self.trainer.train(_input_fn(x), hooks, steps, max_steps, saving_listeners)
        return histories[0] if histories else None

    def make_train_function(self, force: bool = False) -> Callable[[Object], dict[str, Tensor]]:
        """Returns the function that Keras calls for each step. The trainer reads the data."""
        counter = getattr(self, "_train_counter", None)  # Keras 2 prints this counter.

        def step(ignored: Object) -> dict[str, Tensor]:
            losses = next(self._running, None)
            if losses is None:
                raise tf.errors.OutOfRangeError(None, None, "The training has ended.")
            if counter is not None:
                counter.assign_add(1)
            return {"loss": tf.reduce_mean(losses)}

        self.train_function = step  # Keras 3 reads the function here.
        return step

    def train(
        self,
        input_fn: Function,
        hooks: Sequence[Object] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Object] | None = None,
    ) -> TrainerModelBase:
        """Calls `fit`, for code that takes an estimator, and returns the model."""
        self.fit(
            *(input_fn,),
            steps=steps,
            max_steps=max_steps,
            callbacks=hooks,
            saving_listeners=saving_listeners,
        )
        return self

    def evaluate(
        self,
        input_fn: Input,
        steps: int | None = None,
        hooks: Sequence[Object] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Object]:
        """Returns the metrics, the mean loss and the global step; see `Trainer.evaluate`."""
        return self.trainer.evaluate(_input_fn(input_fn), steps, hooks, checkpoint_path, name)

    def predictions(self, x: Input, *args: Object, **options: Object) -> Iterator[dict[str, Array]]:
        """Yields the predictions of each sample. The arguments are those of `Trainer.predict`."""
        return self.trainer.predict(_input_fn(x), *args, **options)

    def predict(self, x: Input, *args: Object, **options: Object) -> Nest:
        """Returns the predictions for a dataset as a dict of arrays.

        For an input function, yields predictions as an estimator does.
        """
        if callable(x):
            return self.predictions(x, *args, **options)
        rows = list(self.predictions(x))
        return {key: np.stack([row[key] for row in rows]) for key in (rows[0] if rows else ())}


def _input_fn(x: Input | None) -> Function:
    return x if callable(x) else lambda: x
