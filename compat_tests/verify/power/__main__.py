"""Measures which errors `verify` finds (its power), and rewrites docs/verify_power.md.

    python -m compat_tests.verify.power                  everything that this TensorFlow can run
    python -m compat_tests.verify.power --only 'Adam.*'  only faults and pairs with such names
    python -m compat_tests.verify.power --other PYTHON   also pairs with PYTHON's TensorFlow
    python -m compat_tests.verify.power --what page      rewrites the page, and measures nothing

Results are kept in build/verify_power until they are measured again: those of faults for each batch
size, and those of pairs for each version of TensorFlow. The page shows all of them. A run with
--only does not rewrite the page.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator

import tensorflow as tf

import compat_tests.conftest  # noqa: F401  # Keras 2 comes before anything touches tf.keras.
from compat_tests.verify.power import honest, measure, page
from compat_tests.verify.power.comparing import Comparer
from compat_tests.verify.power.faults import FAULTS

FIGURES = pathlib.Path("build") / "verify_power"


def main(arguments: list[str]) -> int:
    """Runs the command; returns 1 if there is a missed fault or a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m compat_tests.verify.power")
    parser.add_argument("--only", help="a regular expression for the names of faults and pairs")
    parser.add_argument("--sizes", default="64,1024,8192", help="batch sizes for the faults")
    parser.add_argument("--what", choices=("faults", "pairs", "both", "page"), default="both")
    parser.add_argument(
        "--other", help="a Python interpreter with another TensorFlow, for pairs of both versions"
    )
    parser.add_argument("--show", action="store_true", help="print each whole report")
    options = parser.parse_args(arguments)
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    judged: list[measure.Judged] = []
    pairs: list[measure.JudgedPair] = []
    with tempfile.TemporaryDirectory() as temporary:
        if options.what in ("faults", "both"):
            judged = list(_faults(pathlib.Path(temporary), options))
        if options.what in ("pairs", "both"):
            pairs = list(_pairs(pathlib.Path(temporary), options))
    print(
        f"{sum(one.detected for one in judged)} of {len(judged)} faults found, "
        f"{sum(one.named for one in judged)} with the right cause; "
        f"{sum(one.is_alarm for one in pairs)} false alarms in {len(pairs)} honest pairs"
    )
    if not options.only:
        _write_page()
    return int(not (all(one.detected for one in judged) and not any(one.is_alarm for one in pairs)))


def _faults(directory: pathlib.Path, options: argparse.Namespace) -> Iterator[measure.Judged]:
    sizes = tuple(map(int, options.sizes.split(",")))
    names = [name for name in FAULTS if re.search(options.only or "", name)]
    for one, result in measure.judge_all(directory, names, sizes):
        verdict = "named" if one.named else "found" if one.detected else "MISSED"
        print(f"{verdict:6} {one.name}, batch {one.batch_size}: {one.causes}", flush=True)
        if options.show:
            print(result)
        measure.update(FIGURES / f"faults-{one.batch_size}.json", [one], lambda each: (each.name,))
        yield one


def _pairs(directory: pathlib.Path, options: argparse.Namespace) -> Iterator[measure.JudgedPair]:
    comparer = Comparer(directory / "honest")
    across = honest.pairs_across(options.other) if options.other else ()
    for pair in (*honest.pairs(), *across):
        if not re.search(options.only or "", pair.title):
            continue
        verdict, result = measure.judge_pair(comparer, pair)
        word = "ALARM" if verdict.is_alarm else verdict.status
        print(f"{word:9} {verdict.title} {verdict.why}", flush=True)
        if options.show:
            print(result)
        of_version = FIGURES / f"pairs-{tf.__version__}.json"
        measure.update(of_version, [verdict], lambda each: (each.title,))
        yield verdict


def _write_page() -> None:
    files = sorted(FIGURES.glob("faults-*.json"))
    judged = [one for path in files for one in measure.read(path, measure.Judged)]
    by_version = {
        path.stem.removeprefix("pairs-"): measure.read(path, measure.JudgedPair)
        for path in sorted(FIGURES.glob("pairs-*.json"))
    }
    page.PAGE.write_text(page.page(judged, by_version))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
