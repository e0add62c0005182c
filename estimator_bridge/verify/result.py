"""The result of a comparison, as users get it: findings that print a table and fit JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from estimator_bridge.verify.findings import Findings, Series
from estimator_bridge.verify.report import text
from tf2_engine.types import Object


class Result(Findings):
    """Everything that a comparison found; `equal` is the verdict, and `str` a table."""

    def __str__(self) -> str:
        return "\n".join(text.lines(self))

    def as_dict(self) -> dict[str, Object]:
        """Returns the result as docs/verify.md describes `--json`.

        It fits JSON: numbers that are not finite are the strings "Infinity" and "NaN".
        """
        return _json_value(
            {
                "equal": self.equal,
                "sides": {"a": self.settings[0], "b": self.settings[1]},
                "steps": self.steps,
                "tolerance": {"num_terms": self.num_terms, "measured": self.measured},
                "first": None if self.first is None else _series_dict(self.first),
                "causes": [cause._asdict() for cause in self.causes],
                "series": [_series_dict(series) for series in self.series],
                "config": None if self.config is None else [d._asdict() for d in self.config],
                "batches": self.batches._asdict(),
                "outcomes": [{**o._asdict(), "equal": o.equal} for o in self.outcomes],
                "only": {"a": self.only[0], "b": self.only[1]},
                "remarks": self.remarks,
                "notes": self.notes,
            }
        )


def _series_dict(series: Series) -> dict[str, object]:
    return {
        "group": series.group,
        "name": series.name,
        "table": series.table,
        "role": series.role,
        "first": None if series.first is None else series.first._asdict(),
        "points": [point._asdict() for point in series.points],
    }


def _json_value(value: Object) -> Object:
    """Returns a nest with the numbers that JSON lacks as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _json_value(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_value(part) for part in value]
    return value
