"""Has each side of a comparison run in a process of its own, and says how far it is."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.verify import program
from estimator_bridge.verify.procedure import B, Order
from estimator_bridge.verify.recording import read_progress
from estimator_bridge.verify.sides import SIDES

_LINES = 15


def recorder(
    sides: Mapping[str, str],
    pythons: Mapping[str, str],
    scripts: Mapping[str, str],
    arguments: Sequence[str],
    *,
    steps: int,
    every: int | None,
    progress: Callable[[str, int, int], None],
) -> Callable[[Order], None]:
    """Returns what records a side, for `procedure.side_by_side`.

    Args:
        sides: the name of side "a" and of side "b".
        pythons: the interpreter of each.
        scripts: the program of each; both get the same arguments.
        progress: called with what runs, the steps made, and of how many.
    """

    def record(order: Order) -> None:
        own = B if order.role == B else "a"
        told = {
            "side": sides[own],
            "directory": str(order.directory),
            "begin_from": order.begin_from,
            "nudged": order.nudged,
            "replayed": None if order.replayed is None else str(order.replayed),
            "steps": steps,
            "every": every,
            "script": scripts[own],
            "arguments": list(arguments),
        }
        file = order.directory.with_name(f"{order.role}.json")
        file.write_text(json.dumps(told, indent=1))
        log = order.directory.with_name(f"{order.role}.log")
        named = sides[own]
        if scripts["a"] != scripts["b"]:
            named = f"{os.path.basename(scripts[own])}, {named}"
        what = f"side {own.upper()} ({named}){', nudged' if order.nudged else ''}"
        status = _run([pythons[own], "-m", program.__name__, str(file)], log, order, what)
        if status == program.NOTHING_TRAINED:
            stock = SIDES[sides[own]].stock
            raise errors.InvalidInput(
                f"{what}: {scripts[own]} trained no TPUEstimator of "
                f"{'stock' if stock else 'the bridge, and no class that it declares verifiable'}."
            )
        if status:
            raise errors.InvalidInput(f"{what} failed, with status {status}:\n{_last_lines(log)}")

    def _run(command: Sequence[str], log: pathlib.Path, order: Order, what: str) -> int:
        progress(what, 0, steps)
        with open(log, "wb") as output:
            try:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            except OSError as error:
                raise errors.InvalidInput(
                    f"{what}: {command[0]} does not start: {error}"
                ) from error
            try:
                while process.poll() is None:
                    done = read_progress(order.directory)
                    if done is not None:
                        progress(what, *done)
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        progress(what, *(read_progress(order.directory) or (0, steps)))
        return process.returncode

    return record


def _last_lines(log: pathlib.Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-_LINES:])
