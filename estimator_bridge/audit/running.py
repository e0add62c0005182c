"""Audits what a program really makes: it runs as far as its first TPUEstimator."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from estimator_bridge import errors
from estimator_bridge.audit.of_spec import DEFAULT_HOSTS, audit_spec
from estimator_bridge.audit.report import Audit, Finding, ordered
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.run import install
from estimator_bridge.run.script import run_script


class _Reached(BaseException):
    """Ends the program; no Exception, which programs catch."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
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
    made = _arguments_of_estimator(script, arguments)
    spec = made.get("embedding_config_spec")
    if spec is None:
        raise errors.InvalidInput(f"{script}: its TPUEstimator has no `embedding_config_spec`.")
    found = audit_spec(spec, f"{script}, as it runs", hosts)
    config = getattr(made.get("config"), "tpu_config", None)
    findings = [*found.findings, *_of_config(config)]
    if spec.partition_strategy == "mod" and not made.get("eval_on_tpu", True):
        findings.append(Finding("mod_partitioning", "TPUEstimator", "eval_on_tpu=False"))
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    remarks = (
        f"use_tpu={made.get('use_tpu', True)}",
        ", ".join(f"{name}={made.get(name)}" for name in sizes),
    )
    return Audit(found.subject, found.tables, found.hosts, ordered(findings), remarks)


def _of_config(config: Any) -> Iterator[Finding]:
    if getattr(config, "num_shards", None) == 1:
        yield Finding("one_core", "TPUConfig", "num_shards=1")
    per_host = getattr(config, "per_host_input_for_training", InputPipelineConfig.PER_HOST_V1)
    if per_host not in (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.PER_HOST_V2):
        yield Finding("input_per_host", "TPUConfig", f"per_host_input_for_training={per_host}")


def _arguments_of_estimator(script: str, arguments: Sequence[str]) -> Mapping[str, Any]:
    argv, path = sys.argv, list(sys.path)
    install.install(replace=True)
    try:
        # What it prints is not what is asked for.
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
    """Makes the constructor of TPUEstimator raise what it is called with."""
    from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator

    own = TPUEstimator.__init__
    signature = inspect.signature(own)

    def stop(self: Any, *args: Any, **settings: Any) -> None:
        raise _Reached(signature.bind(self, *args, **settings).arguments)

    vars_of: Any = TPUEstimator
    vars_of.__init__ = stop
    try:
        yield
    finally:
        vars_of.__init__ = own
