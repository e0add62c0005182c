"""The row of the catalogue for a legacy setting: its effect on each engine, and texts about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from estimator_bridge.settings.legacy_spec import LegacySpec, Place
from tf2_engine.types import Object

PLAIN = "plain"
SEVERITIES = {
    "ignored": "stock drops it without a word",
    "surprising": "stock does something else than one would expect",
    "differs": "CPU, TPU and TensorFlow 2 differ",
    "refused": "stock raises an error",
    PLAIN: "does what it says",
}
"""How much attention a setting needs; the audit does not report "plain" settings."""

# The occasions of warnings.
LOOKUP, TRAINING = "any step with use_tpu=True", "training with use_tpu=True"
OFF_TPU, EXPORT = "columns with use_tpu=False", "export"
DICTS_OFF_TPU, LISTED_OFF_TPU = "config dicts with use_tpu=False", "in the list of that warning"
DENSE_RANK_1, DENSE_RANK_2 = "dense ids of rank 1", "dense ids of rank 2"

SPARSE_CORE_OUTCOMES = {
    "raises": "stock's TPUEmbeddingV2 refuses it, or another library of this program does",
    "ignored": "stock's TPUEmbeddingV2 drops it without a word",
    "other": "it does something else, or has to be written differently",
    "gone": "it has no counterpart, and changes no number",
    "same": "as on the first generation",
}
"""The outcomes of a setting on TPUs with SparseCores, worst first."""


class OnSparseCores(NamedTuple):
    """The effect of a setting in stock's TPUEmbeddingV2 on SparseCores, and advice if needed."""

    outcome: str
    effect: str
    way_out: str = ""


AS_BEFORE = OnSparseCores("same", "the same")

When = Callable[[Object], bool]
"""Whether a row applies to a value of a setting."""

Detector = Callable[[LegacySpec], Iterable[tuple[Place, Object]]]
"""Returns the places of a spec at which a row applies, each with the value to show."""


class NotAsWritten(str):
    """An effect that differs from the documented one. `because` is a clause with the reason."""

    because: str

    def __new__(cls, text: str, because: str) -> NotAsWritten:
        effect = super().__new__(cls, text)
        effect.because = because
        return effect


class Ignored(NotAsWritten):
    """The effect of a setting that an engine ignores."""


NOT_ON_CPU = Ignored(
    "ignored: the model's optimizer trains the tables",
    "with use_tpu=False the model's own optimizer trains the tables",
)
"""The effect of all update settings on a CPU."""


class ChangeText(NamedTuple):
    """How `to_tf2` describes its change of a setting; `render.change` fills in the fields.

    Attributes:
        effect: one of `migrate.legacy_specs.spec_to_tf2.EFFECTS`.
        now: the replacement of the setting; empty if there is none.
        was: how to show the old value, if not by its repr.
        setting: the name of the setting, if it is not the first field that the row reads.
    """

    effect: str
    now: str
    why: str
    was: str = ""
    setting: str = ""


@dataclasses.dataclass(frozen=True)
class SettingRow:
    """What each engine does with one legacy setting, or with a group of the setting's values.

    Attributes:
        severity: one of `SEVERITIES`.
        tpu, cpu: stock's effect with use_tpu=True, on TPUs of the first generation, and without.
        tf2: the effect or counterpart in TensorFlow 2.
        way_out: the advice to users, if any.
        bridge: the bridge's effect for docs/differences.md, if it always differs from stock's.
        why: the reason for the difference. docs/differences.md lists rows with a reason.
        quirks: the bridge's effect for each value of `quirks`, if it depends on `quirks`.
        reads: the fields of the setting, such as "TableConfig.combiner", each with a test of the
            values to which the row applies, or None if `detect` decides. "*Parameters" stands for
            all optimizers.
        calls: functions and classes whose every call in a program's source is a finding.
        detect: finds the setting in a spec; None tests the values of `reads`.
        shown: how the audit shows a value, with the fields `setting` and `value`.
        finding: the name of another row under which the audit reports this row.
        warnings: those of `run` and TPUEstimator, keyed by occasion, or by occasion and quirks.
        change, change_of_stock: the text for `to_tf2`, and that for quirks="stock" if it differs.
        cause_name, cause: the divergence that `verify` attributes to the setting.
    """

    severity: str
    tpu: str
    tf2: str
    cpu: str = NOT_ON_CPU
    way_out: str = ""
    bridge: str = ""
    why: str = ""
    quirks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sparse_core: OnSparseCores = AS_BEFORE
    reads: Mapping[str, When | None] = dataclasses.field(default_factory=dict)
    calls: tuple[str, ...] = ()
    detect: Detector | None = None
    shown: str = "{setting}={value!r}"
    finding: str = ""
    warnings: Mapping[str | tuple[str, str], str] = dataclasses.field(default_factory=dict)
    change: ChangeText | None = None
    change_of_stock: ChangeText | None = None
    cause_name: str = ""
    cause: str = ""

    @property
    def setting(self) -> str:
        return next(iter(self.reads), "").rpartition(".")[2]

    @property
    def of_optimizers(self) -> bool:
        return any(field.partition(".")[0].endswith("Parameters") for field in self.reads)
