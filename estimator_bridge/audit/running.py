"""Audits the spec that a program makes: runs it as far as its first TPUEstimator."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.audit.of_spec import DEFAULT_HOSTS, audit_spec, notes_to_report
from estimator_bridge.audit.report import Audit, findings_of
from estimator_bridge.run import install
from estimator_bridge.run.script import run_script
from estimator_bridge.settings.detect import notes_of_settings
from estimator_bridge.settings.note import Note, Place, SourceText
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine.types import Object


class _Reached(BaseException):
    """Ends the program at its TPUEstimator; not an Exception, since programs catch these."""

    def __init__(self, arguments: Mapping[str, Object]) -> None:
        super().__init__()
        self.arguments = arguments


def audit_run(
    script: str, arguments: Sequence[str] = (), hosts: Sequence[int] = DEFAULT_HOSTS
) -> Audit:
    """Runs a program with the bridge in the place of stock, up to its first TPUEstimator.

    Everything before that is done: flags, data, files. Nothing after it is.

    Args:
        arguments: of the program.
        hosts: numbers of hosts to divide the tables among.

    Raises:
        InvalidInput: it ends without a TPUEstimator, or that has no EmbeddingConfigSpec.
    """
    given = _arguments_of_estimator(script, arguments)
    spec = given.get("embedding_config_spec")
    if spec is None:
        raise errors.InvalidInput(f"{script}: its TPUEstimator has no `embedding_config_spec`.")
    notes = [*notes_to_report(read_spec(spec))]
    config = getattr(given.get("config"), "tpu_config", None)
    if config is not None:
        notes += notes_of_settings("TPUConfig", config._asdict(), Place("TPUConfig"))
    if spec.partition_strategy == "mod" and not given.get("eval_on_tpu", True):
        text = SourceText("eval_on_tpu=False")
        notes.append(Note("mod_partitioning", Place("TPUEstimator"), text))
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    remarks = (
        f"use_tpu={given.get('use_tpu', True)}",
        ", ".join(f"{name}={given.get(name)}" for name in sizes),
    )
    audit = audit_spec(spec, f"{script}, as it runs", hosts)
    return dataclasses.replace(audit, findings=findings_of(notes), remarks=remarks)


def _arguments_of_estimator(script: str, arguments: Sequence[str]) -> Mapping[str, Object]:
    argv, path = sys.argv, list(sys.path)
    install.install(replace=True)
    try:
        # The report goes to stdout; the program's own output does not belong there.
        with _stopping_at_the_estimator(), contextlib.redirect_stdout(sys.stderr):
            run_script(script, arguments)
    except _Reached as reached:
        return reached.arguments
    except SystemExit as ended:
        if ended.code:
            raise errors.InvalidInput(
                f"{script} exits with {ended.code!r} before it makes a TPUEstimator. Does it lack "
                "arguments?"
            ) from ended
    finally:
        sys.argv, sys.path[:] = argv, path
        install.uninstall()
    raise errors.InvalidInput(f"{script} ends without making a TPUEstimator.")


@contextlib.contextmanager
def _stopping_at_the_estimator() -> Iterator[None]:
    """Makes the constructor of TPUEstimator raise `_Reached` with its arguments."""
    from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator

    init = TPUEstimator.__init__
    signature = inspect.signature(init)

    def stop(self: Object, *args: Object, **settings: Object) -> None:
        raise _Reached(signature.bind(self, *args, **settings).arguments)

    kind: Object = TPUEstimator
    kind.__init__ = stop
    try:
        yield
    finally:
        kind.__init__ = init
