"""Access to internals in which Keras 2 and 3 differ: optimizers, layer names, models."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
import tensorflow.compat.v2 as tf_v2

from tf2_engine.tf_compat.tpu import patched
from tf2_engine.types import Graph, Object, Op, Tensor, TensorLike


def keras2() -> Object:
    if tf.__version__.startswith("2.15."):
        return tf.keras
    import tf_keras

    return tf_keras


def keras2_v1() -> Object:
    if tf.__version__.startswith("2.15."):
        return tf.compat.v1.keras
    from tf_keras.api._v1 import keras

    return keras


_KEEPS_CONSTANTS = "_UNSAFE_GRAPH_OP_LAYER_CREATION"


@contextlib.contextmanager
def keras_of_graphs() -> Iterator[None]:
    """Makes Keras 2 create layers and symbolic inputs in the default graph, as in TensorFlow 1.

    In the graphs of `tf.compat.v1.wrap_function`, Keras creates layers of TensorFlow 1. Without
    this context, these layers do not accept Keras's symbolic inputs, so no model can contain them.
    """
    name = "executing_eagerly_outside_functions"
    stock = tf.compat.v1.executing_eagerly_outside_functions

    engine = keras2().layers.Layer.__module__.rpartition(".")[0]
    keras = engine.partition(".")[0]

    def answer() -> bool:
        asking = sys._getframe(1).f_globals["__name__"]
        # `tf.layers` has to know that its variables are eager; otherwise it cannot regularize them.
        is_keras = asking.startswith(f"{keras}.") and not asking.endswith(".legacy_tf_layers.base")
        return not is_keras and stock()

    with (
        # Keras calls the function sometimes in one of these modules, and sometimes in the other.
        patched(tf.compat.v1, name, answer),
        patched(tf_v2.compat.v1, name, answer),
        # If an op combines a constant and a symbolic input, Keras would need a session to evaluate
        # the constant. With this flag, it keeps the tensor.
        patched(sys.modules[f"{engine}.base_layer_utils"], _KEEPS_CONSTANTS, True),
    ):
        yield


def v1_layers() -> Object:
    return keras2_v1().__internal__.legacy.layers


def update_of_metric(metric: Object) -> Op | None:
    """Returns the op that updates a Keras metric, or None if nothing updates it.

    In a function's graph, Keras does not list updates. There, the updates are all ops that have a
    variable of the metric as an input, except reads.
    """
    graph = tf.compat.v1.get_default_graph()
    if metric.updates or not hasattr(graph, "capture"):
        return metric.updates[0] if metric.updates else None
    handles = {graph.capture(each.handle).name for each in metric.variables}
    updates = [
        op
        for op in graph.get_operations()
        if op.type != "ReadVariableOp" and not handles.isdisjoint(each.name for each in op.inputs)
    ]
    return tf.group(*updates) if updates else None


broadcast_weights: Callable[[TensorLike, Tensor], Tensor] = tf.__internal__.ops.broadcast_weights


def tf1_style_regularizers(module: Object) -> dict[str, Callable[[], Tensor | None]]:
    """Maps the names of variables to functions that compute their regularization losses."""
    store = getattr(module, "_tf1_style_var_store", None)
    return {} if store is None else store._regularizers


def in_keras_construction() -> bool:
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and "scratch_graph" in str(getattr(graph, "name", ""))


def keras_learning_rate(optimizer: Object) -> Object:
    """Returns the learning rate that a Keras optimizer was created with, a schedule or a value.

    (If a newer Keras 2 optimizer has a schedule, `learning_rate` is the rate of the previous step.)
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if callable(rate) else optimizer.learning_rate


def start_keras_optimizer(
    optimizer: Object, start: Callable[..., None], learning_rate: object, name: str
) -> None:
    if hasattr(optimizer, "_build_learning_rate"):  # Keras 2
        start(name=name, jit_compile=False)
        optimizer._learning_rate = optimizer._build_learning_rate(learning_rate)
    else:
        start(learning_rate=learning_rate, name=name)


def keras_variable_index(optimizer: Object, variable: object) -> int:
    if hasattr(optimizer, "_get_variable_index"):
        return int(optimizer._get_variable_index(variable))
    return int(optimizer._index_dict[optimizer._var_key(variable)])  # Keras 2


def remember_keras_names(graph: Graph) -> Callable[[], None]:
    """Returns a function that resets the counters in Keras layer names to their present state.

    A model that is traced once per core must have the same names on every core.
    """

    def counters() -> dict[str, dict[str, int]]:
        per_graph = {
            name: getattr(sys.modules.get(name), "PER_GRAPH_OBJECT_NAME_UIDS", {})
            for name in ("keras.src.backend", "tf_keras.src.backend")
        }
        return {name: graphs[graph] for name, graphs in per_graph.items() if graph in graphs}

    saved = {name: dict(counter) for name, counter in counters().items()}

    def restore() -> None:
        for name, counter in counters().items():
            counter.clear()
            counter.update(saved.get(name, {}))

    return restore


def flat_layers(model: Object) -> list[Object]:
    return list(model._flatten_layers())


def is_graph_network(model: Object) -> bool:
    return bool(model._is_graph_network)


def has_keras_weights(model: Object) -> bool:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return True
    weights = itertools.chain.from_iterable(layer.weights for layer in model.layers)
    return any(hasattr(weight, "_keras_initialized") for weight in weights)


def weigh_losses(model: Object, weights: Sequence[Tensor | None]) -> None:
    model._compile_weights_loss_and_weighted_metrics(weights)


def keras_train_op(model: Object, is_training: bool) -> Op | None:
    if not is_training:
        model._make_test_function()
        return None
    model._make_train_function()
    return model.train_function.updates_op


def compiled_metrics(model: Object) -> list[Object] | None:
    if not getattr(model, "_compile_metrics", None):
        return None
    return list(model._compile_metric_functions)


def restore_reset_model(model: Object, clone: Object) -> None:
    """Gives a program's Keras model its layers back if cloning moved them to the clone."""
    reset = getattr(model, "_original_attributes_cache", None) is not None
    if reset and not is_graph_network(clone):
        keras2().__internal__.models.in_place_subclassed_model_state_restoration(model)


def track(model: Object, name: str, value: object) -> None:
    model._track_trackable(value, name)
