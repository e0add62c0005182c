"""Runs a TensorFlow 2 program, but with one step for each call that trains (`--check-run`).

    python -m estimator_bridge.migrate.one_step [-m] PROGRAM ARGUMENTS...

Each `Trainer`, each `TableModel` of the Keras form and each estimator of the bridge gets a new,
empty directory. A call that trains makes one step, an evaluation reads one batch, and predictions
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
from collections.abc import Iterator, Sequence

from estimator_bridge import errors
from estimator_bridge.run.script import StartedProgram, program_of, run_program
from tf2_engine import declared
from tf2_engine.types import Function, Object

Arguments = dict[str, Object]

_LINES = 20
_LIMITED = ("__init__", "train", "evaluate", "predict")
_NO_TRAINING = 3  # the exit status of a program that did not train


def check(
    program: StartedProgram, arguments: Sequence[str], place: pathlib.Path, target: pathlib.Path
) -> None:
    """Runs a program in a process of its own; during the check, the program is in `place`.

    Errors name the path `target`, where the program will be written.

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
            f"{[*arguments]}. After the program, give the arguments with which it trains."
        )
    if ran.returncode:
        raise errors.Untranslatable(_failure(_where(ran.stderr, place, target) or target, ran))


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
    trained: list[object] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        _limited_estimators(folder, trained),
        declared.recorded(lambda kind: _limit(kind, folder, trained)),
    ):
        try:
            run_program(program, arguments)
        except SystemExit as end:
            if end.code:
                raise
    if not trained:
        sys.exit(_NO_TRAINING)


def _above_package(folder: pathlib.Path) -> pathlib.Path:
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _limit(kind: Object, folder: str, trained: list[object]) -> None:
    if hasattr(kind, "keep_checkpoints"):
        _limit_keras(kind, folder, trained)
    else:
        _limit_trainer(kind, folder, trained)


def _limit_keras(kind: Object, folder: str, trained: list[object]) -> None:
    keep, fit = kind.keep_checkpoints, kind.fit
    evaluate, predictions = kind.evaluate, kind.predictions

    @functools.wraps(keep)
    def keep_elsewhere(model: Object, directory: object, *args: Object, **options: Object) -> None:
        keep(model, tempfile.mkdtemp(dir=folder), *args, **options)

    @functools.wraps(fit)
    def fit_a_step(model: Object, x: Object, **options: Object) -> Object:
        trained.append(model)
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
def _limited_estimators(folder: str, trained: list[object]) -> Iterator[None]:
    from estimator_bridge.runtime.estimator.base_estimator import Estimator

    def init(original: Function, estimator: Object, arguments: Arguments) -> None:
        original(estimator, **arguments)
        estimator._model_dir = tempfile.mkdtemp(dir=folder)

    before = dict(vars(Estimator))
    _limit_methods(Estimator, init, trained)
    try:
        yield
    finally:
        for name in _LIMITED:
            setattr(Estimator, name, before[name])


def _limit_trainer(kind: Object, folder: str, trained: list[object]) -> None:

    def init(original: Function, trainer: Object, arguments: Arguments) -> None:
        original(trainer, **{**arguments, "model_dir": tempfile.mkdtemp(dir=folder)})

    _limit_methods(kind, init, trained)


def _limit_methods(kind: Object, init: Function, trained: list[object]) -> None:
    def train(original: Function, trainer: Object, arguments: Arguments) -> Object:
        trained.append(trainer)
        return original(trainer, **{**arguments, "steps": 1, "max_steps": None})

    def evaluate(original: Function, trainer: Object, arguments: Arguments) -> Object:
        return original(trainer, **{**arguments, "steps": 1})

    def predict(original: Function, trainer: Object, arguments: Arguments) -> Iterator[Object]:
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
