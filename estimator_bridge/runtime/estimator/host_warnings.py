"""Words the warnings about an input_fn that several hosts call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator_bridge.runtime.estimator.host_counts import VARIABLE
from estimator_bridge.runtime.program_types import InputFn
from tf2_engine.types import Object


def all_read_the_same(input_fn: InputFn, num_hosts: int) -> str:
    """Warns that an input_fn cannot know which host calls it."""
    return (
        f"The input_fn {_name(input_fn)} is called for each of {num_hosts} hosts, as on a TPU pod, "
        "and does not ask for which: all read the same data. Let it shard them by "
        "params['context'].current_input_fn_deployment()[1:3], the number of the call and that of "
        "all calls; or have the chief read for all workers, with `estimator-bridge run "
        f"--input_hosts 1` or {VARIABLE}=1."
    )


def chief_reads_unsharded(input_fn: InputFn, num_hosts: int) -> str:
    """Notes that the chief calls an input_fn because it does not ask for its host."""
    return (
        f"The input_fn {_name(input_fn)} does not ask which host calls it: the chief reads for all "
        f"{num_hosts} workers, as on one machine. For each to read its own part, let it shard the "
        "data by params['context'].current_input_fn_deployment()[1:3]; or have all read the same "
        f"with `estimator-bridge run --input_hosts {num_hosts}` or {VARIABLE}={num_hosts}."
    )


def chief_reads(input_fn: InputFn, num_hosts: int, names: Sequence[str]) -> str:
    """Warns that the chief calls an input_fn because of Python ops, and names them."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"The input_fn {_name(input_fn)} calls Python (op {names[0]!r}{more}), which the chief "
        f"alone has: it reads for all {num_hosts} worker(s). Ops of TensorFlow alone are run by "
        "each worker itself."
    )


def _name(function: Callable[..., Object]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
