"""Records both sides of a program in this process, and compares them as `verify` does."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from compat_tests.support.legacy_specs import OURS
from compat_tests.verify.power import program as programs
from compat_tests.verify.power.program import Program
from estimator_bridge import estimator
from estimator_bridge.verification.procedure import ComparisonOptions, side_by_side
from estimator_bridge.verification.record.recorder import Recorder
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import SIDES, A, RecordingRequest, Side, opened

Context = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """How a side runs a program.

    Attributes:
        side: one of `SIDES`.
        context: returns a context manager that is open while the side runs.
        start: writes a changed copy of the checkpoint from which the side starts, and returns the
            path of the copy; its arguments are the paths of the checkpoint and of the copy.
    """

    program: Program
    side: str = "bridge-ops"
    context: Context = contextlib.nullcontext
    start: Callable[[str, str], str] = lambda checkpoint, changed: checkpoint

    def record(self, request: RecordingRequest) -> None:
        """Runs everything that the program does, and writes the recording."""
        side = SIDES[self.side]
        if request.begin_from is not None:
            changed = self.start(request.begin_from, f"{request.directory}-start")
            request = dataclasses.replace(request, begin_from=changed)
        recorder = Recorder(request, side, steps=self.program.steps, program="seeded")
        with self.context(), opened(side) as kind, recorder.attached(kind):
            _run(kind, self.program, side, request.directory)


def _run(kind: type, program: Program, side: Side, directory: str) -> None:
    namespace, classes = _names_of(side)
    job = kind(
        model_fn=programs.model_fn_of(program, namespace),
        embedding_config_spec=programs.spec_of(program, namespace, classes),
        config=programs.config_of(program, f"{directory}/unused", namespace),
        use_tpu=side.use_tpu is not False,
        params={},
        train_batch_size=program.batch_size,
        eval_batch_size=program.batch_size,
        predict_batch_size=program.batch_size,
    )
    job.train(programs.input_fn_of(program, "train"), steps=program.steps)
    if program.evaluates:
        job.evaluate(programs.input_fn_of(program, "eval"), steps=program.evaluated)
    if program.predicts:
        list(job.predict(programs.input_fn_of(program, "infer")))
    if program.exports:
        job.export_saved_model(f"{directory}/exports", programs.receiver_of(program))


def _names_of(side: Side) -> tuple[Any, Any]:
    if not side.stock:
        return estimator, OURS
    from compat_tests.support import stock

    return stock.ESTIMATOR, stock.CLASSES


class Comparer:
    """Compares pairs of sides. Each side A is recorded only once, for all its pairs.

    Args:
        directory: where recordings are written. Those of sides B are removed after the comparison.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._number = 0

    def close(self) -> None:
        """Removes the recordings of sides A, which take gigabytes for large batches."""
        shutil.rmtree(self._directory / "a", ignore_errors=True)

    def compare(
        self, name: str, a: Run, b: Run, options: ComparisonOptions | None = None
    ) -> Result:
        """Returns what `verify` finds when it compares two sides.

        Args:
            name: the name of side A; sides A with the same name share one recording.
        """
        self._number += 1
        place = self._directory / f"pair-{self._number}"
        place.mkdir(parents=True)
        recorded = self._directory / "a" / name

        def record(request: RecordingRequest) -> None:
            # The perturbed run of side A depends on side B, so no other pair can use it.
            if request.role != A:
                (a if request.side == A else b).record(request)
                return
            if not recorded.exists():
                a.record(dataclasses.replace(request, directory=str(recorded)))
            pathlib.Path(request.directory).symlink_to(recorded)

        try:
            return side_by_side(record, place, options or ComparisonOptions())
        finally:
            shutil.rmtree(place, ignore_errors=True)
