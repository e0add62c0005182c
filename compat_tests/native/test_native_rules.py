"""Each C++ rule has the proto field, op, slots and settings of its optimizer in Python."""

from __future__ import annotations

import re

import pytest

from compat_tests.cases.optimizers import CASES
from tf2_engine import OPTIMIZERS, tf_compat
from tf2_engine.native import RULES, SOURCES

FOLDER = SOURCES / "rules" / "optimizers"


def test_every_optimizer_has_one_rule() -> None:
    """The listed rules, the files of rules and the optimizers have the same fields of the proto."""
    fields = [kind.proto_field for kind in OPTIMIZERS.values()]

    assert sorted(fields) == sorted(RULES)
    assert {path.stem for path in FOLDER.glob("*.h")} == RULES


@pytest.mark.filterwarnings("ignore:`ProximalYogi`")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rule_is_that_of_its_optimizer(name: str) -> None:
    """Number of the proto's field, name of the ops, slots and settings are the same in both."""
    kind = OPTIMIZERS[name]
    text = (FOLDER / f"{kind.proto_field}.h").read_text()
    slots = re.search(r"kSlots = \{(.*)\};", text)
    field = tf_compat.OptimizationParameters.DESCRIPTOR.fields_by_name[kind.proto_field]
    settings = {int(number) for number in re.findall(r"\bread\((\d+), &\w+\)", text)}
    case = next((case for case in CASES.values() if case.kind == name), None)
    sent = kind(lambda: 0.1, **(case.settings if case else {})).proto_fields()

    assert f"kProtoField = {field.number};" in text
    assert f'kOpName = "{kind.op_name}";' in text
    assert tuple(re.findall(r'"(\w+)"', slots[1] if slots else "")) == kind.slot_names
    assert ("kTrains = false;" in text) == (kind.no_rule is not None)
    if kind.no_rule is None:
        assert settings == {field.message_type.fields_by_name[key].number for key in sent}
