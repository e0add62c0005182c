"""Names that TensorFlow 1 programs import from private modules."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

import tensorflow as tf
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import array_ops as _array_ops
from tensorflow.python.ops import clustering_ops as _clustering_ops
from tensorflow.python.ops import control_flow_ops as _control_flow_ops
from tensorflow.python.ops import lookup_ops as _lookup_ops
from tensorflow.python.ops import variable_scope as _variable_scope

from tf2_engine.types import Object

_MOVED: tuple[tuple[ModuleType, str, Object], ...] = (
    (_ops, "IndexedSlices", tf.IndexedSlices),
    (_ops, "Tensor", tf.Tensor),
    (_array_ops, "stack", tf.stack),
    (_array_ops, "unstack", tf.unstack),
    (_control_flow_ops, "Assert", tf.compat.v1.Assert),
    (_control_flow_ops, "case", tf.compat.v1.case),
    (_control_flow_ops, "cond", tf.compat.v1.cond),
    (_control_flow_ops, "while_loop", tf.compat.v1.while_loop),
    (_variable_scope, "variable", tf.compat.v1.Variable),
)
"""Names in private modules that tf_slim's last version and programs of that time import."""

index_table_from_tensor: Object = _lookup_ops.index_table_from_tensor
index_to_string_table_from_tensor: Object = _lookup_ops.index_to_string_table_from_tensor
"""Create lookup tables between ids and names, with the ops and names of TensorFlow 1."""

_EAGER_PROFILER = "tensorflow.python.eager.profiler"


def _eager_profiler() -> ModuleType:
    module = ModuleType(_EAGER_PROFILER)
    module.start_profiler_server = tf.profiler.experimental.server.start  # type: ignore[attr-defined]
    module.Profiler = tf.profiler.experimental.Profile  # type: ignore[attr-defined]
    return module


@contextlib.contextmanager
def names_of_tf1() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, name, value in _MOVED:
            if not hasattr(module, name):
                setattr(module, name, value)
                stack.callback(delattr, module, name)
        old = "tf_keras.legacy_tf_layers.normalization"
        if old not in sys.modules:
            new = old.replace("tf_keras.", "tf_keras.src.")
            sys.modules[old] = importlib.import_module(new)
            stack.callback(sys.modules.pop, old)
        if _EAGER_PROFILER not in sys.modules and not importlib.util.find_spec(_EAGER_PROFILER):
            sys.modules[_EAGER_PROFILER] = _eager_profiler()
            stack.callback(sys.modules.pop, _EAGER_PROFILER)
        kinds = (tf.keras.layers.BatchNormalization, tf.compat.v1.layers.BatchNormalization)
        # Both classes may come from the same package.
        bases = {each for kind in kinds for each in kind.__mro__ if "_moments" in vars(each)}
        for base in (each for each in bases if "__init_subclass__" not in vars(each)):
            base.__init_subclass__ = classmethod(_let_moments_do_without_mask)
            stack.callback(delattr, base, "__init_subclass__")
        yield


def _let_moments_do_without_mask(kind: type, /, **settings: object) -> None:
    moments = vars(kind).get("_moments")
    if moments is not None and "mask" not in inspect.signature(moments).parameters:

        @functools.wraps(moments)
        def without_mask(*args: object, mask: object = None, **kwargs: object) -> object:
            return moments(*args, **kwargs)

        setattr(kind, "_moments", without_mask)  # noqa: B010 - mypy knows of no such attribute


def legacy_tpu_class(name: str) -> type | None:
    """Returns a class of stock's tpu_embedding module, or None after TensorFlow 2.15.

    Stock checks that objects are instances of its own class.
    """
    try:
        from tensorflow.python.tpu import tpu_embedding
    except ImportError:
        return None
    legacy_class = getattr(tpu_embedding, name, None)
    home = getattr(legacy_class, "__module__", None)
    return legacy_class if home == "tensorflow.python.tpu.tpu_embedding" else None


def clustering() -> Object:
    return _clustering_ops
