"""Queries an exported model with TensorFlow alone: `python -m MODULE REQUEST.json`."""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.recording.files import Values, read_arrays, write_arrays
from tf2_engine.types import Array, Message, Object, Session

_MAX_EXAMPLES = 1000
_OPEN_SIZE = 2
_INTERNAL = "__"
"""Prefix of TensorFlow's own signatures."""
_FEATURES = "features/"
_LISTS = {"i": "int64_list", "u": "int64_list", "b": "int64_list", "f": "float_list"}

Feed = dict[str, Array]


class CannotFeed(Exception):
    """The batches of the training run do not fit a signature."""


def main(path: str) -> int:
    request = json.loads(pathlib.Path(path).read_text())
    batches = [read_arrays(pathlib.Path(batch)) for batch in request["batches"]]
    stored = None
    if request["examples"] is not None:
        records = tf.python_io.tf_record_iterator(request["examples"])
        stored = np.array([*itertools.islice(records, _MAX_EXAMPLES)], object)
    answers: Values = {}
    failed: dict[str, str] = {}
    signatures: dict[str, dict[str, str]] = {}
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.loader.load(session, [tf.saved_model.SERVING], request["model"])
        for name, signature in sorted(model.signature_def.items()):
            if name.startswith(_INTERNAL):
                continue
            signatures[name] = _types(signature)
            try:
                outputs = _answers(session, signature, batches, stored)
            except (CannotFeed, ValueError, TypeError, tf.errors.OpError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                failed[name] = (lines or [type(error).__name__])[0][:200]
            else:
                answers.update({f"{name}: {key}": value for key, value in outputs.items()})
    write_arrays(pathlib.Path(request["answers"]), answers)
    report = {"failed": failed, "signatures": signatures}
    pathlib.Path(request["signatures"]).write_text(json.dumps(report, indent=1))
    return 0


def _types(signature: Message) -> dict[str, str]:
    return {
        f"{verb} {key}": f"{'sparse ' * info.HasField('coo_sparse')}{tf.as_dtype(info.dtype).name}"
        for verb, infos in (("takes", signature.inputs), ("gives", signature.outputs))
        for key, info in infos.items()
    }


def _answers(
    session: Session, signature: Message, batches: Sequence[Values], stored: Array | None
) -> Values:
    outputs = {key: info.name for key, info in signature.outputs.items()}
    feeds = _feeds(signature.inputs, batches, stored)
    answers = [session.run(outputs, feed) for feed in feeds]
    return {
        key: np.concatenate([np.atleast_1d(answer[key]) for answer in answers]) for key in outputs
    }


def _feeds(
    inputs: Mapping[str, Message], batches: Sequence[Values], stored: Array | None
) -> Iterator[Feed]:
    if not inputs:
        yield {}
        return
    (info, *more) = inputs.values()
    serialized = not more and info.dtype == tf.string.as_datatype_enum
    if serialized and stored is not None:
        yield {info.name: stored}
        return
    tensors: dict[str, str] = {}
    for key, each in inputs.items():
        tensors.update(_tensors(key, each))
    named = all(tensors.keys() <= batch.keys() for batch in batches)
    if not serialized and not named:
        yield _made_up_feed(inputs)
        return
    for batch in batches:
        if named:
            yield {tensor: batch[name] for name, tensor in tensors.items()}
        else:
            yield {info.name: examples(batch)}


def _tensors(key: str, info: Message) -> dict[str, str]:
    if not info.HasField("coo_sparse"):
        return {f"{_FEATURES}{key}": info.name}
    return {
        f"{_FEATURES}{key}.indices": info.coo_sparse.indices_tensor_name,
        f"{_FEATURES}{key}.values": info.coo_sparse.values_tensor_name,
        f"{_FEATURES}{key}.shape": info.coo_sparse.dense_shape_tensor_name,
    }


def _made_up_feed(inputs: Mapping[str, Message]) -> Feed:
    feed: Feed = {}
    for key, info in sorted(inputs.items()):
        shape = [_OPEN_SIZE if size.size < 0 else size.size for size in info.tensor_shape.dim]
        values = _small_values(int(np.prod(shape)), tf.as_dtype(info.dtype).as_numpy_dtype)
        tensors = [*_tensors(key, info).values()]
        if len(tensors) == 1:
            feed[tensors[0]] = values.reshape(shape)
        else:
            indices = np.stack(np.unravel_index(np.arange(values.size), shape), 1)
            parts = indices.astype(np.int64), values, np.array(shape, np.int64)
            feed.update(zip(tensors, parts, strict=True))
    return feed


def _small_values(size: int, dtype: Object) -> Array:
    numbers = np.arange(size) % 2
    if np.issubdtype(dtype, np.integer) or dtype is np.bool_:
        return numbers.astype(dtype)
    if np.issubdtype(dtype, np.floating):
        return ((numbers + 1) / 4).astype(dtype)
    return np.full(size, b"", object)


def examples(batch: Values) -> Array:
    columns = _columns(batch)
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1:
        raise CannotFeed("the training batches cannot be turned into Examples for this signature")
    serialized = []
    for sample in range(sizes.pop()):
        example = tf.train.Example()
        for key, column in columns.items():
            field = _LISTS.get(column[sample].dtype.kind, "bytes_list")
            getattr(example.features.feature[key], field).value.extend(column[sample].tolist())
        serialized.append(example.SerializeToString())
    return np.array(serialized, object)


def _columns(batch: Values) -> dict[str, list[Array]]:
    columns: dict[str, list[Array]] = {}
    for name, array in batch.items():
        key = name.removeprefix(_FEATURES)
        sparse = name.rpartition(".")[0]
        if key == name:
            continue
        if f"{sparse}.indices" not in batch:
            columns[key] = [np.ravel(row) for row in np.atleast_1d(array)]
        elif name.endswith(".values"):
            samples, size = batch[f"{sparse}.indices"][:, 0], int(batch[f"{sparse}.shape"][0])
            columns[sparse.removeprefix(_FEATURES)] = [array[samples == i] for i in range(size)]
    return columns


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
