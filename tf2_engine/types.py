"""Types for annotations, which type checkers can read without TensorFlow.

If a list or a string is passed as a tensor, a type checker reports an error. The result of a
TensorFlow function can be passed as any of these types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

Nest: TypeAlias = Any
"""Tensors, or other leaves, in nested dicts, lists, tuples and dataclasses; see `tf.nest`."""

Op: TypeAlias = Any
"""A `tf.Operation` or tensor that a caller must run in a graph, or None if nothing is to run."""

Object: TypeAlias = Any
"""An object of a foreign class, or of several possible classes, whose attributes are only read."""

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
    """A numpy array of any dtype."""

    class _OfTensorFlow:
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    class DType(_OfTensorFlow):
        """A `tf.DType`."""

    class TensorShape(_OfTensorFlow):
        """A `tf.TensorShape`."""

        def __getitem__(self, key: Any) -> Any: ...

    class Graph(_OfTensorFlow):
        """A `tf.Graph`."""

    class Session(_OfTensorFlow):
        """A `tf.compat.v1.Session`, or a monitored one."""

    class Dataset(_OfTensorFlow):
        """A `tf.data.Dataset`."""

    class Strategy(_OfTensorFlow):
        """A `tf.distribute.Strategy`."""

    class Message(_OfTensorFlow):
        """A protocol buffer."""

    class Tensor(_OfTensorFlow):
        """A `tf.Tensor`, eager or in a graph."""

        dtype: DType
        shape: TensorShape

        def __add__(self, other: TensorLike) -> Tensor: ...

        __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __add__
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __add__
        __and__ = __or__ = __lt__ = __le__ = __gt__ = __ge__ = __add__

        def __neg__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...
        def __len__(self) -> int: ...
        def __bool__(self) -> bool: ...
        def __int__(self) -> int: ...
        def __float__(self) -> float: ...

    class SparseTensor(_OfTensorFlow):
        """A `tf.SparseTensor`."""

        dtype: DType
        shape: TensorShape
        indices: Tensor
        values: Tensor
        dense_shape: Tensor

    class RaggedTensor(_OfTensorFlow):
        """A `tf.RaggedTensor`."""

        dtype: DType
        shape: TensorShape
        values: Tensor

    class Variable(Tensor):
        """A `tf.Variable`."""

        name: str

else:
    Array = DType = Dataset = Graph = Message = Session = Strategy = TensorShape = Any
    Tensor = SparseTensor = RaggedTensor = Variable = Any

TensorLike: TypeAlias = Union["Tensor", Array, "np.generic", float, int, bool]
"""A number or an array of numbers, as accepted by `tf.convert_to_tensor`."""

Ids: TypeAlias = Union["Tensor", "SparseTensor", "RaggedTensor"]
"""The ids or weights of a feature as users pass them."""

Initializer: TypeAlias = Callable[..., "Tensor"]
"""Computes the initial values of a table from a shape and a dtype."""

Function: TypeAlias = Callable[..., Object]
"""A function of the user's program, with any arguments."""

Rate: TypeAlias = float | Callable[[], "TensorLike"]
"""A learning rate: a constant, or a function that is called once per step."""

FeatureIds: TypeAlias = Mapping[str, "Ids"] | Sequence["Ids"]
"""The features that an `input_fn` returns: a dict keyed by name, or a sequence."""
