"""The result of a comparison: findings that print as a table and convert to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from estimator_bridge.verification.findings import Findings, Series, Status
from estimator_bridge.verification.report import text
from tf2_engine import plain_text
from tf2_engine.types import Object

_VERDICTS = {Status.EQUAL: True, Status.DIFFERENT: False}


class Result(Findings):
    """Everything that a comparison found; `equal` is the verdict, and `str` is a table."""

    def __str__(self) -> str:
        return plain_text.Lines(*text.lines(self))

    def as_dict(self) -> dict[str, Object]:
        """Returns the result for JSON, as docs/verify.md describes it.

        Non-finite numbers become the strings "Infinity" and "NaN"; invisible characters are
        escaped.
        """
        result = {
            "equal": _VERDICTS.get(self.status),
            "status": self.status.name.lower(),
            "about": self.about,
            "sides": dict(zip("ab", self.settings, strict=True)),
            "steps": self.steps,
            "tolerance": {
                "lockstep": self.lockstep,
                "num_terms": self.num_terms,
                "measured": self.measured,
            },
            "first": self.first,
            "causes": self.causes,
            "series": self.series,
            "config": self.config,
            "batches": self.batches,
            "outcomes": [{**o._asdict(), "equal": o.equal} for o in self.outcomes],
            "only": dict(zip("ab", self.only, strict=True)),
            "remarks": self.remarks,
            "failures": self.failures,
            "undecided": self.undecided,
            "not_compared": self.not_compared,
            "notes": self.notes,
        }
        return _json_value(result)


def without_verdict(error: str) -> Object:
    status = Status.UNKNOWN.name.lower()
    return _json_value({"equal": None, "status": status, "error": error})


def _json_value(value: Object) -> Object:
    if isinstance(value, Series):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {plain_text.plain(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return plain_text.plain(value, lines=True)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_value(part) for part in value]
    return plain_text.plain_values(value)
