"""Variables and other objects in checkpoints and exports, in the format of stock's TPUEmbedding."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.python.distribute import sharded_variable as _sharded_variable
from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.ops import init_ops_v2 as _init_ops_v2
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
from tensorflow.python.saved_model import save_context as _save_context
from tensorflow.python.saved_model.model_utils import export_output as _export_output
from tensorflow.python.saved_model.model_utils import export_utils as _export_utils
from tensorflow.python.trackable import base as _trackable_base
from tensorflow.python.training.saving import saveable_object as _saveable_object

from tf2_engine.types import DType, Message, Nest, Object, Op, Tensor, Variable


def in_saved_model_export() -> bool:
    """Whether a function is being traced for a SavedModel, which can contain no queue or driver."""
    return not tf.executing_eagerly() and bool(_save_context.in_save_context())


def saved_model_export() -> contextlib.AbstractContextManager[None]:
    context: contextlib.AbstractContextManager[None] = _save_context.save_context(
        tf.saved_model.SaveOptions()
    )
    return context


export_outputs: Callable[[Object, Nest], dict[str, Object]] = _export_utils.get_export_outputs
"""Checks a model's export outputs; if there are none, creates one from the predictions."""


def export_output_classes() -> dict[str, type]:
    names = ("ExportOutput", "ClassificationOutput", "RegressionOutput", "PredictOutput")
    return {name: getattr(_export_output, name) for name in (*names, "EvalOutput")}


def signature_defs(mode: str, spec: Object, receiver: Object) -> dict[str, Message]:
    """Maps names to the signatures of an exported graph, as stock's estimators do.

    `mode` is "train", "eval" or "infer". `receiver` has `receiver_tensors`, and optionally
    `receiver_tensors_alternatives`.
    """
    outputs = _export_utils.export_outputs_for_mode(
        mode=mode,
        serving_export_outputs=spec.export_outputs,
        predictions=spec.predictions,
        loss=spec.loss,
        metrics=spec.eval_metric_ops,
    )
    signatures = _export_utils.build_all_signature_defs(
        receiver.receiver_tensors,
        outputs,
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=mode == "infer",
    )
    return dict(signatures)


class SavedTensor(tf.__internal__.tracking.AutoTrackable):
    """An object that is saved in a checkpoint as one float32 variable."""

    _self_setattr_tracking = False  # Attributes are not part of the checkpoint.

    def slices(self) -> Sequence[Object]:
        """Lists the parts to write and to read, each with three attributes.

        `spec` identifies the part in the form of `tf.Variable.SaveSliceInfo.spec` ("" means the
        whole tensor). `read` is called just before the part is written, and returns its value.
        `device` is the device of the value.
        """
        raise NotImplementedError

    def restore(self, values: list[Tensor]) -> Op:
        """Assigns values to the parts. In a graph, returns the op that does so."""
        raise NotImplementedError

    def snapshot(self, old: SavedTensor | None) -> SavedTensor:
        """Copies the object for an asynchronous checkpoint, or updates the existing copy `old`."""
        raise NotImplementedError

    # The newer `_serialize_to_tensors` does not work here: it restores only the first of several
    # slices (TrackableSaveable.restore in saveable_object_util.py, 2.15 and 2.21).
    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Object]]:
        return {"VARIABLE_VALUE": lambda name="": _SaveableOfSlices(self, name)}

    def _copy_trackable_to_cpu(self, object_map: Object) -> None:
        object_map[self] = self.snapshot(object_map.get(self))


class _SaveableOfSlices(_saveable_object.SaveableObject):
    def __init__(self, owner: SavedTensor, name: str) -> None:
        self._owner = owner
        specs = [
            _saveable_object.SaveSpec(
                part.read, part.spec, name, dtype=tf.float32, device=part.device
            )
            for part in owner.slices()
        ]
        super().__init__(owner, specs, name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: object) -> Op:
        return self._owner.restore(list(restored_tensors))


class CheckpointedEmbedding(tf.tpu.experimental.embedding.TPUEmbedding):
    """An object that is saved and restored as a stock TPUEmbedding, without stock's constructor.

    TensorFlow registers a saver for stock's class, and checkpoints contain the saver's name. The
    saver runs code of that class before a save and after a restore. If a checkpoint lacks the name,
    a restore does not run this code, so a stock engine that is already built keeps its old rows.
    """

    _self_setattr_tracking = False  # Only what is passed to `_track` is tracked.
    # An asynchronous checkpoint reads these attributes of the copy that is created below.
    _feature_config: Nest = None
    _table_config: Sequence[Object] = ()
    _pipeline_execution_with_tensor_core = False

    exported_instead: Mapping[str, Variable] | None = None
    """The variables that a SavedModel contains instead of the tables; set only during an export."""

    def _before_save(self) -> Op: ...

    def _after_restore(self) -> Op: ...

    def _exported(self) -> dict[str, Variable]:
        raise NotImplementedError

    def _track(self, name: str, child: object) -> None:
        self._track_trackable(child, name, overwrite=True)

    def _retrieve_variables(self) -> None:
        if not in_saved_model_export():
            self._before_save()

    # An asynchronous checkpoint retrieves tables only after it has copied the variables, which is
    # too late. But it copies the engine before the tables, so the tables are retrieved here.
    def _copy_trackable_to_cpu(self, object_map: Object) -> None:
        self._before_save()

    def _load_variables(self) -> None:
        if not in_saved_model_export():
            self._after_restore()

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: object
    ) -> dict[str, Object]:
        if save_type == "savedmodel":
            return self._exported() if self.exported_instead is None else {**self.exported_instead}
        return dict(super()._trackable_children(save_type, **kwargs))

    def _create_copy_for_async_checkpoint(self, **_: object) -> Object:
        # Replaces the engine while copies of its tables are written, so that no retrieval runs.
        return CheckpointedEmbedding.__new__(CheckpointedEmbedding)


def plain_variable(**arguments: object) -> Variable:
    """Creates a single resource variable under any strategy.

    Under MirroredStrategy, `tf.Variable` would create a copy per replica. Keras optimizers check
    that a variable belongs to the strategy; the variable from this function passes the check.
    """
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    return _resource_variable_ops.ResourceVariable(distribute_strategy=strategy, **arguments)


ShardInfo = _trackable_base.ShardInfo
"""The type of the argument `shard_info` of stock's initializers, for users' annotations."""


# The base class of stock's sharded tables. The public class is a composite tensor.
class ShardedTable(_sharded_variable.ShardedVariableMixin):
    """The shards of a table, each with consecutive rows, as one variable [rows, dim].

    It can be read, assigned and saved like stock's tables, and Keras optimizers can create slots
    for it.
    """

    name: str
    dtype: DType
    variables: list[Variable]

    @property
    def _in_graph_mode(self) -> bool:
        return bool(self.variables[0]._in_graph_mode)

    def __tf_tensor__(self, dtype: DType | None = None, name: str | None = None) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(f"{self.name} is {self.dtype.name}, and cannot be read as {dtype}.")
        return tf.concat([shard.read_value() for shard in self.variables], 0, name or "read")


@functools.cache
def initializers() -> dict[str, type]:
    return {
        f"{generation}.{name}": kind
        for generation, module in (("v1", _init_ops), ("v2", _init_ops_v2))
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, module.Initializer)
        # The module also contains aliases, which are skipped.
        if kind.__name__ == name
    }
