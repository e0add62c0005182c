"""A row of the catalogue: what one legacy setting does on each engine, and its words."""

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
"""How much attention a setting needs; the audit does not report plain ones."""

# The occasions of warnings.
LOOKUP, TRAINING = "any step with use_tpu=True", "training with use_tpu=True"
OFF_TPU, EXPORT = "columns with use_tpu=False", "export"
DICTS_OFF_TPU, LISTED_OFF_TPU = "config dicts with use_tpu=False", "in the list of that warning"
DENSE_RANK_1, DENSE_RANK_2 = "dense ids of rank 1", "dense ids of rank 2"

SPARSE_CORE_OUTCOMES = {
    "raises": "stock's TPUEmbeddingV2 refuses it, or another library of this program does",
    "ignored": "stock's TPUEmbeddingV2 drops it without a word",
    "other": "it does something else, or has to be said otherwise",
    "gone": "it has no counterpart, and changes no number",
    "same": "as on the first generation",
}
"""The outcomes of a setting on TPUs with SparseCores, worst first."""


class OnSparseCores(NamedTuple):
    """The effect of a setting in stock's TPUEmbeddingV2 on TPUs with SparseCores.

    Attributes:
        outcome: one of `SPARSE_CORE_OUTCOMES`.
        way_out: what to do about it; empty where the effect says so, or nothing is to be done.
    """

    outcome: str
    effect: str
    way_out: str = ""


AS_BEFORE = OnSparseCores("same", "the same")

When = Callable[[Object], bool]
"""Whether a value of a setting matters to a row."""

Detector = Callable[[LegacySpec], Iterable[tuple[Place, Object]]]
"""Returns the places of a spec at which a row applies, each with the value to show."""


class NotAsWritten(str):
    """An effect that the words of the setting do not say; `because` is the reason, as a clause."""

    because: str

    def __new__(cls, text: str, because: str) -> NotAsWritten:
        """Returns the effect."""
        effect = super().__new__(cls, text)
        effect.because = because
        return effect


class Ignored(NotAsWritten):
    """The effect of a setting that an engine ignores."""


NOT_ON_CPU = Ignored(
    "ignored: the model's optimizer trains the tables",
    "with use_tpu=False the model's own optimizer trains the tables",
)
"""The effect of whatever is about updates on a CPU."""


class ChangeText(NamedTuple):
    """The texts on a setting's change by `to_tf2`; for the fields in them see `render.change`.

    Attributes:
        effect: one of `migrate.legacy_specs.spec_to_tf2.EFFECTS`.
        now: what takes the setting's place; empty if nothing does.
        was: the value for readers, if not the value itself.
        setting: its name, if not the first that the row reads.
    """

    effect: str
    now: str
    why: str
    was: str = ""
    setting: str = ""


@dataclasses.dataclass(frozen=True)
class SettingRow:
    """One legacy setting, or one way to set it.

    Attributes:
        severity: one of `SEVERITIES`.
        tpu: stock's effect with use_tpu=True, on embedding hardware of the first generation.
        tf2: what becomes of it in TensorFlow 2.
        cpu: stock's effect with use_tpu=False; by default that of all settings of updates.
        way_out: what to do about it; empty where nothing is to be done.
        bridge: the bridge's effect, where docs/differences.md says it: for settings that stock
            ignores or that the bridge treats otherwise. Empty where `quirks` decide.
        why: the reason of `bridge`; a row that has one is a line of docs/differences.md.
        quirks: the bridge's effect by quirks, where these decide.
        sparse_core: the effect on TPUs with SparseCores; by default that of `tpu`.
        reads: where it is read from: fields such as "TableConfig.combiner", each with which of its
            values matter; None where the detector decides. Of "*Parameters" all optimizers.
        calls: functions and classes whose call in a source is enough.
        detect: finds it in a spec; None goes by the values of `reads`.
        shown: a value in the audit's words, with the fields `setting` and `value`.
        finding: the audit's rule for it, where that is another row.
        warnings: of `run` and TPUEstimator: texts by occasion, or by occasion and quirks.
        change: for `to_tf2`.
        change_of_stock: the same with quirks="stock", where that is another.
        cause_name, cause: a divergence that `verify` explains by it, and the text with fields.
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
        """The name of the setting: the first field that it reads."""
        return next(iter(self.reads), "").rpartition(".")[2]

    @property
    def of_optimizers(self) -> bool:
        """Whether it is a setting of optimizers."""
        return any(field.partition(".")[0].endswith("Parameters") for field in self.reads)
