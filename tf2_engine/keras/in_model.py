"""`FunctionModel`: a `TableModel` whose steps are a function of features, labels and the mode.

The function gets layers, variables and optimizers where it needs them, from the functions of this
module. They are made when the function first runs, and found again by their names afterwards.

    from tf2_engine.keras import in_model
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.tpu import topology
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.function_scopes import Scope, Scopes
from tf2_engine.keras.layer_bases.column_layers import ColumnEmbeddingLayer
from tf2_engine.keras.table_model import TableModelBase, round_betas
from tf2_engine.types import Dataset, Function, Nest, Object, Tensor

TRAIN, EVAL, PREDICT = "train", "eval", "infer"
"""The modes of `tf.estimator.ModeKeys`."""


@dataclasses.dataclass
class Step:
    """What the function of a `FunctionModel` returns.

    Args:
        predictions: a tensor, or a dict of them by name.
        loss: a scalar.
        train_op: has run when the function returns.
        eval_metrics: (function, arguments); see `TableModel.metrics_of`.
        eval_metric_ops: metrics by name, each made by `metric`.
    """

    mode: str | None = None
    predictions: Nest = None
    loss: Tensor | None = None
    train_op: Object = None
    eval_metrics: Object = None
    eval_metric_ops: Mapping[str, Metric] | None = None


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of `tf.compat.v1.metrics` with its arguments, to be computed on the host."""

    function: Function
    arguments: Sequence[Nest]
    options: Mapping[str, Nest]


@dataclasses.dataclass(eq=False)
class _Run:
    """A run of the function of a model.

    Attributes:
        step: the global step, read before the run changes it.
    """

    model: FunctionModelBase
    scopes: Scopes
    step: Tensor
    mode: str
    tape: Object = None
    optimizers: int = 0


@dataclasses.dataclass(eq=False)
class _OfFunction:
    """The state of a model, in an object that Keras does not look into.

    Attributes:
        batch: the mode of the step that runs, its labels, and its tape.
        built_for: the mode for which variables are made next.
        step: the latest result of the function.
    """

    function: Function
    params: Object
    batch_sizes: Mapping[str, int]
    made: dict[str, Object] = dataclasses.field(default_factory=dict)
    optimizers: list[Optimizer] = dataclasses.field(default_factory=list)
    batch: tuple[str, Nest, Object] = (PREDICT, None, None)
    built_for: str = EVAL
    step: Step = dataclasses.field(default_factory=Step)


class _Running(threading.local):
    run: _Run | None = None


_RUNNING = _Running()


def _run() -> _Run:
    if _RUNNING.run is None:
        raise errors.InvalidInput(
            "The functions of `in_model` work only while a FunctionModel runs its function. Call "
            "them there, for instance in the model_fn."
        )
    return _RUNNING.run


class Container:
    """A layer that keeps layers and variables, which are called elsewhere."""


class FunctionModelBase(TableModelBase):
    """A `TableModel` that a function describes, as a model_fn describes an estimator.

        def model_fn(features, labels, mode):
            net = in_model.layer(tf.keras.layers.Dense, 1, name="dense")(features["user"])
            loss = tf.reduce_mean(tf.square(labels - net)) if mode != "infer" else None
            if mode == "train":
                in_model.optimizer(tf.keras.optimizers.SGD, 0.1).minimize(loss)
            return in_model.Step(mode, predictions=net, loss=loss)

        model = FunctionModel(model_fn, ColumnEmbedding(columns, rule))

    Layers, variables and optimizers are made when the function first runs, in `fit`, `evaluate` or
    `predictions`.

    Args:
        function: takes features, in which columns are looked up, and those of `labels`, `mode`
            ("train", "eval" or "infer") and further arguments that it names. Returns a
            `Step`. Python runs it once for each mode; its tensors are those of a `tf.function`
            without AutoGraph.
        params: a further argument. In a dict, "batch_size" is added where it is known.
        batch_sizes: for `data_of`, the batch size of each mode.
    """

    _container_class: Function
    _rate_class: Function

    def __init__(
        self,
        function: Function,
        embedding: ColumnEmbeddingLayer | None = None,
        params: Object = None,
        batch_sizes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(embedding)
        params = {} if params is None else params
        self._of_function = _OfFunction(function, params, dict(batch_sizes or {}))
        self.layers_made = self._container_class(name="made")
        self.mean_loss = tf.keras.metrics.Mean(name="mean_loss")
        self.built = True  # by its layers
        self.compile()  # type: ignore[attr-defined]

    @property
    def optimizers(self) -> list[Object]:
        return [each.of_keras for each in self._of_function.optimizers]

    def call(self, features: Nest, training: bool = False) -> Nest:
        del training  # The function tells each layer.
        return self._outputs_of_function(features)

    @do_not_convert
    def _outputs_of_function(self, features: Nest) -> Nest:
        state = self._of_function
        mode, labels, tape = state.batch
        if self.embedding is not None:
            features = self.embedding(features)
        step = tf.identity(self.with_tables.step)
        scopes = Scopes(self.layers_made, state.made, self._state.names)
        _RUNNING.run = _Run(self, scopes, step, mode, tape)
        try:
            with self._random_numbers(mode):
                state.step = state.function(**self._arguments(features, labels, mode))
        finally:
            _RUNNING.run = None
        return state.step.loss if mode == TRAIN else step

    def _random_numbers(self, mode: str) -> contextlib.AbstractContextManager[None]:
        """Makes random ops draw the numbers of an estimator, which a TPU cannot."""
        if mode == PREDICT or topology.is_tpu(self.distribute_strategy):
            return contextlib.nullcontext()
        return tf_compat.numbered_seeds()

    def _arguments(self, features: Nest, labels: Nest, mode: str) -> dict[str, Object]:
        given = {"labels": labels, "mode": mode, "params": self._params(mode)}
        first, *names = inspect.signature(self._of_function.function).parameters
        return {first: features, **{name: given[name] for name in names if name in given}}

    def _params(self, mode: str) -> Object:
        params, size = self._of_function.params, self._of_function.batch_sizes.get(mode)
        if not isinstance(params, dict) or size is None:
            return params
        return {**params, "batch_size": size, "use_tpu": False}

    def data_of(self, input_fn: Function, mode: str) -> Dataset:
        """Calls an input function with the arguments among `params` and `mode` that it takes.

        Raises:
            InvalidInput: it does not return a dataset.
        """
        given = {"params": self._params(mode), "mode": mode}
        names = inspect.signature(input_fn).parameters
        data = input_fn(**{name: each for name, each in given.items() if name in names})
        if not isinstance(data, tf.data.Dataset):
            raise errors.InvalidInput(
                f"The input function {input_fn!r} returns {type(data).__name__}. Return a "
                "tf.data.Dataset of (features, labels)."
            )
        return data

    def _run_step(self, mode: str, batch: Nest, tape: Object = None) -> Step:
        features, labels = batch if isinstance(batch, tuple) else (batch, None)
        self._of_function.batch = mode, labels, tape
        self(features)
        return self._of_function.step

    def train_step(self, batch: Nest) -> dict[str, Tensor | None]:
        with tf.GradientTape() as tape:
            step = self._run_step(TRAIN, batch, tape)
        return {"loss": step.loss}

    def test_step(self, batch: Nest) -> dict[str, Tensor]:
        step = self._run_step(EVAL, batch)
        self.mean_loss.update_state(step.loss)
        return {"loss": self.mean_loss.result(), **self._metrics_of_step(step)}

    def _metrics_of_step(self, step: Step) -> dict[str, Tensor]:
        if step.eval_metrics is not None:
            return self.metrics_of(*step.eval_metrics)
        metrics = dict(step.eval_metric_ops or {})
        if not metrics:
            return {}
        rows = {name: (each.arguments, dict(each.options)) for name, each in metrics.items()}

        def compute(fed: Mapping[str, Object]) -> dict[str, Object]:
            return {
                name: metrics[name].function(*arguments, **options)
                for name, (arguments, options) in fed.items()
            }

        return self.metrics_of(compute, [rows])

    def predict_step(self, features: Nest) -> dict[str, Tensor]:
        predictions = self._run_step(PREDICT, features).predictions
        return predictions if isinstance(predictions, dict) else {"output": predictions}

    @property
    def dense_variables(self) -> list[Object]:
        """The variables that optimizers train, in the order in which they were made."""
        known = {id(each) for each in super().dense_variables}
        made = self._of_function.made.values()
        lists = (getattr(each, "trainable_variables", [each]) for each in made)
        return [each for of_layer in lists for each in of_layer if id(each) in known]

    def build_from_batch(self, spec: Nest) -> None:
        is_pair = isinstance(spec, tuple)
        training = is_pair and self._of_function.built_for == TRAIN
        self._trace(
            self.train_step if training else self.test_step if is_pair else self.predict_step, spec
        )

    def restore(self, x: Dataset, training: bool = False) -> None:
        if training:
            self._of_function.built_for = TRAIN
        super().restore(x, training)
        self._of_function.built_for = EVAL

    def data_to_build(self, x: Dataset, training: bool) -> Dataset:
        predicts = self._of_function.built_for == PREDICT
        return super().data_to_build(x, training) if predicts else x

    def predictions(self, x: Dataset) -> Iterator[dict[str, object]]:
        self._of_function.built_for = PREDICT
        yield from super().predictions(x)


class Optimizer:
    """A Keras optimizer, in the function of a model. Only a training uses it.

    Attributes:
        of_keras: the Keras optimizer.
        rate: the learning rate of this run.
    """

    def __init__(self, make: Callable[[Object], Object], rate: Object) -> None:
        self.rate = rate
        is_tensor = isinstance(rate, tf.Tensor)
        self.of_keras = make(_run().model._rate_class(self._rate_at) if is_tensor else rate)
        round_betas(self.of_keras)

    def _rate_at(self, step: Tensor) -> Object:
        del step  # The function has read the step.
        # Keras 2 also asks for a first rate, outside of the step.
        return 0.0 if tf.executing_eagerly() else self.rate

    def minimize(
        self,
        loss: Tensor,
        global_step: Object = None,
        var_list: Sequence[Object] | None = None,
        **unused: Object,
    ) -> Object:
        """Updates variables, by default all but tables, and the tables in any case."""
        del unused
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Object] | None = None, **unused: Object
    ) -> list[tuple[Tensor, Object]]:
        """Returns (gradient, variable) pairs."""
        del unused
        run = _run()
        if run.mode != TRAIN:
            chosen = run.model.dense_variables if var_list is None else var_list
            return [(tf.zeros_like(tf.convert_to_tensor(each)), each) for each in chosen]
        return [*zip(*run.model.gradients(loss, run.tape, var_list), strict=True)]

    def apply_gradients(
        self,
        pairs: Sequence[tuple[Tensor, Object]],
        global_step: Object = None,
        name: str | None = None,
    ) -> Object:
        """Updates variables."""
        del global_step, name
        run = _run()
        if run.mode == TRAIN:
            known = [pair for pair in pairs if pair[0] is not None]
            with tf.name_scope(""):
                run.model.apply_gradients(known, self.of_keras)
        return tf.no_op()


def optimizer(make: Callable[[Object], Object], rate: Object) -> Optimizer:
    """Makes a Keras optimizer when the function first runs, or returns the one made then.

    Args:
        make: makes it for a learning rate.
        rate: a number, or a tensor that the function computes in each step.
    """
    run = _run()
    if run.mode != TRAIN:
        return Optimizer(lambda rate: None, rate)
    made = run.model._of_function.optimizers
    if run.optimizers == len(made):
        made.append(Optimizer(make, rate))
    of_run = made[run.optimizers]
    run.optimizers += 1
    of_run.rate = rate
    return of_run


def layer(kind: Callable[..., Object], *arguments: Object, **options: Object) -> Object:
    """Makes a layer when the function first runs, or returns the one of that name.

    Args:
        kind: the class of the layer.
        options: of the class; `name` is the name in the scope. Without a name, it is that of
            `default`, with a number if there are several.
    """
    return _run().scopes.layer(kind, *arguments, **options)


def dropout(
    inputs: Tensor,
    rate: float | Tensor = 0.5,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    training: bool | Tensor = False,
    name: str | None = None,
) -> Tensor:
    """Drops units while training, with the random numbers of `tf.compat.v1.layers.dropout`."""
    del name

    def drop() -> Tensor:
        return tf.nn.dropout(inputs, rate, noise_shape, seed)

    if isinstance(training, tf.Tensor):
        return tf.cond(training, drop, lambda: tf.identity(inputs))
    return drop() if training else tf.identity(inputs)


def variable(
    name: str, shape: Sequence[int] | None = None, initializer: Object = None, **options: Object
) -> Object:
    """Makes a variable when the function first runs, or returns the one of that name.

    Args:
        shape: None is the shape of `initializer`, which then is the first value.
        options: as in `add_weight` of a Keras layer.

    Raises:
        InvalidInput: without a shape, the first value is computed from a batch.
    """
    if shape is None:
        value = tf.get_static_value(tf.convert_to_tensor(initializer))
        if value is None:
            raise errors.InvalidInput(
                f"Variable {name!r}: its first value is not known before the first batch. Give it "
                "a shape and an initializer."
            )
        options.setdefault("dtype", value.dtype.name)
        shape, initializer = value.shape, tf.constant_initializer(value)
    return _run().scopes.variable(name, shape, initializer=initializer, **options)


def scope(
    name: str | Scope | None, default_name: str | None = None, **unused: Object
) -> contextlib.AbstractContextManager[Scope]:
    """Names the layers and variables in it "name/...", as `tf.compat.v1.variable_scope` does."""
    return _run().scopes.scope(name, default_name)


def metric(function: Function, *arguments: Object, **options: Object) -> object:
    """Makes a metric of `tf.compat.v1.metrics` for `Step.eval_metric_ops`.

    In a function of metrics it calls `function`.
    """
    if _RUNNING.run is None:
        return function(*arguments, **options)
    return Metric(function, arguments, options)


def step() -> Tensor:
    """Returns the number of steps before this one, an int64 scalar."""
    return _run().step


def trainable_variables(scope: str | None = None) -> list[Object]:
    """Lists the variables that optimizers train, or those whose names start with `scope`."""
    model = _run().model
    return model.dense_variables if scope is None else model.variables_below(scope)


def regularization_losses() -> list[Tensor]:
    """Lists the losses of the regularizers of layers."""
    return list(_run().model.losses)  # type: ignore[attr-defined]


def gradients(loss: Tensor, variables: Sequence[Object]) -> list[Tensor]:
    """Computes the gradients of variables, and updates tables."""
    run = _run()
    return run.model.gradients(loss, run.tape, variables)[0]


def variable_name(variable: Object) -> str:
    """Returns the name of a variable with its scopes, as in "dense/kernel:0"."""
    model = _run().model
    of_model = {id(each) for each in model.weights}  # type: ignore[attr-defined]
    if id(variable) in of_model:
        return f"{model.name_of(variable)}:0"
    return str(variable.name)
