"""Runs a program with the bridge in place of stock, up to a call to its TPUEstimator."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from unittest import mock

from estimator_bridge import errors
from estimator_bridge.run import install
from estimator_bridge.run.script import program_of, run_program
from estimator_bridge.run.tf1 import running
from tf2_engine.types import Object

_DOING = {"__init__": "making a TPUEstimator", "train": "training a TPUEstimator"}


class _Reached(BaseException):
    """Ends the program at a method. A BaseException, because programs may catch `Exception`."""


class AuditedProgram(NamedTuple):
    """A program to audit.

    `tf1` says whether it runs as a TensorFlow 1 program; if None, the program's source decides.
    `tell` is called with remarks for the user.
    """

    script: str
    arguments: Sequence[str]
    tf1: bool | None
    tell: Callable[[str], object]
    is_module: bool = False

    def arguments_of(self, *methods: str) -> dict[str, Mapping[str, Object]]:
        """Runs the program until it calls the last of `methods`.

        Returns the arguments of the first call of each method.
        """
        argv, path = sys.argv, list(sys.path)
        program = program_of(self.script, self.is_module)
        install.install(replace=True)
        from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator

        first_calls: dict[str, Mapping[str, Object]] = {}
        try:
            # stdout is for the report, not for the program's own output.
            with contextlib.ExitStack() as stack:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
                for method in methods:
                    watching = _watching(
                        TPUEstimator, method, first_calls, stop=method == methods[-1]
                    )
                    stack.enter_context(watching)
                view = running.as_needed(program.file, self.tf1, self.tell, folder=program.folder)
                stack.enter_context(view)
                run_program(program, self.arguments)
        except _Reached:
            return first_calls
        except SystemExit as ended:
            if ended.code:
                raise errors.InvalidInput(
                    f"{self.script} exits with {ended.code!r} without {_DOING[methods[-1]]}. Add "
                    "the arguments that the program needs to get there."
                ) from ended
        finally:
            sys.argv, sys.path[:] = argv, path
            install.uninstall()
        raise errors.InvalidInput(f"{self.script} ends without {_DOING[methods[-1]]}.")


def _watching(
    kind: Object, method: str, first_calls: dict[str, Mapping[str, Object]], *, stop: bool
) -> AbstractContextManager[object]:
    original = getattr(kind, method)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def watched(estimator: Object, *args: Object, **settings: Object) -> Object:
        bound = signature.bind(estimator, *args, **settings)
        first_calls.setdefault(method, dict(bound.arguments))
        if stop:
            raise _Reached
        return original(estimator, *args, **settings)

    return mock.patch.object(kind, method, watched)
