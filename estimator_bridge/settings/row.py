"""The row of the catalogue for a legacy setting, and functions that make rows or test values."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.settings.legacy_spec import NOTHING, LegacyOptimizer, LegacySpec, Place
from tf2_engine.types import Object

PLAIN = "plain"
SEVERITIES = {
    "ignored": "stock drops it without a word",
    "surprising": "stock does something unexpected",
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
    "raises": "stock's TPUEmbeddingV2 refuses it, or one of the program's libraries does",
    "ignored": "stock's TPUEmbeddingV2 drops it without a word",
    "other": "it has a different effect, or has to be written differently",
    "gone": "it has no counterpart, and results do not change",
    "same": "as on the first generation",
}
"""The outcomes of a setting on TPUs with SparseCores, worst first."""
When = Callable[[Object], bool]
"""Whether a row applies to a value of a setting."""
Detector = Callable[[LegacySpec], Iterable[tuple[Place, Object]]]
"""Returns the places of a spec at which a row applies, each with the value to show."""
is_off = operator.not_
OF_OPTIMIZER = "the optimizer of the TableConfig has this setting"


class OnSparseCores(NamedTuple):
    """The effect of a setting in stock's TPUEmbeddingV2 on SparseCores, and advice if needed."""

    outcome: str
    effect: str
    way_out: str = ""


AS_BEFORE = OnSparseCores("same", "the same")


class NotAsWritten(str):
    """An effect that differs from the documented effect, and a clause with the reason."""

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
        now: the replacement of the setting, if any.
        was: how to show the old value, if not by its repr.
        setting: the setting's name, if it is not the first field that the row reads.
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
        tpu, cpu: stock's effect on TPUs of the first generation (use_tpu=True), and with
            use_tpu=False.
        tf2: the effect or counterpart in TensorFlow 2.
        way_out: the advice to users, if any.
        bridge: the bridge's effect for docs/differences.md, if it always differs from stock's.
        why: the reason for the difference. docs/differences.md lists rows with a reason.
        quirks: the bridge's effect for each value of `quirks`, if it depends on `quirks`.
        reads: for each field of the setting, such as "TableConfig.combiner", a function that says
            whether the row applies to a value. None means that `detect` decides. "*Parameters"
            stands for all optimizers.
        calls: functions and classes. Each call of one of them in a program's source is a finding.
        detect: finds the setting in a spec. None means that the functions in `reads` find it.
        shown: how the audit shows a value, with the fields `setting` and `value`.
        finding: the name of another row under which the audit reports this row.
        warnings: the warnings of `run` and TPUEstimator, keyed by occasion, or by occasion and
            quirks.
        change, change_of_stock: the text for `to_tf2`, and the text for quirks="stock" if it
            differs.
        cause_name, cause: the name and text with which `verify` gives the setting as the cause of
            a divergence.
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


DEVICE_ONLY = Ignored("ignored", "it has no effect with use_tpu=False")
ignored = functools.partial(SettingRow, "ignored")
surprising = functools.partial(SettingRow, "surprising")
differs = functools.partial(SettingRow, "differs")
refused = functools.partial(SettingRow, "refused")
plain = functools.partial(SettingRow, PLAIN)
form = functools.partial(ChangeText, "form")
ours = functools.partial(ChangeText, "ours")
numbers = functools.partial(ChangeText, "numbers")
by_hand = functools.partial(ChangeText, "by hand")
left_out = functools.partial(ChangeText, "left out", "")
# On TPUs with SparseCores.
raises = functools.partial(OnSparseCores, "raises")
dropped = functools.partial(OnSparseCores, "ignored")
other = functools.partial(OnSparseCores, "other")
gone = functools.partial(OnSparseCores, "gone")


def is_set(value: Object) -> bool:
    return value is not None


def is_zero(value: Object) -> bool:
    return not isinstance(value, bool) and bool(value == 0)


def is_not_zero(value: Object) -> bool:
    return value is not None and not is_zero(value)


def equals(wanted: Object) -> When:
    return lambda value: value is wanted or bool(value == wanted)


def no_input_per_host(value: Object) -> bool:
    # For stock, True is PER_HOST_V1. In Python True equals 1, which is PER_SHARD_V1.
    modes = (1, "PER_SHARD_V1", 4, "BROADCAST", 5, "SLICED")
    return value is False or (value is not True and value in modes)


def always(place: str) -> Detector:
    return lambda legacy: [(Place(place), NOTHING)]


def in_optimizers(value_of: Callable[[LegacyOptimizer], Object]) -> Detector:
    """Makes a detector for optimizers; `value_of` returns the value to report, or None."""
    return lambda legacy: (
        (where, value)
        for where, optimizer in legacy.optimizers()
        if (value := value_of(optimizer)) is not None
    )


def multiplier_without_decay(optimizer: LegacyOptimizer) -> Object:
    multiplied = optimizer.settings["multiply_weight_decay_factor_by_learning_rate"]
    return True if multiplied and not optimizer.settings["weight_decay_factor"] else None


def dense_ids(legacy: LegacySpec) -> Iterator[tuple[Place, Object]]:
    for feature in legacy.features:
        if not feature.max_sequence_length and legacy.table(feature.table).combiner is not None:
            yield Place("feature", feature.key), NOTHING


def fields(
    names: str,
    tpu: str,
    tf2: str,
    cpu: str = DEVICE_ONLY,
    bridge: str = "",
    why: str = "",
    sparse_core: OnSparseCores = AS_BEFORE,
) -> SettingRow:
    """Makes a row for fields without special cases. `names` is like "FeatureConfig: table_id"."""
    owner, settings = names.split(": ")
    reads: dict[str, When | None] = {f"{owner}.{name}": None for name in settings.split()}
    return plain(tpu, tf2, cpu, bridge=bridge, why=why, reads=reads, sparse_core=sparse_core)


def limits(name: str, tpu: str, sparse_core: OnSparseCores) -> SettingRow:
    def ends_of(optimizer: LegacyOptimizer) -> Object:
        ends = optimizer.settings[f"{name}_min"], optimizer.settings[f"{name}_max"]
        return None if ends == (None, None) else ends

    return plain(
        tpu,
        OF_OPTIMIZER,
        sparse_core=sparse_core,
        reads={f"*Parameters.{name}_min": is_set, f"*Parameters.{name}_max": is_set},
        detect=in_optimizers(ends_of),
        shown=f"{name}_min={{value[0]}}, {name}_max={{value[1]}}",
        finding="sparse_core",
    )
