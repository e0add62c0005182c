"""The conformance suite as a command, for the installed TensorFlow.

    python -m compat_tests [--driver host|native|tpu] [--report out.json] [--full]
    python -m compat_tests --subject stock [--report out.json] [--full]

Prints which properties hold for which optimizer on which driver, what each is held to, and what is
known of the points that no public document settles. The driver "tpu" takes the TPU of the machine,
or one in software where there is none. With `--subject stock` it is stock's own TPUEmbedding that
is held to them, on a software TPU; what it is known to fail is listed with the reasons. The exit
status is 0 if every property holds, but for what is listed.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import platform
import sys
from typing import Any

import pytest
import tensorflow as tf

from compat_tests import known_differences
from compat_tests.cases.optimizers import DRIVERS
from compat_tests.conftest import collect_ignore
from compat_tests.support import oracles, probes, tpus

HERE = pathlib.Path(__file__).parent
OUTCOMES = ("passed", "failed", "skipped", "listed")
"""The last is a known difference of stock, which failed as it should."""
OF_STOCK = "tpu/test_stock_conformance.py"
NEEDS_SOFTWARE = (OF_STOCK, "estimator/test_software_tpu_estimator.py")
"""Files that run stock on a software TPU, and cannot beside another one."""


class Results:
    """A pytest plugin that leaves out other drivers, and keeps what came of each test."""

    def __init__(self, driver: str | None) -> None:
        self._driver = driver
        self._parameters: dict[str, dict[str, Any]] = {}
        self.tests: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept = []
        for item in items:
            of_item = _described(item)
            if self._driver in (None, of_item["driver"]):
                self._parameters[item.nodeid] = of_item
                kept.append(item)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Notes an outcome; a test that fails before or after it runs has failed."""
        if report.when == "call" or report.failed or report.skipped:
            reason = str(report.longrepr[-1]) if report.skipped else None
            of_test = self._parameters[report.nodeid]
            outcome = dict(report.user_properties).get("outcome", report.outcome)
            self.tests.append({**of_test, "outcome": outcome, "reason": reason})


def _described(item: Any) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec else {}
    one = (
        parameters["group"][parameters["place"]] if "group" in parameters else parameters.get("one")
    )
    file, test = item.path.relative_to(HERE).as_posix(), item.originalname
    of_file = {**dict.fromkeys(oracles.OF_TPU_DRIVER, "tpu"), OF_STOCK: "stock"}.get(file, "host")
    if test == "test_a_tpu_pipelines_alike":
        of_file = "tpu"
    optimizer = getattr(one, "kind", parameters.get("kind") if file == OF_STOCK else None)
    return {
        "test": item.nodeid,
        "property": " ".join((item.function.__doc__ or item.name).split()),
        "oracle": oracles.oracle_of(file, test, optimizer),
        "driver": getattr(one, "driver", parameters.get("driver", of_file)),
        "optimizer": optimizer,
    }


def files(subject: str) -> list[str]:
    """Returns the files that a subject is held to; some need stock's estimator beside it."""
    if subject == "stock":
        return [OF_STOCK]
    left_out = {*collect_ignore, *(NEEDS_SOFTWARE if tpus.is_own() else (OF_STOCK,))}
    return [name for name in oracles.FILES if name not in left_out]


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m compat_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--driver", choices=DRIVERS, help="run only the tests of this driver")
    arguments.add_argument(
        "--subject",
        choices=("engine", "stock"),
        default="engine",
        help="the TPUEmbedding to test; stock's has one driver",
    )
    arguments.add_argument("--report", metavar="FILE", help="write all results as JSON")
    arguments.add_argument(
        "--full", action="store_true", help="also run the thorough tests, which take much longer"
    )
    return arguments


def main() -> int:
    """Runs what the arguments say; returns the exit status."""
    arguments = parser()
    options = arguments.parse_args()
    if options.subject == "stock" and options.driver:
        arguments.error("--subject stock has a driver of its own; leave --driver out")
    if options.subject == "stock" and tpus.is_own():
        arguments.error(
            "--subject stock runs on a software TPU, which cannot be beside another one"
        )
    tpu = "the machine's own" if tpus.is_own() else "in software"
    results = Results(options.driver)
    # Stock has one driver, and is through in a minute.
    thorough = options.full or options.subject == "stock"
    tier = "not soak" if thorough else "not full and not soak"
    paths = [str(HERE / name) for name in files(options.subject)]
    status = pytest.main(["-q", "-m", tier, "-p", "no:cacheprovider", *paths], plugins=[results])
    answers = {}
    if options.subject == "engine":
        asked = [driver for driver in DRIVERS if options.driver in (None, driver)]
        answers = {driver: probes.ask_all(driver) for driver in asked}
    table = matrix(results.tests)
    differences = known() if options.subject == "stock" else []
    show(table, answers, differences, tpu)
    if options.report:
        report = {
            "tensorflow": tf.version.VERSION,
            "python": platform.python_version(),
            "subject": options.subject,
            "tpu": tpu,
            "devices": [device.name for device in tf.config.list_logical_devices()],
            "matrix": table,
            "known_differences": differences,
            "tests": results.tests,
            "probes": answers,
        }
        pathlib.Path(options.report).write_text(json.dumps(report, indent=1) + "\n")
    return int(status)


def matrix(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns how often each property held, by driver, optimizer and oracle."""
    rows = collections.defaultdict(collections.Counter)  # type: ignore[var-annotated]
    for one in results:
        key = one["driver"], one["optimizer"] or "", one["oracle"], one["property"]
        rows[key][one["outcome"]] += 1
    return [
        {
            **dict(zip(("driver", "optimizer", "oracle", "property"), key, strict=True)),
            **{outcome: counts[outcome] for outcome in OUTCOMES},
        }
        for key, counts in sorted(rows.items())
    ]


def known() -> list[dict[str, Any]]:
    """Returns what stock is known to fail with what is installed; each case of it was tried."""
    return [
        {"where": dict(line.where), "says": line.says, "why": line.why}
        for line in known_differences.DIFFERENCES
        if line.here
    ]


def show(
    table: list[dict[str, Any]],
    answers: dict[str, list[dict[str, Any]]],
    differences: list[dict[str, Any]],
    tpu: str,
) -> None:
    """Prints properties by driver and optimizer, and the answers to what is not known."""
    print(f"\nTensorFlow {tf.version.VERSION}; TPU: {tpu}")
    counts = "".join(f"{outcome:>8s}" for outcome in OUTCOMES)
    print(f"{'driver':8s}{'optimizer':20s}{counts}  {'oracle':16s}property")
    for row in table:
        counts = "".join(f"{row[outcome]:8d}" for outcome in OUTCOMES)
        print(
            f"{row['driver']:8s}{row['optimizer']:20s}{counts}  {row['oracle']:16s}"
            f"{row['property'][:90]}"
        )
    if differences:
        print("\nListed, as known to fail in these words:")
    for one in differences:
        where = ", ".join(f"{factor} {level}" for factor, level in one["where"].items())
        print(f"{where}: {one['says']}\n    {one['why']}")
    if answers:
        print("\nWhat no public document says:")
    for driver, of_driver in answers.items():
        for one in of_driver:
            print(f"{driver}: {one['question']}\n    chosen: {one['chosen']}\n    {one['answer']}")


if __name__ == "__main__":
    sys.exit(main())
