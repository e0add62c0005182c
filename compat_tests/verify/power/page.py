"""Writes the figures of power into docs/verify_power.md."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from compat_tests.verify.power.fault import BATCH_SIZES
from compat_tests.verify.power.faults import FAULTS
from compat_tests.verify.power.measure import Judged, JudgedPair

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "verify_power.md"

_HEAD = """# What verify sees

This page lists planted faults and whether `verify` finds them. `make verify-power` writes the page.
It plants each of {faults} faults in a small program and compares the faulty run (side B) with a
sound run (side A). It also compares pairs of runs that are both sound ("honest pairs"). Every
fault is tried with batches of {sizes} samples, for 20 steps.

| | |
|---|---|
| faults found | {found} of {runs} |
| with the right cause | {named} of {runs} |
| honest pairs | {pairs} |
| false alarms | {alarms} |

A fault counts as found if `verify` calls the sides different. Its cause is right if the planted
cause is among those that `verify` names. In the table of faults, "yes" means that the fault was
found with the right cause, and "found" that it was found with other causes, which are in brackets.
The last column has, for each batch size, the smallest error that `verify` would have found in the
array that diverged first, as a fraction of how far training moves this array. A value is missing
where it is not known or no array of the training diverged.

The sides of an honest pair differ in the engine, the kernels or the version of TensorFlow, or in
one of these points: side B sums gradients in another order; it changes each gradient by one unit in
the last place ("sums of other roundings"); or its initial values have other last bits. A pair
counts as undecided if the verdict is UNDECIDED, and as a false alarm if the verdict is NOT EQUAL or
there is no verdict.
"""


def page(judged: Sequence[Judged], pairs: Mapping[str, Sequence[JudgedPair]]) -> str:
    """Returns the page.

    Args:
        pairs: the honest pairs, by the version of TensorFlow on which they ran.
    """
    every = [pair for of_version in pairs.values() for pair in of_version]
    alarms = [pair for pair in every if pair.is_alarm]
    sizes = [f"{size:,}" for size in BATCH_SIZES]
    parts = [
        _HEAD.format(
            faults=len(FAULTS),
            sizes=f"{', '.join(sizes[:-1])} and {sizes[-1]}",
            found=sum(one.detected for one in judged),
            named=sum(one.named for one in judged),
            runs=len(judged),
            pairs=len(every),
            alarms=len(alarms),
        ),
        "\n## Faults\n\n",
        f"| fault | what side B does | about | {' | '.join(sizes)} | smallest divergence seen |\n",
        f"|---|---|---|{'---|' * len(sizes)}---|\n",
        *(_row(name, judged) for name in FAULTS),
        "\n## Honest pairs\n\n",
        "| TensorFlow | program | sides | pairs | undecided | false alarms |\n",
        "|---|---|---|---|---|---|\n",
        *(line for version in sorted(pairs) for line in _rows_of_pairs(version, pairs[version])),
    ]
    if alarms:
        parts.append("\nFalse alarms:\n\n")
        parts.extend(f"- {pair.title}: {pair.why}\n" for pair in alarms)
    return "".join(parts)


def _row(name: str, judged: Sequence[Judged]) -> str:
    of_size = {one.batch_size: one for one in judged if one.name == name}
    words = [_word(of_size.get(size)) for size in BATCH_SIZES]
    fault = FAULTS[name]
    smallest = "; ".join(one.smallest for one in of_size.values() if one.smallest)
    return f"| {name} | {fault.text} | {fault.kind} | {' | '.join(words)} | {smallest} |\n"


def _word(one: Judged | None) -> str:
    if one is None:
        return "not run"
    if not one.detected:
        return "**missed**"
    return "yes" if one.named else f"found ({', '.join(one.causes) or 'no cause'})"


def _rows_of_pairs(version: str, pairs: Sequence[JudgedPair]) -> list[str]:
    groups: dict[tuple[str, str], list[JudgedPair]] = {}
    for pair in pairs:
        groups.setdefault((pair.program, pair.sides), []).append(pair)
    return [
        f"| {version} | {program} | {sides} | {len(of_group)} "
        f"| {sum(one.status == 'undecided' for one in of_group)} "
        f"| {sum(one.is_alarm for one in of_group)} |\n"
        for (program, sides), of_group in groups.items()
    ]
