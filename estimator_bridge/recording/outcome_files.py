"""Reads and writes the outcomes of a training run, and the values that outcomes were computed from.

Outcomes are named by kind and number, such as "evaluation-0".
"""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TypedDict

from estimator_bridge.recording.array_files import Values, read_arrays, write_arrays
from tf2_engine.types import Object

EVALUATION, PREDICTION, EXPORT, SERVED = "evaluation", "prediction", "export", "served"
"""The kinds of outcomes; "served" is for the answers of exported models."""
KINDS = (EVALUATION, PREDICTION, EXPORT, SERVED)

SEEN, RECOMPUTED = "seen", "recomputed"
"""The inputs of an evaluation's metrics, batch by batch, and the metrics recomputed from them."""
OWN, OTHER = "own: ", "other: "
"""Prefixes of metrics that were recomputed from the side's own values, or from side A's values."""
METRIC_VARIABLE = "variable: "
"""Prefix of the variables in which the metrics of an evaluation were summed."""


class About(TypedDict, total=False):
    """The description of an outcome, with digests of the variables, and the error if it failed."""

    variables: dict[str, str]
    replayed: bool
    unlike: list[str]
    batches: int
    samples: int
    failed: str


class OutcomeWriter:
    """Writes outcomes into the directory of a recording."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        # The number of files written, by kind.
        self._counts: collections.Counter[str] = collections.Counter()
        self._left_out: list[str] = []

    def begin(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}-{self._counts[kind] - 1}"

    def write(self, name: str, values: Mapping[str, Object], part: str = "") -> None:
        write_arrays(self._directory / f"{f'{part}-' * bool(part)}{name}.npz", values)

    def chunk(self, name: str, number: int, values: Mapping[str, Object]) -> None:
        write_arrays(self._directory / f"{name}{f'+{number:06d}' * bool(number)}.npz", values)

    def about(self, name: str, about: About) -> None:
        write_json(self._directory / f"about-{name}.json", about)

    def batch(self, name: str, input_number: int, values: Mapping[str, Object]) -> None:
        prefix = f"fed-{name}-{input_number:04d}"
        number = self._counts[prefix]
        self._counts[prefix] += 1
        write_arrays(self._directory / f"{prefix}-{number:08d}.npz", values)

    def drop_batch(self, name: str) -> None:
        for path in sorted(self._directory.glob(f"fed-{name}-*.npz"))[-1:]:
            path.unlink()

    def left_out(self, what: str) -> None:
        if what not in self._left_out:
            self._left_out.append(what)
            write_json(self._directory / "left-out.json", self._left_out)


class Outcomes:
    """Reads the outcomes that an `OutcomeWriter` wrote."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory

    @property
    def left_out(self) -> list[str]:
        return list(read_json(self._directory / "left-out.json", []))

    def names(self) -> list[str]:
        return [
            f"{kind}-{number}"
            for kind in KINDS
            for number in sorted(
                int(path.stem.partition("-")[2])
                for path in self._directory.glob(f"{kind}-*.npz")
                if "+" not in path.stem
            )
        ]

    def failed(self) -> dict[str, str]:
        paths = sorted(self._directory.glob("about-*.json"))
        named = {path.stem.removeprefix("about-"): read_json(path, {}) for path in paths}
        return {name: about["failed"] for name, about in named.items() if "failed" in about}

    def chunks(self, name: str) -> Iterator[Values]:
        first = self._directory / f"{name}.npz"
        rest = sorted(self._directory.glob(f"{name}+*.npz"))
        for path in [first] * first.exists() + rest:
            yield read_arrays(path)

    def part(self, name: str, part: str) -> Values:
        path = self._directory / f"{part}-{name}.npz"
        return read_arrays(path) if path.exists() else {}

    def about(self, name: str) -> About:
        return read_json(self._directory / f"about-{name}.json", {})

    def batches(self, name: str, input_number: int | None = None) -> list[pathlib.Path]:
        of_input = "" if input_number is None else f"{input_number:04d}-"
        return sorted(self._directory.glob(f"fed-{name}-{of_input}*.npz"))


def read_json(path: pathlib.Path, default: Object) -> Object:
    return json.loads(path.read_text()) if path.exists() else default


def write_json(path: pathlib.Path, value: object) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1))
    partial.replace(path)
