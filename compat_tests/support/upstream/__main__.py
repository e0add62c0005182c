"""Runs upstream's tests with the bridge in place of their package, and checks the outcomes.

The exit status is 0 if exactly those tests fail that `rows.DIFFERENCES` lists. `--match` runs only
some tests; rows without a test are then not reported.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from compat_tests.support.upstream import rows, worker

_SHARDS = "2"
"""The number of cores that tests emulate, as in the flag in upstream's BUILD files."""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m compat_tests.support.upstream",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = arguments.add_argument
    add("--source", required=True, metavar="DIR", help="a checkout of tensorflow/estimator")
    add("--files", default="tpu/*_test.py", metavar="GLOB", help="test files (tpu/*_test.py)")
    add("--match", default="", metavar="REGEX", help="run tests by Class.method (all)")
    add("--seconds", type=float, default=600, help="time limit of a test (600)")
    add("--report", metavar="FILE", help="write each test's outcome as JSON")
    return arguments


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests, and prints outcomes that contradict the rows."""
    options = parser().parse_args(arguments)
    folder = pathlib.Path(options.source) / rows.FOLDER
    paths = sorted(folder.glob(options.files))
    if not paths:
        print(f"{options.source}: no files match {rows.FOLDER}/{options.files}.")
        return 2
    outcomes: dict[tuple[str, str], worker.Outcome] = {}
    for path in paths:
        file = str(path.relative_to(folder))
        for outcome in run_file(path, file, options.match, options.seconds):
            outcomes[file, outcome.test] = outcome
            print(f"{'passed' if outcome.passed else 'FAILED'}  {file}: {outcome.test}", flush=True)
            if not outcome.passed:
                print("    " + outcome.message.replace("\n", "\n    "), flush=True)
    if options.report:
        report = [{"file": file, **each._asdict()} for (file, _), each in outcomes.items()]
        pathlib.Path(options.report).write_text(json.dumps(report, indent=1) + "\n")
    passed = {key: outcome.passed for key, outcome in outcomes.items()}
    print(f"{sum(passed.values())} of {len(passed)} tests passed.")
    surprises = [*rows.surprises(passed, whole=not options.match)]
    for each in surprises:
        print(each)
    return 1 if surprises else 0


def run_file(path: pathlib.Path, file: str, match: str, seconds: float) -> Iterator[worker.Outcome]:
    """Runs a file's tests that count. Yields an outcome for each, and for a crash of the file.

    Args:
        path, file: the file's path, and its name in the rows.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = pathlib.Path(temporary)
        job = {
            "file": str(path),
            "counted_as": file,
            "match": match,
            "seconds": seconds,
            "flags": {"test_num_shards": _SHARDS},
            "outcomes": str(place / "outcomes"),
        }
        (place / "job.json").write_text(json.dumps(job))
        # The tests are written for Keras 2.
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-m", worker.__name__, str(place / "job.json")]
        ran = subprocess.run(
            command, env={**environment, "TMPDIR": temporary}, capture_output=True, text=True
        )
        if (place / "outcomes").exists():
            for line in (place / "outcomes").read_text().splitlines():
                yield worker.Outcome(**json.loads(line))
        if ran.returncode:
            yield worker.Outcome("the file", False, ran.stderr[-1000:])


if __name__ == "__main__":
    sys.exit(main())
