"""Runs the tests of one of upstream's files, each in its own process.

The argument of `python -m` with this module is a JSON file that names the test file. The module
writes a line of JSON whenever a test ends. It forks the processes after TensorFlow is loaded, so
that tests cannot affect each other.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pathlib
import re
import select
import signal
import sys
import unittest
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple, TextIO

from compat_tests.support.upstream import rows

_LOOP_KNOB = "_WRAP_INPUT_FN_INTO_WHILE_LOOP"
_LIBRARY = "tensorflow_estimator.python.estimator"
# Test files import these modules for tests that do not count. The bridge has none of their names.
_ABSENT = ("tpu.error_handling", "tpu.iteration_count_estimator", "tpu.util")
_LAST_CHARACTERS = 300
_WITHOUT_END = 30.0


class Outcome(NamedTuple):
    """The outcome of a test: whether it passed, and if not, the end of its message."""

    test: str
    passed: bool
    message: str


def main(path: str) -> None:
    """Runs the tests that a job selects. `path` is a JSON file with the job."""
    job = json.loads(pathlib.Path(path).read_text())
    put_the_bridge_in_place()
    module = load(job["file"])
    parse_flags(job["flags"])
    pattern = re.compile(job["match"])
    with open(job["outcomes"], "w") as output:
        for name, test in tests_of(module):
            if pattern.search(name) and rows.counts(job["counted_as"], name):
                _write(output, run_in_fork(name, test, _limit(job, name)))


def _limit(job: dict[str, Any], name: str) -> float:
    """Returns the time limit of a test in seconds.

    If stock refuses a model, its test requests endless predictions, which would fill the memory.
    """
    seconds: float = job["seconds"]
    is_to_pass = rows.difference_of(job["counted_as"], name) is None
    return seconds if is_to_pass else min(seconds, _WITHOUT_END)


def put_the_bridge_in_place() -> None:
    """Replaces the modules of stock's package, and `tf.contrib.summary`, by those of the bridge."""
    from estimator_bridge.run import install
    from estimator_bridge.run.tf1.running import TF1View

    install.install(replace=True)
    for name in _ABSENT:
        parent, _, last = f"{_LIBRARY}.{name}".rpartition(".")
        if f"{_LIBRARY}.{name}" not in sys.modules:
            module = sys.modules[f"{_LIBRARY}.{name}"] = ModuleType(f"{_LIBRARY}.{name}")
            setattr(sys.modules[parent], last, module)
    # Tests set this attribute, which selects one of two loops in stock and has no effect here.
    setattr(sys.modules[f"{_LIBRARY}.tpu.tpu_estimator"], _LOOP_KNOB, False)
    view = TF1View()
    for name in ("tensorflow.contrib", "tensorflow.contrib.summary"):
        sys.modules[name] = view.module(name)


def load(path: str) -> ModuleType:
    """Loads a test file, and runs the code before `main()` in its `__main__` block."""
    name = f"upstream_{pathlib.Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    tree = ast.parse(pathlib.Path(path).read_bytes())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and _is_main(node.test)]
    statements = [each for block in blocks for each in block.body if not _calls_main(each)]
    code = compile(ast.Module(body=statements, type_ignores=[]), path, "exec")
    exec(code, vars(module))
    return module


def _is_main(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare) and getattr(node.left, "id", "") == "__name__"


def _calls_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).endswith("main()")


def parse_flags(values: dict[str, str]) -> None:
    from absl import flags

    known = [f"--{name}={value}" for name, value in values.items() if name in flags.FLAGS]
    flags.FLAGS([sys.argv[0], *known])


def tests_of(module: ModuleType) -> Iterator[tuple[str, unittest.TestCase]]:
    """Yields the name, "Class.method", and the test case of each test in a module."""
    waiting: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, unittest.TestSuite):
            waiting = [*each, *waiting]
        elif type(each).__module__ == module.__name__ and each._testMethodName != "test_session":
            yield f"{type(each).__name__}.{each._testMethodName}", each


def run_in_fork(name: str, test: unittest.TestCase, seconds: float) -> Outcome:
    """Runs a test in a forked process with a time limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        message = _failure_of(test)
        os.write(writer, json.dumps(message).encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], seconds)
    content = os.read(reader, 1 << 16) if ready else b""
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not content:
        message = "its process ended" if ready else f"it takes more than {seconds} seconds"
    else:
        message = json.loads(content)
    return Outcome(name, not message, message)


def _failure_of(test: unittest.TestCase) -> str:
    """Runs a test in this process. Returns why it failed, or "" if it passed."""
    result = unittest.TestResult()
    test(result)
    if result.skipped:
        return f"it is skipped: {result.skipped[0][1]}"
    failures = [text for _, text in (*result.errors, *result.failures)]
    return failures[0].strip()[-_LAST_CHARACTERS:] if failures else ""


def _write(output: TextIO, outcome: Outcome) -> None:
    output.write(json.dumps(outcome._asdict()) + "\n")
    output.flush()


if __name__ == "__main__":
    main(sys.argv[1])
