"""Writes docs/verify_power.md: which faults `verify` finds, and which honest pairs it rejects."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from compat_tests.verify.power.fault import BATCH_SIZES
from compat_tests.verify.power.faults import FAULTS
from compat_tests.verify.power.measure import Judged, JudgedPair

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "verify_power.md"

_HEAD = """# What verify sees

This page lists planted faults and shows which of them `verify` finds. `make verify-power` writes
the page. The command plants each of {faults} faults in a small program, and compares the faulty run
(side B) with a sound run (side A). It also compares pairs of runs that are both sound ("honest
pairs"). Every fault is tried with batches of {sizes} samples, and
counts once for each batch size. A run has 20 steps, but 300 for the fault "loss of step 300".

| | |
|---|---|
| faults found | {found} of {runs} |
| faults found with the right cause | {named} of {runs} |
| honest pairs | {pairs} |
| honest pairs with the verdict UNDECIDED | {undecided} |
| false alarms | {alarms} |

A fault counts as found if `verify` calls the sides different. The cause is right if `verify` names
the planted cause, perhaps among others. In the table of faults, "yes" means that the fault was
found with the right cause. "found" means that it was found with other causes, which are in
brackets. The last column gives the smallest error that `verify` would have found in the array that
diverged first, for each batch size, and names that array. The error is a fraction of how far
training moves the array or, for activations and the loss, a fraction of their values. "?" means
that the error is not known. The column is empty if no array differed during the training.

In an honest pair, side B differs from side A in one of these points: it runs on another engine,
with other kernels or on another version of TensorFlow; it sums gradients in another order; or each
gradient, or each initial value, is changed by one unit in the last place ("perturbed gradients", "a
perturbed start"). In the pairs with "itself", nothing differs. A pair counts as undecided if the
verdict is UNDECIDED, and as a false alarm if the verdict is NOT EQUAL or there is no verdict.
"""


def page(judged: Sequence[Judged], pairs: Mapping[str, Sequence[JudgedPair]]) -> str:
    """Returns the page.

    Args:
        pairs: the honest pairs, keyed by the version of TensorFlow on which side A ran.
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
            undecided=sum(one.status == "undecided" for one in every),
            alarms=len(alarms),
        ),
        "\n## Faults\n\n",
        f"| fault | what side B does | subject | {_columns(sizes)} | smallest visible error |\n",
        f"|---|---|---|{'---|' * len(sizes)}---|\n",
        *(_row(name, judged) for name in FAULTS),
        "\n## Honest pairs\n\n",
        "| TensorFlow | program | side A against side B | pairs | undecided | false alarms |\n",
        "|---|---|---|---|---|---|\n",
        *(line for version in sorted(pairs) for line in _rows_of_pairs(version, pairs[version])),
    ]
    if alarms:
        parts.append("\nFalse alarms:\n\n")
        parts.extend(f"- {pair.title}: {pair.why}\n" for pair in alarms)
    return "".join(parts)


def _columns(sizes: Sequence[str]) -> str:
    return " | ".join(f"found, batch size {size}" for size in sizes)


def _row(name: str, judged: Sequence[Judged]) -> str:
    of_size = {one.batch_size: one for one in judged if one.name == name}
    words = [_word(of_size.get(size)) for size in BATCH_SIZES]
    fault = FAULTS[name]
    visible = [of_size[size].smallest for size in BATCH_SIZES if size in of_size]
    smallest = "; ".join(each or "?" for each in visible) if any(visible) else ""
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
