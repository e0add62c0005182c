"""The protocol buffers and element types of checkpoints, to read them without TensorFlow.

Reference: tensor_bundle.proto, tensor_shape.proto, tensor_slice.proto, types.proto,
trackable_object_graph.proto and checkpoint_state.proto of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import numpy.typing as npt

from tf2_engine import described_protos

_CLASSES = described_protos.message_classes(
    "estimator_bridge.checkpoint_files",
    {
        "Version": "int32 producer = 1",
        "BundleHeader": "int32 num_shards = 1; int32 endianness = 2; Version version = 3",
        "Dim": "int64 size = 1",
        "Shape": "repeated Dim dim = 2",
        "Extent": "int64 start = 1; optional int64 length = 2",
        "Slice": "repeated Extent extent = 1",
        "BundleEntry": "int32 dtype = 1; Shape shape = 2; int32 shard_id = 3; int64 offset = 4;"
        "int64 size = 5; fixed32 crc32c = 6; repeated Slice slices = 7",
        "Child": "int32 node_id = 1; string local_name = 2",
        "Attribute": "string name = 1; string full_name = 2; string checkpoint_key = 3",
        "Slot": "int32 original_variable_node_id = 1; string slot_name = 2;"
        "int32 slot_variable_node_id = 3",
        "Saver": "string name = 1; string object_name = 2",
        "Bool": "bool value = 1",
        "Node": "repeated Child children = 1; repeated Attribute attributes = 2;"
        "repeated Slot slot_variables = 3; Saver registered_saver = 4;"
        "Bool has_checkpoint_values = 5",
        "ObjectGraph": "repeated Node nodes = 1",
        "CheckpointState": "string model_checkpoint_path = 1;"
        "repeated string all_model_checkpoint_paths = 2;"
        "repeated double all_model_checkpoint_timestamps = 3; double last_preserved_timestamp = 4",
    },
)
BundleHeader = _CLASSES["BundleHeader"]
BundleEntry = _CLASSES["BundleEntry"]
ObjectGraph = _CLASSES["ObjectGraph"]
CheckpointState = _CLASSES["CheckpointState"]

LITTLE_ENDIAN = 0
"""The `endianness` that a checkpoint's header must have; other checkpoints are refused."""


@dataclasses.dataclass(frozen=True)
class ElementType:
    """The type of a tensor's elements, with TensorFlow's number and name for it."""

    number: int
    name: str

    @property
    def size(self) -> int:
        """The bytes of an element; 0 if elements differ in size, as strings do."""
        bits = re.search(r"\d+", self.name)
        return max(1, int(bits[0]) // 8) if bits else int(self.name == "bool")

    @property
    def is_integer(self) -> bool:
        return self.name.startswith(("int", "uint"))

    @property
    def as_numpy(self) -> npt.DTypeLike:
        try:
            return np.dtype(self.name)
        except TypeError:  # for example bfloat16, which comes with TensorFlow
            import tensorflow as tf

            numpy_type: npt.DTypeLike = tf.as_dtype(self.number).as_numpy_dtype
            return numpy_type


# Names in the order of the types' numbers, from 1.
_NAMES = (
    "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 "
    "bfloat16 qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64 float8_e5m2 "
    "float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4 int2 uint2 "
    "float4_e2m1fn"
)
TYPES = {number: ElementType(number, name) for number, name in enumerate(_NAMES.split(), 1)}

_BY_NAME = {each.name: each for each in TYPES.values()}
FLOAT32 = _BY_NAME["float32"]
STRING = _BY_NAME["string"]


def type_of(dtype: npt.DTypeLike) -> ElementType:
    return _BY_NAME[np.dtype(dtype).name]
