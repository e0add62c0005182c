"""Names from stock's private modules that programs import and that no other module here defines."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.legacy.receivers import build_raw_supervised_input_receiver_fn
from estimator_bridge.legacy.requirements import argument_names
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Session

tf_keras: Final = tf.keras
tf_keras_v1: Final = tf.compat.v1.keras
tf_keras_v2: Final = tf.compat.v2.keras

LOSS_METRIC_KEY: Final = "loss"
AVERAGE_LOSS_METRIC_KEY: Final = "average_loss"

TRAINING: Final = tf_compat.TPUEmbeddingConfiguration.TRAINING
INFERENCE: Final = tf_compat.TPUEmbeddingConfiguration.INFERENCE


EXPORT_TAG_MAP: Mapping[str, list[str]] = {
    "train": ["train"],
    **{mode: ["eval"] for mode in ("eval", "test")},
    **{mode: ["serve"] for mode in ("infer", "predict")},
}
"""Maps each mode to the tags of the graph that is exported for it."""


class ExportSavedModelApiVersion(enum.Enum):
    """The version of exported TPU graphs. It has no effect: the bridge exports no such graphs."""

    V1 = 1
    V2 = 2


class BatchConfig(NamedTuple):
    """How a server with a TPU forms batches of requests. It has no effect."""

    num_batch_threads: int
    max_batch_size: int
    batch_timeout_micros: int
    allowed_batch_sizes: Sequence[int] | None
    max_enqueued_batches: int = 100


def model_fn_inference_on_tpu(
    model_fn: Callable[..., Object],
    features: Nest,
    labels: Nest = None,
    config: Object = None,
    params: Object = None,
    batch_config: BatchConfig | None = None,
) -> EstimatorSpec:
    arguments = {"labels": labels, "mode": ModeKeys.PREDICT, "config": config, "params": params}
    names = argument_names(model_fn)
    spec = model_fn(features, **{name: value for name, value in arguments.items() if name in names})
    if hasattr(spec, "as_estimator_spec"):
        spec = spec.as_estimator_spec()
    return spec


def check_positive_integer(value: Object, name: str) -> None:
    if not isinstance(value, int):
        raise errors.WrongType(f"{name} must be int, got {type(value).__name__} {value!r}.")
    if value <= 0:
        raise errors.InvalidInput(f"{name} must be positive, got {value}.")


fn_args = argument_names


def estimator_export(*names: str, v1: Sequence[str] | None = None) -> Callable[[Object], Object]:
    """Makes a decorator that does nothing. Stock's decorator adds names to TensorFlow's API."""
    return lambda symbol: symbol


def should_run_distribute_coordinator(config: Object) -> bool:
    """Returns False: the bridge's estimators do not run a coordinator of tf.distribute."""
    return False


def _load_global_step_from_checkpoint_dir(checkpoint_dir: str) -> int:
    path = tf.train.latest_checkpoint(checkpoint_dir)
    try:
        return int(tf.train.load_variable(path, tf.compat.v1.GraphKeys.GLOBAL_STEP))
    except (AttributeError, TypeError, ValueError, tf.errors.OpError):
        return 0


class MultiHostDatasetInitializerHook(tf.compat.v1.train.SessionRunHook):
    """Initializes the iterators of datasets when a session is created."""

    def __init__(self, dataset_initializers: Sequence[Object]) -> None:
        self._initializers = dataset_initializers

    def after_create_session(self, session: Session, coord: Object) -> None:
        del coord
        session.run(self._initializers)


def parse_input_fn_result(result: Object) -> tuple[Nest, Nest, list[Object]]:
    hooks: list[Object] = []
    if isinstance(result, (tf.compat.v1.data.Dataset, tf.data.Dataset)):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks.append(MultiHostDatasetInitializerHook([iterator.initializer]))
        result = iterator.get_next()
    return (*parse_iterator_result(result), hooks)


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: Callable[..., Object], **arguments: Object
) -> Callable[[], Object]:
    with tf.Graph().as_default():
        features, labels, _ = parse_input_fn_result(input_fn(**arguments))
    return build_raw_supervised_input_receiver_fn(features, labels)


def parse_iterator_result(result: Object) -> tuple[Nest, Nest]:
    if isinstance(result, (list, tuple)):
        if len(result) != 2:
            raise errors.InvalidInput(
                f"input_fn should return (features, labels) as a len 2 tuple, got {len(result)}."
            )
        return result[0], result[1]
    return result, None


# The following names are from stock's module `gc`, with which programs choose exports to delete.


class Path(NamedTuple):
    """The path of an export, and its version or None."""

    path: str
    export_version: int | None


Filter = Callable[[Sequence[Path]], list[Path]]
"""Takes a sequence of exports, and returns those to keep in the same order."""


def _largest_export_versions(n: int) -> Filter:
    return lambda paths: sorted(_by_version(paths)[-n:] if n > 0 else [])


def _one_of_every_n_export_versions(n: int) -> Filter:
    def keep(paths: Sequence[Path]) -> list[Path]:
        by_interval = {max(_version(each) - 1, 0) // n: each for each in _by_version(paths)}
        return sorted(by_interval.values())

    return keep


def _mod_export_version(n: int) -> Filter:
    return lambda paths: sorted(each for each in paths if _version(each) % n == 0)


def _union(lf: Filter, rf: Filter) -> Filter:
    return lambda paths: sorted({*lf(paths), *rf(paths)})


def _negation(f: Filter) -> Filter:
    return lambda paths: sorted({*paths}.difference(f(paths)))


def _get_paths(base_dir: str, parser: Callable[[Path], Path | None]) -> list[Path]:
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(base_dir))
    paths = (parser(Path(os.path.join(base_dir, name), None)) for name in names)
    return sorted(path for path in paths if path)


def _by_version(paths: Sequence[Path]) -> list[Path]:
    return sorted((each for each in paths if each.export_version is not None), key=_version)


def _version(path: Path) -> int:
    return path.export_version  # type: ignore[return-value]  # the callers have left None out
