"""Keeps the variables that a model_fn creates, under legacy names; creates each variable once."""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.types import Array, Object, Tensor, Variable

v1 = tf.compat.v1

DUMMY_PREFIX = "tpu_embedding_dummy_table_variable_"
"""The prefix of the names of dummy variables. A dummy in a `var_list` represents a table."""

Result = TypeVar("Result")


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.models: list[ModelVariables] = []


_here = _OfThread()


def create_dummies(tables: Iterable[str]) -> dict[str, Variable]:
    return {table: tf.Variable([0.0], name=f"{DUMMY_PREFIX}{table}") for table in tables}


def name_of(variable: Variable) -> str:
    return str(variable.name.partition(":")[0])


def current() -> ModelVariables:
    """Returns the variables of the model whose model_fn is being called."""
    if not _here.models:
        raise errors.OutOfOrder(
            "tf2_engine.training's functions for models can only be called inside a model_fn that "
            "a Trainer calls."
        )
    return _here.models[-1]


def trainable() -> list[Variable]:
    return [each for each in current().variables.values() if each.trainable]


@functools.cache
def _scope_class() -> type[tf.Module]:
    """Creates the class of scopes in which `get_variable` and `tf.layers` reuse variables.

    The class is created with the first model, so a process without Keras 2 can import this module.
    """
    keras = tf_compat.keras2_v1()

    class TF1Scope(tf.Module):
        @keras.utils.track_tf1_style_variables
        def __call__(self, function: Callable[[], Result]) -> Result:
            # Each call numbers unnamed layers from the start.
            keras.backend.reset_uids()
            scope = v1.variable_scope(v1.get_variable_scope(), custom_getter=_in_collections)
            with scope:
                return function()

    return TF1Scope


def _check_is_of_keras_2(error: Exception) -> None:
    is_of_layer = any(each in str(error) for each in ("with Keras 3", "singleton tf.Variables"))
    if is_of_layer and not tf.keras.__version__.startswith("2."):
        raise errors.OutOfOrder(
            "The model_fn creates layers, which a Trainer can train only with Keras 2, but "
            "tf.keras is Keras 3. Set the environment variable TF_USE_LEGACY_KERAS=1, or call "
            "`estimator_bridge.install.use_legacy_keras()` before tf.keras is first used."
        ) from error


def _in_collections(getter: Callable[..., Variable], *args: Object, **settings: Object) -> Variable:
    collections = settings.get("collections")

    def create(make: Callable[..., Variable], **others: Object) -> Variable:
        return make(**{**others, "collections": collections})

    with tf.variable_creator_scope(create):
        variable = getter(*args, **settings)
    model, regularizer = current(), settings.get("regularizer")
    if not _is_local(collections):  # The scope reuses variables without calling creators.
        # A model_fn may pass a different value in each mode, as in trainable=mode == TRAIN.
        model.collect(variable, collections, trainable=settings.get("trainable"))
    if regularizer is not None:
        model.regularize(variable, regularizer)
    return variable


def _is_local(collections: Sequence[str] | None) -> bool:
    # Keras metrics are in no collection.
    return collections == [] or v1.GraphKeys.LOCAL_VARIABLES in (collections or ())


class ModelVariables:
    """The variables that calls to a model_fn create for the model and its optimizers.

    Attributes:
        variables: maps legacy names to variables.
        of_dummies: maps names to the slots of dummy variables. Checkpoints do not contain them.
        local: variables in the collection of local variables, such as those of metrics. They are
            not saved.
        averaged: maps the name of each average to the name of the averaged variable.
        starts: maps a variable's name to the checkpoint that holds the variable's initial value,
            and to the variable's name in that checkpoint.
        regularizers_of_scopes: maps a variable's name to a function that computes its
            regularization loss, with the regularizer that the latest call gave to the variable
            scope. The variable's layer may have a different regularizer.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.of_dummies: dict[str, Variable] = {}
        self.local: dict[str, Variable] = {}
        self._local_starts: dict[str, Array] = {}
        self.averaged: dict[str, str] = {}
        self.starts: dict[str, tuple[str, str]] = {}
        self.regularizers_of_scopes: dict[str, functools.partial[Tensor | None]] = {}
        self._all: list[Variable] = []
        self._trainable: list[Variable] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._scope = _scope_class()("tf1_scope")

    @contextlib.contextmanager
    def graph_collections(
        self, step: Variable, of_tables: Sequence[Variable] = ()
    ) -> Iterator[None]:
        """Fills the collections of a graph with the step and the variables that a call has used.

        `of_tables`, the dummy variables of tables, come first among the trainable variables.
        """
        collection = v1.get_collection_ref
        collection(v1.GraphKeys.GLOBAL_STEP)[:] = [step]
        references = [
            collection(key)
            for key in (v1.GraphKeys.TRAINABLE_VARIABLES, v1.GraphKeys.GLOBAL_VARIABLES)
        ]
        before = [list(each) for each in references]
        self._trainable, self._all = references
        self._trainable[:], self._all[:] = of_tables, [step]
        try:
            yield
        finally:
            for reference, contents in zip(references, before, strict=True):
                reference[:] = contents

    def call(self, function: Callable[[], Result]) -> Result:
        self._forget_regularizers()
        _here.models.append(self)
        try:
            with self._creating_once():
                return self._scope(function)
        except (AttributeError, ValueError) as error:
            _check_is_of_keras_2(error)
            raise
        finally:
            _here.models.pop()

    def collect(
        self,
        variable: Variable,
        named: Sequence[str] | None = None,
        *,
        trainable: bool | None = None,
    ) -> None:
        """Adds a variable that a model_fn creates or reuses to collections.

        `named` are the collections that the model_fn asks for, under any names. `trainable` says
        whether this call trains the variable. If None, the variable's own setting decides.
        """
        keys = {v1.GraphKeys.GLOBAL_VARIABLES: self._all}
        if variable.trainable if trainable is None else trainable:
            keys[v1.GraphKeys.TRAINABLE_VARIABLES] = self._trainable
        for key in (*keys, *(named or ())):
            contents = keys.get(key, v1.get_collection_ref(key))
            # A graph that adds new variables to its collections has already done so.
            if all(each is not variable for each in contents):
                contents.append(variable)

    def average_of(self, variable: Variable, name: str) -> Variable:
        known = self._holding(name)
        if name not in known:
            # Initial values must not depend on the preceding update.
            with v1.name_scope(None), v1.control_dependencies(None):
                tf.Variable(
                    tf.zeros(variable.shape, variable.dtype),
                    trainable=False,
                    name=name,
                    # All replicas compute the same value.
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
            if known is self.variables:
                self.averaged[name] = name_of(variable)
        self.collect(known[name])
        return known[name]

    def start_local(self) -> None:
        for name, variable in self.local.items():
            variable.assign(self._local_starts.setdefault(name, variable.numpy()))

    def _holding(self, name: str) -> dict[str, Variable]:
        return self.of_dummies if DUMMY_PREFIX in name else self.variables

    def regularize(self, variable: Variable, regularizer: Callable[..., Tensor | None]) -> None:
        if variable.name not in self.regularizers_of_scopes:
            loss = functools.partial(regularizer, variable)
            self.regularizers_of_scopes[variable.name] = loss
            # The scope has regularizers of the variables that it creates, but not of those that it
            # reuses.
            tf_compat.tf1_style_regularizers(self._scope).setdefault(variable.name, loss)

    def regularizers(self) -> Iterator[tuple[str, Callable[[], Tensor | None]]]:
        for name, latest in tf_compat.tf1_style_regularizers(self._scope).items():
            of_scope = self.regularizers_of_scopes.get(name)
            if of_scope is not None and of_scope.func is not getattr(latest, "func", None):
                yield name, of_scope
            yield name, latest

    def _forget_regularizers(self) -> None:
        self.regularizers_of_scopes.clear()
        known = tf_compat.tf1_style_regularizers(self._scope)
        for name in [each for each in known if ":" in each]:  # Other names are of layers.
            del known[name]

    def call_in_graph(self, function: Callable[[], Result]) -> Result:
        self._counts.clear()

        def record(create: Callable[..., Variable], **settings: Object) -> Variable:
            name = self._numbered(settings["name"])
            self.variables[name] = variable = create(**settings)
            return variable

        _here.models.append(self)
        try:
            with v1.variable_creator_scope(record):
                return function()
        finally:
            _here.models.pop()

    @contextlib.contextmanager
    def _creating_once(self) -> Iterator[None]:
        self._counts.clear()
        outside = tf.get_current_name_scope()

        def create_once(create: Callable[..., Variable], **settings: Object) -> Variable:
            name = self._numbered(settings["name"], outside)
            collections = settings.get("collections")
            is_local = _is_local(collections)
            known = self.local if is_local else self._holding(name)
            if name not in known:
                # Makes initial values with equal seeds equal, as for the ops in a graph.
                tf_compat.restart_random_ops()
                with v1.name_scope(None):
                    known[name] = create(**{**settings, "name": name})
            if known is self.variables:
                self.collect(known[name], collections)
            return known[name]

        with tf.variable_creator_scope(create_once):
            yield

    def _numbered(self, name: str, outside: str = "") -> str:
        scope = tf.get_current_name_scope().removeprefix(outside).strip("/")
        base = f"{scope}/{name}".strip("/")
        number = self._counts[base]
        self._counts[base] += 1
        return f"{base}_{number}" if number else base
