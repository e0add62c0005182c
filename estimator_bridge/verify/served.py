"""Asks an exported model questions, with TensorFlow alone: `python -m` this module, with a file.

What answers is what would be served: neither the engine nor an estimator is loaded.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_bridge.verify.recording import Array, Values, read_arrays, write_arrays

MOST_EXAMPLES = 1000
"""Of a file of Examples."""

_OPEN = 2
_OWN = "__"
"""Signatures of TensorFlow begin so."""
_FEATURES = "features/"
_KINDS = {"i": "int64_list", "u": "int64_list", "b": "int64_list", "f": "float_list"}


class CannotAsk(Exception):
    """What is at hand is not what a signature takes."""


def main(path: str) -> int:
    """Asks as a JSON file says; returns the exit status."""
    import tensorflow.compat.v1 as tf

    told: dict[str, Any] = json.loads(pathlib.Path(path).read_text())
    batches = [read_arrays(pathlib.Path(batch)) for batch in told["batches"]]
    stored = None if told["examples"] is None else _stored(told["examples"])
    answers: Values = {}
    unasked: dict[str, str] = {}
    signatures: dict[str, dict[str, str]] = {}
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.loader.load(session, [tf.saved_model.SERVING], told["model"])
        for name, signature in sorted(model.signature_def.items()):
            if name.startswith(_OWN):
                continue
            outputs = {key: info.name for key, info in signature.outputs.items()}
            signatures[name] = _described(signature)
            try:
                found = [
                    session.run(outputs, feed) for feed in _feeds(signature.inputs, batches, stored)
                ]
            except (CannotAsk, ValueError, TypeError, tf.errors.OpError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                unasked[name] = (lines or [type(error).__name__])[0][:200]
                continue
            for key in outputs:
                parts = [np.atleast_1d(answer[key]) for answer in found]
                answers[f"{name}: {key}"] = np.concatenate(parts)
    write_arrays(pathlib.Path(told["answers"]), answers)
    found_out = {"unasked": unasked, "signatures": signatures}
    pathlib.Path(told["found"]).write_text(json.dumps(found_out, indent=1))
    return 0


def _described(signature: Any) -> dict[str, str]:
    """Returns the types of what a signature takes and gives, by its names."""
    import tensorflow.compat.v1 as tf

    return {
        f"{what} {key}": f"{'sparse ' * info.HasField('coo_sparse')}{tf.as_dtype(info.dtype).name}"
        for what, of in (("takes", signature.inputs), ("gives", signature.outputs))
        for key, info in of.items()
    }


def _feeds(
    inputs: Mapping[str, Any], batches: Sequence[Values], stored: Array | None
) -> Iterator[dict[str, Any]]:
    """Yields what to feed a signature, batch by batch."""
    import tensorflow.compat.v1 as tf

    if not inputs:
        yield {}
        return
    (info, *more) = inputs.values()
    serialized = not more and info.dtype == tf.string.as_datatype_enum
    if serialized and stored is not None:
        yield {info.name: stored}
        return
    names = {name for key, each in inputs.items() for name in _tensors(key, each)}
    named = all(names <= batch.keys() for batch in batches)
    if not serialized and not named:
        yield _made_up(inputs)
        return
    for batch in batches:
        if named:
            yield _fed_by_name(inputs, batch)
        else:
            yield {info.name: examples(batch)}


def _tensors(key: str, info: Any) -> dict[str, str]:
    """Returns the tensors of an input by their names in a batch."""
    if not info.HasField("coo_sparse"):
        return {f"{_FEATURES}{key}": info.name}
    return {
        f"{_FEATURES}{key}.indices": info.coo_sparse.indices_tensor_name,
        f"{_FEATURES}{key}.values": info.coo_sparse.values_tensor_name,
        f"{_FEATURES}{key}.shape": info.coo_sparse.dense_shape_tensor_name,
    }


def _fed_by_name(inputs: Mapping[str, Any], batch: Values) -> dict[str, Any]:
    return {
        tensor: batch[name]
        for key, info in inputs.items()
        for name, tensor in _tensors(key, info).items()
    }


def _made_up(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns small numbers of the types and shapes that are asked for; open sizes are 2.

    Ids are 0 and 1, which every table has.
    """
    import tensorflow.compat.v1 as tf

    feed: dict[str, Any] = {}
    for key, info in sorted(inputs.items()):
        shape = [_OPEN if size.size < 0 else size.size for size in info.tensor_shape.dim]
        dtype = tf.as_dtype(info.dtype).as_numpy_dtype
        numbers = np.arange(int(np.prod(shape))) % 2
        if np.issubdtype(dtype, np.integer) or dtype is np.bool_:
            values = numbers.astype(dtype)
        elif np.issubdtype(dtype, np.floating):
            values = ((numbers + 1) / 4).astype(dtype)
        else:
            values = np.full(numbers.size, b"", object)
        tensors = [*_tensors(key, info).values()]
        if len(tensors) == 1:
            feed[tensors[0]] = values.reshape(shape)
        else:
            where = np.stack(np.unravel_index(np.arange(numbers.size), shape), 1).astype(np.int64)
            feed.update(zip(tensors, (where, values, np.array(shape, np.int64)), strict=True))
    return feed


def examples(batch: Values) -> Array:
    """Returns the samples of a batch as serialised Examples, [samples] of bytes.

    A sparse feature has its values of the sample, a dense one all of its numbers.

    Raises:
        CannotAsk: the features have not one row for each sample.
    """
    import tensorflow.compat.v1 as tf

    columns: dict[str, list[Array]] = {}
    for name, array in batch.items():
        key = name.removeprefix(_FEATURES)
        if key == name or f"{name.rpartition('.')[0]}.indices" in batch:
            continue
        columns[key] = [np.ravel(row) for row in np.atleast_1d(array)]
    for name, indices in batch.items():
        of = name.removesuffix(".indices")
        if of != name and of.startswith(_FEATURES):
            values, size = batch[f"{of}.values"], int(batch[f"{of}.shape"][0])
            columns[of.removeprefix(_FEATURES)] = [
                values[indices[:, 0] == sample] for sample in range(size)
            ]
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1:
        raise CannotAsk("the batches of the training do not make the Examples that it takes")
    found = []
    for sample in range(sizes.pop()):
        example = tf.train.Example()
        for key, column in columns.items():
            kind = _KINDS.get(column[sample].dtype.kind, "bytes_list")
            getattr(example.features.feature[key], kind).value.extend(column[sample].tolist())
        found.append(example.SerializeToString())
    return np.array(found, object)


def _stored(path: str) -> Array:
    import tensorflow.compat.v1 as tf

    records = tf.python_io.tf_record_iterator(path)
    return np.array([*itertools.islice(records, MOST_EXAMPLES)], object)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
