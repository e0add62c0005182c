"""The conformance suite as a command, for the installed TensorFlow; "tpu" is a software TPU.

    python -m compat_tests [--driver host|native|tpu] [--report out.json] [--full]

Prints which properties hold for which optimizer on which driver, and what is known of the points
that no public document settles. The exit status is 0 if every property holds.
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

from compat_tests import probes
from compat_tests.cases.optimizers import DRIVERS

HERE = pathlib.Path(__file__).parent
ORACLES = {
    "test_conformance.py": "reference",
    "test_lookup.py": "reference",
    "test_optimizers.py": "reference",
    "test_pipelining.py": "reference",
    "test_tpu_driver.py": "stock graph",
}
"""The files of the suite, and what each is held to."""


class Results:
    """A pytest plugin that leaves out other drivers, and keeps what came of each test."""

    def __init__(self, driver: str | None) -> None:
        self._driver = driver
        self._parameters: dict[str, dict[str, Any]] = {}
        self.found: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Keeps the tests of the driver."""
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
        if report.when == "call" or report.failed:
            self.found.append({**self._parameters[report.nodeid], "outcome": report.outcome})


def _described(item: Any) -> dict[str, Any]:
    parameters = getattr(item, "callspec", None)
    given = parameters.params if parameters else {}
    one = given["group"][given["place"]] if "group" in given else None
    of_file = "tpu" if item.path.name == "test_tpu_driver.py" else "host"
    return {
        "test": item.nodeid,
        "property": " ".join((item.function.__doc__ or item.name).split()),
        "oracle": ORACLES[item.path.name],
        "driver": getattr(one, "driver", of_file),
        "optimizer": getattr(one, "kind", None),
    }


def main() -> int:
    """Runs what the arguments say; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m compat_tests", description=__doc__)
    parser.add_argument("--driver", choices=DRIVERS, help="run the tests of this driver alone")
    parser.add_argument("--report", metavar="FILE", help="write everything as JSON")
    parser.add_argument("--full", action="store_true", help="the thorough tests too: much longer")
    options = parser.parse_args()
    results = Results(options.driver)
    tier = "not soak" if options.full else "not full and not soak"
    files = [str(HERE / name) for name in ORACLES]
    status = pytest.main(["-q", "-m", tier, "-p", "no:cacheprovider", *files], plugins=[results])
    answers = {
        driver: probes.ask_all(driver) for driver in DRIVERS if options.driver in (None, driver)
    }
    show(results.found, answers)
    if options.report:
        report = {
            "tensorflow": tf.version.VERSION,
            "python": platform.python_version(),
            "devices": [device.name for device in tf.config.list_logical_devices()],
            "tests": results.found,
            "probes": answers,
        }
        pathlib.Path(options.report).write_text(json.dumps(report, indent=1) + "\n")
    return int(status)


def show(found: list[dict[str, Any]], answers: dict[str, list[dict[str, Any]]]) -> None:
    """Prints properties by driver and optimizer, and the answers to what is not known."""
    rows = collections.defaultdict(collections.Counter)  # type: ignore[var-annotated]
    for one in found:
        key = (one["property"], one["oracle"], one["driver"], one["optimizer"] or "")
        rows[key][one["outcome"]] += 1
    print(f"\nTensorFlow {tf.version.VERSION}")
    print(f"{'driver':8s}{'optimizer':20s}{'passed':>8s}{'failed':>8s}  oracle, property")
    for (text, oracle, driver, optimizer), counts in sorted(
        rows.items(), key=lambda row: row[0][2:]
    ):
        print(
            f"{driver:8s}{optimizer:20s}{counts['passed']:8d}{counts['failed']:8d}  "
            f"{oracle}: {text[:90]}"
        )
    print("\nWhat no public document says:")
    for driver, of_driver in answers.items():
        for one in of_driver:
            print(f"{driver}: {one['question']}\n    chosen: {one['chosen']}\n    {one['answer']}")


if __name__ == "__main__":
    sys.exit(main())
