"""Saves a Keras model with the names that an estimator would use, and warm-starts models."""

from __future__ import annotations

import collections
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import checkpoint_names, errors
from tf2_engine.keras.rule_optimizer import RuleOptimizerBase, value_of
from tf2_engine.types import Object, Variable


class SlotRow(NamedTuple):
    """How checkpoints name the slots of a Keras optimizer.

    Attributes:
        slots: maps each slot's name in Keras to its names in `tf.compat.v1.train` and in
            `tf.keras.optimizers.legacy`.
        numbers: the settings that the legacy Keras optimizer stores as variables.
        name: the optimizer's name in checkpoints; "" stands for the name of its class.
    """

    slots: Mapping[str, tuple[str, str]]
    numbers: tuple[str, ...]
    name: str = ""


_FTRL = (
    *("learning_rate", "decay", "beta", "learning_rate_power"),
    *("l1_regularization_strength", "l2_regularization_strength"),
)
_SGD = ("learning_rate", "decay", "momentum")
_RMSPROP = ("learning_rate", "decay", "rho", "momentum")

_ROWS: Mapping[str, SlotRow] = {
    "Adam": SlotRow(
        {
            "m": ("Adam", "m"),
            "momentum": ("Adam", "m"),
            "v": ("Adam_1", "v"),
            "velocity": ("Adam_1", "v"),
        },
        ("learning_rate", "decay", "beta_1", "beta_2"),
    ),
    "Adagrad": SlotRow({"accumulator": ("Adagrad", "accumulator")}, ("learning_rate", "decay")),
    "Ftrl": SlotRow(
        {"accumulator": ("Ftrl", "accumulator"), "linear": ("Ftrl_1", "linear")}, _FTRL
    ),
    "SGD": SlotRow({}, _SGD),
    "FTRL": SlotRow(
        {"accumulators": ("Ftrl", "accumulator"), "linears": ("Ftrl_1", "linear")}, _FTRL, "Ftrl"
    ),
    "KerasMomentum": SlotRow({"momenta": ("", "momentum")}, _SGD, "SGD"),
    "KerasRMSProp": SlotRow({"ms": ("", "rms")}, _RMSPROP, "RMSprop"),
    "Momentum": SlotRow({"momenta": ("Momentum", "")}, (), "Momentum"),
    "RMSProp": SlotRow(
        {"ms": ("RMSProp", "rms"), "mom": ("RMSProp_1", "momentum")}, _RMSPROP, "RMSprop"
    ),
}
"""Maps the class name of a Keras optimizer, or of the rule in a `RuleOptimizer`, to its slots."""


def _class_name(optimizer: Object) -> str:
    kind = type(_rule_of(optimizer)).__name__
    return _ROWS[kind].name or kind if kind in _ROWS else kind


def _slots_of(optimizer: Object) -> dict[tuple[str, str], list[Variable]]:
    row = _ROWS.get(type(_rule_of(optimizer)).__name__)
    known = {} if row is None else row.slots
    if isinstance(optimizer, RuleOptimizerBase):
        pairs = optimizer.slots().items()
        return {
            known.get(name, (name, name)): [value_of(each) for each in of] for name, of in pairs
        }
    variables_of: dict[tuple[str, str], list[Variable]] = {}
    variables = optimizer.variables
    for variable in variables() if callable(variables) else variables:
        slot = _slot_of(variable, known)
        if slot is not None:
            variables_of.setdefault(slot, []).append(value_of(variable))
    return variables_of


def _numbers(optimizer: Object) -> Iterator[tuple[str, float]]:
    rule = _rule_of(optimizer)
    config = optimizer.get_config() if rule is optimizer else vars(rule)
    row = _ROWS.get(type(rule).__name__)
    for name in () if row is None else row.numbers:
        value = config.get(name) or 0.0
        if not isinstance(value, Mapping) and not callable(value):  # Not a schedule.
            yield name, float(value)


def _rule_of(optimizer: Object) -> Object:
    return optimizer.rule if isinstance(optimizer, RuleOptimizerBase) else optimizer


def _iterations(optimizer: Object) -> Variable:
    return value_of(optimizer.iterations)


def _slot_of(variable: Object, known: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    path = getattr(variable, "path", None)
    if path is None:
        # The name may start with the optimizer's name.
        return next((known[part] for part in variable.name.split("/")[:2] if part in known), None)
    return known.get(path.rpartition("_")[2])


COMPUTED = {"beta1_power": "beta_1", "beta2_power": "beta_2"}
"""Maps each variable of legacy Adam to the setting of Keras' Adam from which it is computed."""

SLOT_NAMES = "{variable}/{slot}"
"""The default names of slots, as in `tf.compat.v1.train`."""


class ModelCheckpoints:
    """Saves and restores a `TableModel`, as `Checkpoint(embedding, global_step, variables)`.

    `names` maps names of layers to names in checkpoints, where the names differ.
    """

    def __init__(
        self,
        model: Object,
        directory: str,
        names: Mapping[str, str],
        save_steps: int | None,
        max_to_keep: int,
        slot_names: str = SLOT_NAMES,
    ) -> None:
        self._model, self.directory, self._names = model, directory, names
        self.save_steps, self._max_to_keep = save_steps, max_to_keep
        self._manager: Object = None
        self._slot_names = slot_names
        self._powers: dict[str, Variable] = {}
        self._numbers: dict[str, Variable] = {}

    def latest(self) -> str | None:
        path: str | None = tf.train.latest_checkpoint(self.directory)
        return path

    def restore_latest(self) -> None:
        variables = self.variables()
        saved = tf.Module()
        for name, variable in variables.items():
            setattr(saved, name, variable)
        embedding = self._model.with_tables
        engine = embedding.tables.embedding
        checkpoint = tf.train.Checkpoint(
            embedding=engine, global_step=embedding.step, variables=saved
        )
        self._manager = tf.train.CheckpointManager(
            checkpoint, self.directory, self._max_to_keep, checkpoint_name="model.ckpt"
        )
        latest = self.latest()
        if latest is None:
            return
        tables = [each.plan for each in engine.tables.values()]
        checkpoint_names.check_converted(latest, self.directory, tables, "div")
        checkpoint_names.check_complete(latest, variables)
        checkpoint.restore(latest).assert_existing_objects_matched().expect_partial()
        self.count_steps()

    def save(self) -> None:
        step = self._model.with_tables.step
        adams = [each for each in self._model.optimizers if type(each).__name__ == "Adam"]
        for name, variable in self._powers.items():
            beta = getattr(adams[0], COMPUTED[name])
            variable.assign(float(beta) ** (self._model.global_step + 1.0))
        self._manager.save(step)

    def variables(self) -> dict[str, Variable]:
        return dict(self._named())

    def count_steps(self) -> None:
        step = self._model.with_tables.step
        for optimizer in self._model.optimizers:
            iterations = _iterations(optimizer)
            iterations.assign(tf.cast(step, iterations.dtype))

    def callback(self, max_steps: int | None, save_steps: int | None) -> Object:
        bases = (_SavedModelSteps, tf.keras.callbacks.Callback)
        return type("SavedModelSteps", bases, {})(self._model, self, max_steps, save_steps)

    def _named(self) -> Iterator[tuple[str, Variable]]:
        model = self._model
        of_metrics = [each for metric in model.metrics for each in metric.variables]
        others = {id(each) for each in (*model.with_tables.weights, *of_metrics)}
        for variable in model.weights:
            if id(variable) not in others:
                yield model.name_of(variable), value_of(variable)
        for optimizer in self._model.optimizers:
            yield from self._slots(optimizer)
        if "{optimizer}" in self._slot_names:
            yield from self._settings()
        elif any(type(optimizer).__name__ == "Adam" for optimizer in self._model.optimizers):
            if not self._powers:
                make = functools.partial(tf.Variable, 0.0, trainable=False)
                self._powers = {name: make(name=name) for name in COMPUTED}
            for name, power in self._powers.items():
                yield self._names.get(name, name), power

    @property
    def computed(self) -> list[str]:
        return [self._names.get(name, name) for name in COMPUTED]

    def _slots(self, optimizer: Object) -> Iterator[tuple[str, Variable]]:
        trained = self._model.trained_by(optimizer)
        for (name, keras_name), variables in _slots_of(optimizer).items():
            for variable, of in zip(variables, trained, strict=True):
                parts = {
                    "optimizer": self._optimizer_names[id(optimizer)],
                    "variable": self._model.name_of(of),
                }
                key = self._slot_names.format(**parts, slot=name, keras_slot=keras_name)
                yield key, variable

    @property
    def _optimizer_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        counts: collections.Counter[str] = collections.Counter()
        for optimizer in self._model.optimizers:
            kind = _class_name(optimizer)
            names[id(optimizer)] = f"{kind}_{counts[kind]}" if counts[kind] else kind
            counts[kind] += 1
        return names

    def _settings(self) -> Iterator[tuple[str, Variable]]:
        for position, optimizer in enumerate(self._model.optimizers):
            scope = self._slot_names.partition("/{variable}")[0]
            prefix = scope.format(optimizer=self._optimizer_names[id(optimizer)])
            for name, value in _numbers(optimizer):
                key = f"{prefix}/{name}"
                if key not in self._numbers:
                    self._numbers[key] = tf.Variable(value, trainable=False, dtype=tf.float32)
                yield key, self._numbers[key]
            if position:  # The first optimizer counts the global step.
                yield f"{prefix}/iter", _iterations(optimizer)


class _SavedModelSteps:
    def __init__(
        self, model: Object, checkpoints: Object, max_steps: int | None, save_steps: int | None
    ) -> None:
        super().__init__()
        self._of, self._checkpoints = model, checkpoints
        self._max_steps, self._save_steps = max_steps, save_steps
        self._first, self._saved = 0, -1

    def on_train_begin(self, logs: Object = None) -> None:
        self._first = self._of.global_step

    def on_train_batch_end(self, batch: int, logs: Object = None) -> None:
        step = self._of.global_step
        if self._save_steps and (step - self._first) % self._save_steps == 0:
            self._save(step)
        if self._max_steps is not None and step >= self._max_steps:
            self._of.stop_training = True

    def on_train_end(self, logs: Object = None) -> None:
        self._save(self._of.global_step)

    def _save(self, step: int) -> None:
        if step != self._saved:
            self._checkpoints.save()
            self._saved = step


def name_in_checkpoints(variable: Object, names: Mapping[str, str]) -> str:
    path = getattr(variable, "path", None) or variable.name.partition(":")[0]
    name = (
        path.partition("/")[2] or path
    )  # A variable of the model itself has no layer in its path.
    name = re.sub("_embedding_weights$", "_embedding/embedding_weights", name)
    name = re.sub(r"\.weights$", "/weights", name)
    for keras_name, other in names.items():
        if f"{name}/".startswith(f"{keras_name}/"):
            return other + name.removeprefix(keras_name)
    return str(name)


class WarmStart(NamedTuple):
    """A checkpoint, and the variables and tables that get initial values from it.

    Attributes:
        checkpoint: a checkpoint of an estimator or of `convert`, or its directory.
        names: a regular expression. If it matches the start of a name, the variable or table gets
            its initial value from the checkpoint.
        old_names: maps names in this model to other names in the checkpoint.
    """

    checkpoint: str
    names: str = ".*"
    old_names: Mapping[str, str] | None = None

    def assign(self, variables: Mapping[str, Variable], engine: Object = None) -> None:
        reader = tf.train.load_checkpoint(self.checkpoint)
        shapes = reader.get_variable_to_shape_map()
        for name, variable in variables.items():
            if re.match(self.names, name):
                self._assign(name, variable, checkpoint_names.key_of_variable, reader, shapes)
        tables = list(self._tables(engine))
        for name, variable in tables:
            self._assign(name, variable, checkpoint_names.key_of_table, reader, shapes)
        if tables:
            engine.load()

    def _tables(self, engine: Object) -> Iterator[tuple[str, Variable]]:
        for table, variable in {} if engine is None else engine.embedding_tables.items():
            name = str(getattr(table, "name", table))
            known_as = checkpoint_names.in_legacy_programs(name)
            if any(re.match(self.names, each) for each in known_as):
                yield name, variable

    def _assign(
        self, name: str, variable: Variable, key_of: Object, reader: Object, shapes: Object
    ) -> None:
        old = (self.old_names or {}).get(name, name)
        converted = key_of(old)
        key = converted if converted in shapes else old
        if list(shapes.get(key, ())) != variable.shape.as_list():
            found = f"the shape there is {shapes[key]}" if key in shapes else "it is missing there"
            raise errors.InvalidInput(
                f"The variable {name} of shape {variable.shape} cannot start with {old} from "
                f"{self.checkpoint}: {found}. Select other variables with `names`, or state in "
                "`old_names` which name the variable has in the checkpoint."
            )
        variable.assign(reader.get_tensor(key))


def warm_start(
    checkpoint: Object, names: str = ".*", old_names: Mapping[str, str] | None = None
) -> WarmStart:
    if isinstance(checkpoint, WarmStart):
        return checkpoint
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise errors.WrongType(
            f"`warm_start_from`: {checkpoint!r} is not a path. Pass the path of a checkpoint. If "
            "you have an estimator's WarmStartSettings, pass its `ckpt_to_initialize_from` as the "
            "path, `vars_to_warm_start` as `names`, and `var_name_to_prev_var_name` as `old_names`."
        )
    return WarmStart(os.fspath(checkpoint), names, dict(old_names or {}))
