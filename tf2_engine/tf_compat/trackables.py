"""Classes that save an engine in checkpoints in the format of stock's TPUEmbedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object as _saveable_object

from tf2_engine.tf_compat.export_signatures import in_saved_model_export
from tf2_engine.types import Nest, Object, Op, Tensor, Variable


class SavedTensor(tf.__internal__.tracking.AutoTrackable):
    """An object that is saved in a checkpoint as one float32 variable.

    Subclasses override `slices`, `restore` and `snapshot`.
    """

    _self_setattr_tracking = False  # Attributes are not part of the checkpoint.

    def slices(self) -> Sequence[Object]:
        """Lists the parts to write and to read. Each part has three attributes.

        `spec` identifies the part in the form of `tf.Variable.SaveSliceInfo.spec` ("" means the
        whole tensor). `read` returns the value, and is called just before the part is written.
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
    """An object that checkpoints treat as stock's TPUEmbedding.

    TensorFlow registers a saver for stock's class. This saver runs code before a save and after a
    restore. Checkpoints contain the name of this saver. If the name were missing, a built stock
    engine would keep the old rows on its TPU after a restore; with another name, stock could not
    restore at all. Therefore this class is a subclass of stock's, but does not call the constructor
    of stock's class.
    """

    _self_setattr_tracking = False  # Only what is passed to `_track` is tracked.
    # An asynchronous checkpoint reads this attribute of the copy below.
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
