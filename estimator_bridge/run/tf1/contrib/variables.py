"""Variables of models: to make them, to find them by scope or name, and to restore them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.run.tf1.contrib.arg_scopes import add_arg_scope
from tf2_engine import log
from tf2_engine.types import Array, Object, Op, Session, Variable

_KEYS = tf.GraphKeys

Restore = Callable[[Session], None]
Feed = dict[Object, Array]


@add_arg_scope
def variable(
    name: str,
    shape: Object = None,
    dtype: Object = None,
    initializer: Object = None,
    regularizer: Object = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Object = None,
    device: Object = None,
    partitioner: Object = None,
    custom_getter: Object = None,
    use_resource: bool | None = None,
    synchronization: Object = tf.VariableSynchronization.AUTO,
    aggregation: Object = tf.VariableAggregation.NONE,
) -> Variable:
    """Makes a variable by `tf.get_variable`, or reuses one; `collections` are added to its own."""
    settings = dict(locals())
    for other in ("name", "device", "custom_getter"):
        del settings[other]
    settings["collections"] = list(dict.fromkeys(collections or (_KEYS.GLOBAL_VARIABLES,)))
    with tf.device(device if isinstance(device, str) else None):
        return (custom_getter or tf.get_variable)(name, **settings)


@add_arg_scope
def model_variable(
    name: str,
    shape: Object = None,
    dtype: Object = tf.float32,
    initializer: Object = None,
    regularizer: Object = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    **settings: Object,
) -> Variable:
    """Makes a variable of a model, which is in the collection MODEL_VARIABLES too."""
    wanted = [*(collections or ()), _KEYS.GLOBAL_VARIABLES, _KEYS.MODEL_VARIABLES]
    return variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=wanted,
        **settings,
    )


def local_variable(
    initial_value: Object, validate_shape: bool = True, name: str | None = None
) -> Variable:
    """Makes a local variable, which no checkpoint has."""
    return tf.Variable(
        initial_value,
        trainable=False,
        collections=[_KEYS.LOCAL_VARIABLES],
        validate_shape=validate_shape,
        name=name,
    )


def add_model_variable(var: Variable) -> None:
    """Adds a variable to the collection of model variables, unless it is there."""
    if not any(each is var for each in tf.get_collection(_KEYS.MODEL_VARIABLES)):
        tf.add_to_collection(_KEYS.MODEL_VARIABLES, var)


def get_variables(
    scope: Object = None, suffix: str | None = None, collection: str = _KEYS.GLOBAL_VARIABLES
) -> list[Variable]:
    """Returns the variables of a collection below a scope whose names end with `suffix`."""
    name = scope.name if isinstance(scope, tf.VariableScope) else scope
    if suffix is not None:
        name = (name or "") + ".*" + (suffix if ":" in suffix else f"{suffix}:")
    variables: list[Variable] = tf.get_collection(collection, name)
    return variables


get_model_variables = functools.partial(get_variables, collection=_KEYS.MODEL_VARIABLES)
get_local_variables = functools.partial(get_variables, collection=_KEYS.LOCAL_VARIABLES)
get_trainable_variables = functools.partial(get_variables, collection=_KEYS.TRAINABLE_VARIABLES)


def get_variables_by_suffix(suffix: str, scope: Object = None) -> list[Variable]:
    """Returns the variables below a scope whose names end with `suffix`."""
    return get_variables(scope, suffix)


def get_variables_by_name(given_name: str, scope: Object = None) -> list[Variable]:
    """Returns the variables whose last part of the name is `given_name`."""
    suffix = f"/{given_name}:|^{given_name}:"
    return [each for each in get_variables(scope) if re.search(suffix, each.name)]


def get_unique_variable(var_op_name: str) -> Variable:
    """Returns the variable of a name; raises ValueError if there is none, or several begin so."""
    candidates = get_variables(scope=var_op_name)
    exact = [each for each in candidates if each.op.name == var_op_name]
    if not candidates or not (exact or len(candidates) == 1):
        raise ValueError(
            f"There is no single variable {var_op_name!r}: {[each.name for each in candidates]} "
            "begin so. Give the whole name of one."
        )
    return (exact or candidates)[0]


def get_variables_to_restore(
    include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[Variable]:
    """Returns the variables below the scopes of `include` (None is all) but not of `exclude`."""
    if include is None:
        wanted = get_variables()
    else:
        wanted = [each for scope in include for each in get_variables(scope)]
    left_out = {id(each) for scope in exclude or () for each in get_variables(scope)}
    return [each for each in wanted if id(each) not in left_out]


def filter_variables(
    var_list: Iterable[Variable],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Variable]:
    """Returns the variables whose names fit an include pattern, or none is given, and no exclude.

    Args:
        reg_search: a pattern may fit anywhere in the name; otherwise from its beginning.
    """
    fits = re.search if reg_search else re.match

    def any_fits(patterns: Sequence[str] | None, each: Variable) -> bool:
        return any(fits(pattern, each.op.name) for pattern in patterns or ())

    included = [
        each for each in var_list if not include_patterns or any_fits(include_patterns, each)
    ]
    return [each for each in included if not any_fits(exclude_patterns, each)]


def assign_from_values(var_names_to_values: Mapping[str, Array]) -> tuple[Op, Feed]:
    """Returns an op that assigns values to variables by name, and its feed."""
    assigned, feed = [], {}
    for name, value in var_names_to_values.items():
        target = get_unique_variable(name)
        held = tf.placeholder(target.dtype.base_dtype, value.shape, name.replace("/", "_"))
        assigned.append(target.assign(held))
        feed[held] = value.reshape(target.shape.as_list())
    return tf.group(*assigned), feed


def assign_from_values_fn(var_names_to_values: Mapping[str, Array]) -> Restore:
    """Returns a function of a session that assigns values to variables by name."""
    assign, feed = assign_from_values(var_names_to_values)
    return lambda session: session.run(assign, feed)


def assign_from_checkpoint(
    model_path: str, var_list: Object, ignore_missing_vars: bool = False
) -> tuple[Op, Feed]:
    """Returns an op that assigns the values of a checkpoint, and its feed.

    Args:
        model_path: of the checkpoint.
        var_list: variables, or by name in the checkpoint the variable, or the parts of one.
        ignore_missing_vars: passes over what the checkpoint lacks.

    Raises:
        Unmatched: the checkpoint lacks a variable, or has it in another shape.
    """
    reader = tf.train.load_checkpoint(model_path)
    assigned, feed = [], {}
    for name, targets in _by_name(var_list).items():
        if not reader.has_tensor(name):
            if ignore_missing_vars:
                log.warning("The checkpoint %s has no variable %s.", model_path, name)
                continue
            raise errors.Unmatched(f"The checkpoint {model_path} has no variable {name!r}.")
        value = reader.get_tensor(name)
        for target in targets:
            shape = target.shape.as_list()
            if value.size != target.shape.num_elements():
                raise errors.Unmatched(
                    f"{name!r} has the shape {list(value.shape)} in the checkpoint {model_path}, "
                    f"and {shape} in the graph."
                )
            held = tf.placeholder(target.dtype.base_dtype, shape)
            assigned.append(target.assign(held))
            feed[held] = value.reshape(shape)
    return tf.group(*assigned), feed


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Object,
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Restore | None:
    """Returns a function of a session that restores variables from a checkpoint.

    Args:
        model_path, var_list: as for `assign_from_checkpoint`.
        ignore_missing_vars: passes over what the checkpoint lacks; None is returned if it has none.
        reshape_variables: values of another shape are reshaped.
    """
    named = _by_name(var_list)
    if ignore_missing_vars:
        reader = tf.train.load_checkpoint(model_path)
        missing = [name for name in named if not reader.has_tensor(name)]
        for name in missing:
            log.warning("The checkpoint %s has no variable %s.", model_path, name)
            del named[name]
    if not named:
        log.warning("No variable is restored from %s.", model_path)
        return None
    saver = tf.train.Saver(
        {name: targets[0] if len(targets) == 1 else targets for name, targets in named.items()},
        reshape=reshape_variables,
        write_version=tf.train.SaverDef.V2,
    )
    return lambda session: saver.restore(session, model_path)


def _by_name(var_list: Object) -> dict[str, list[Variable]]:
    if isinstance(var_list, Mapping):
        return {
            name: list(targets) if isinstance(targets, (list, tuple)) else [targets]
            for name, targets in var_list.items()
        }
    return {each.op.name: [each] for each in var_list}
