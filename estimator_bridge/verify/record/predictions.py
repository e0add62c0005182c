"""Writes predictions of any structure to files, in chunks of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator_bridge.verify.record.array_files import as_array, is_list, listed
from estimator_bridge.verify.record.outcome_files import OutcomeWriter
from tf2_engine.types import Array, Object

SAMPLES_OF_CHUNK = 1000
"""How many samples are held in memory and written to one file."""

_NAME = "prediction"


class PredictionWriter:
    """Writes the predictions of a call, sample by sample.

    Attributes:
        count: the number of samples so far.
    """

    def __init__(self, writer: OutcomeWriter, name: str) -> None:
        self._writer, self._name = writer, name
        self._samples: list[dict[str, Array]] = []
        self._chunks = 0
        self.count = 0

    def add(self, prediction: Object) -> None:
        """Adds a prediction: any nest of arrays, strings and composite values."""
        self._samples.append(dict(flat(prediction)))
        self.count += 1
        if len(self._samples) == SAMPLES_OF_CHUNK:
            self._flush()

    def close(self) -> None:
        if self._samples:
            self._flush()

    def _flush(self) -> None:
        samples, self._samples = self._samples, []
        self._writer.chunk(self._name, self._chunks, listed(samples))
        self._chunks += 1


def flat(value: Object, name: str = "") -> Iterator[tuple[str, Array]]:
    """Yields the arrays of a prediction with their paths, such as "scores/0".

    Sparse and ragged values are split into their parts.
    """
    if isinstance(value, Mapping):
        parts = {str(key): part for key, part in value.items()}
    elif hasattr(value, "_asdict"):  # Such as a SparseTensorValue.
        parts = value._asdict()
    elif hasattr(value, "nested_row_splits"):
        splits = {f"row_splits_{i}": each for i, each in enumerate(value.nested_row_splits)}
        parts = {"values": value.flat_values, **splits}
    elif is_list(array := as_array(value)):
        parts = {str(i): part for i, part in enumerate(array)}
    else:
        yield name or _NAME, array
        return
    for key, part in parts.items():
        yield from flat(part, f"{name}/{key}" if name else key)
