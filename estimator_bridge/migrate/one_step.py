"""Runs a TensorFlow 2 program with only one step per call that trains (`--check-run`).

    python -m estimator_bridge.migrate.one_step [-m] PROGRAM ARGUMENTS...

Each `Trainer`, each `TableModel` of the Keras form and each estimator of the bridge gets a new,
empty directory. A call that trains runs one step, an evaluation reads one batch, and predictions
end after the first batch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence

from estimator_bridge import errors
from estimator_bridge.run.script import StartedProgram, program_of, run_program
from tf2_engine import declared
from tf2_engine.types import Function, Object

CallArguments = dict[str, Object]

_LINES = 20
_LIMITED = ("__init__", "train", "evaluate", "predict")
_NO_TRAINING = 3  # the exit status of a program that did not train
_NEEDS_MODEL = 4  # the exit status of a program that needs the directory of its model


def check(
    program: StartedProgram, arguments: Sequence[str], place: pathlib.Path, target: pathlib.Path
) -> str:
    """Runs the program, which is in the folder `place`, in its own process.

    Errors show the paths that the program's files will have in `target`.

    Returns:
        A note for the user if the check ended before the program did, else "".

    Raises:
        Untranslatable: the program fails, or does not train.
    """
    name = [*(["-m"] if program.is_module else []), program.name]
    command = [sys.executable, "-m", "estimator_bridge.migrate.one_step", *name, *arguments]
    here = str(pathlib.Path(__file__).parents[2])
    paths = [here, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode == _NO_TRAINING:
        raise errors.Untranslatable(
            f"--check-run: {os.path.basename(program.name)} did not train with the arguments "
            f"{[*arguments]}. Give the arguments with which it trains, after its name."
        )
    where = _where(ran.stderr, place, target) or target
    if ran.returncode == _NEEDS_MODEL:
        return (
            f"--check-run ended at {where}, which needs the directory of the trained model: the "
            "check keeps the model in a temporary directory. Everything before it ran."
        )
    if ran.returncode:
        raise errors.Untranslatable(_failure(where, ran))
    return ""


def _where(log: str, place: pathlib.Path, target: pathlib.Path) -> str:
    for file, number in reversed(re.findall(r'File "([^"]+)", line (\d+)', log)):
        path = pathlib.Path(file)
        if path.resolve().is_relative_to(place.resolve()) and path.is_file():
            code = path.read_text(encoding="utf-8", errors="replace").splitlines()
            shown = target / path.resolve().relative_to(place.resolve())
            return f"{shown}, line {number}: `{code[int(number) - 1].strip()}`"
    return ""


def _failure(where: object, ran: subprocess.CompletedProcess[str]) -> str:
    file, log = tempfile.mkstemp(prefix="estimator-bridge-check-run-", suffix=".log")
    with open(file, "w", encoding="utf-8") as written:
        written.write(f"{ran.stdout}\n{ran.stderr}")
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    cause = lines[-1].strip() if lines else f"exit status {ran.returncode}"
    last = "\n".join(f"    {line}" for line in lines[-_LINES:])
    return (
        f"--check-run: {where} fails: {cause}\nIf the program needs arguments, give them after its "
        f"name. Its log is {log}; it ends with\n{last}"
    )


def main() -> None:
    is_module = sys.argv[1] == "-m"
    name, *arguments = sys.argv[1 + is_module :]
    program = program_of(name, is_module)
    home = pathlib.Path(program.file).resolve().parent
    # The first folder serves a start by path; the second serves imports by the package's name.
    sys.path[:0] = [str(home), str(_above_package(home))]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(folder)
        with _limited_estimators(check), declared.recorded(check.limit):
            try:
                run_program(program, arguments)
            except SystemExit as end:
                if end.code:
                    raise
            except Exception as error:
                if not check.is_moved_away(error):
                    raise
                traceback.print_exc()
                sys.exit(_NEEDS_MODEL)
    if not check.trained:
        sys.exit(_NO_TRAINING)


def _above_package(folder: pathlib.Path) -> pathlib.Path:
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


class Check:
    """Limits what the models of a program do; `trained` lists the models that were trained."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.trained: list[object] = []
        # The directories that the models would have without the check.
        self._directories: set[str] = set()

    def elsewhere(self, directory: Object) -> str:
        if directory:
            self._directories.add(os.path.normpath(directory))
        return tempfile.mkdtemp(dir=self._folder)

    def is_moved_away(self, error: Exception) -> bool:
        """Whether a file is missing only because the check gave the model another directory."""
        if not self.trained or type(error).__name__ not in ("NotFoundError", "FileNotFoundError"):
            return False
        paths = map(os.path.normpath, re.findall(r"[^\s'\";,]+", str(error)))
        return any(
            f"{path}/".startswith(f"{each}/") for path in paths for each in self._directories
        )

    def limit(self, kind: Object) -> None:
        if hasattr(kind, "keep_checkpoints"):
            _limit_keras(kind, self)
        else:
            _limit_trainer(kind, self)


def _limit_keras(kind: Object, check: Check) -> None:
    keep, fit = kind.keep_checkpoints, kind.fit
    evaluate, predictions = kind.evaluate, kind.predictions

    @functools.wraps(keep)
    def keep_elsewhere(model: Object, directory: object, *args: Object, **options: Object) -> None:
        keep(model, check.elsewhere(directory), *args, **options)

    @functools.wraps(fit)
    def fit_a_step(model: Object, x: Object, **options: Object) -> Object:
        check.trained.append(model)
        return fit(model, x, **{**options, "steps": 1, "max_steps": None})

    @functools.wraps(evaluate)
    def evaluate_a_batch(model: Object, *args: Object, **options: Object) -> Object:
        return evaluate(model, *args, **{**options, "steps": 1})

    @functools.wraps(predictions)
    def predict_once(model: Object, x: Object) -> Iterator[Object]:
        yield next(predictions(model, x))

    kind.keep_checkpoints, kind.fit = keep_elsewhere, fit_a_step
    kind.evaluate, kind.predictions = evaluate_a_batch, predict_once


@contextlib.contextmanager
def _limited_estimators(check: Check) -> Iterator[None]:
    from estimator_bridge.runtime.estimator.base_estimator import Estimator

    def init(original: Function, estimator: Object, arguments: CallArguments) -> None:
        original(estimator, **arguments)
        estimator._model_dir = check.elsewhere(estimator.model_dir)

    before = dict(vars(Estimator))
    _limit_methods(Estimator, init, check)
    try:
        yield
    finally:
        for name in _LIMITED:
            setattr(Estimator, name, before[name])


def _limit_trainer(kind: Object, check: Check) -> None:
    def init(original: Function, trainer: Object, arguments: CallArguments) -> None:
        config = arguments.get("config")
        asked = arguments.get("model_dir") or getattr(config, "model_dir", None)
        original(trainer, **{**arguments, "model_dir": check.elsewhere(asked)})

    _limit_methods(kind, init, check)


def _limit_methods(kind: Object, init: Function, check: Check) -> None:
    def train(original: Function, trainer: Object, arguments: CallArguments) -> Object:
        check.trained.append(trainer)
        return original(trainer, **{**arguments, "steps": 1, "max_steps": None})

    def evaluate(original: Function, trainer: Object, arguments: CallArguments) -> Object:
        return original(trainer, **{**arguments, "steps": 1})

    def predict(original: Function, trainer: Object, arguments: CallArguments) -> Iterator[Object]:
        yield next(iter(original(trainer, **arguments)))

    methods = dict(zip(_LIMITED, (init, train, evaluate, predict), strict=True))
    for name, method in methods.items():
        setattr(kind, name, _intercepted(getattr(kind, name), method))


def _intercepted(original: Function, replacement: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Object, *args: Object, **kwargs: Object) -> Object:
        _, *arguments = signature.bind(self, *args, **kwargs).arguments.items()
        return replacement(original, self, dict(arguments))

    return method


if __name__ == "__main__":
    main()
