"""Checks the form of TF_CONFIG: lists of addresses by job, and the place of a task.

TensorFlow's servers accept any text as an address, so a mistake in the cluster would make them wait
forever, in silence, for tasks that do not exist.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping

from estimator_bridge import errors
from tf2_engine.types import Object

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(%\w+)?\]|[^\s:/\[\]]+):(?P<port>[0-9]+)")
_LAST_PORT = 65535
_EXAMPLE = '{"chief": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222", "d:2222"]}'


_TEXTS = ("model_dir", "session_master", "eval_session_master")


def check(config: Mapping[str, Object], cluster: Object, place: Object) -> None:
    """Raises InvalidSpec if a part of TF_CONFIG has the wrong type.

    Args:
        cluster: its "cluster", which must have a list of strings for each job.
        place: its "task", which must be an object.
    """
    for name in _TEXTS:
        if not isinstance(config.get(name, ""), str):
            raise errors.InvalidSpec(
                f'TF_CONFIG: "{name}" must be text, got {config[name]!r}. Write it in quotes, or '
                "leave it out."
            )
    if not isinstance(cluster, dict) or not all(
        isinstance(addresses, list) and all(isinstance(each, str) for each in addresses)
        for addresses in cluster.values()
    ):
        raise errors.InvalidSpec(
            f'TF_CONFIG: "cluster" must have a list of addresses for each job, as in {_EXAMPLE}; '
            f"got {cluster!r}."
        )
    if not isinstance(place, dict) or not isinstance(place.get("type") or "", str):
        raise errors.InvalidSpec(
            f'TF_CONFIG: "task" must be the place of this process in the cluster, as in '
            f'{{"type": "ps", "index": 0}}; got {place!r}.'
        )


def check_addresses(cluster: Mapping[str, list[str]]) -> None:
    """Raises InvalidSpec if a server cannot listen at an address, or two tasks share one."""
    names = {
        (job, index): address
        for job, addresses in cluster.items()
        for index, address in enumerate(addresses)
    }
    for (job, index), address in names.items():
        match = _ADDRESS.fullmatch(address)
        if match is None or not 1 <= int(match["port"]) <= _LAST_PORT:
            raise errors.InvalidSpec(
                f"TF_CONFIG: {job} {index} is at {address!r}, but an address is HOST:PORT, with a "
                f"port from 1 to {_LAST_PORT}, and an IPv6 address in brackets, as in [::1]:2222."
            )
    counts = collections.Counter(names.values())
    for address, count in counts.items():
        if count > 1:
            tasks = " and ".join(
                f"{job} {n}" for (job, n), each in names.items() if each == address
            )
            raise errors.InvalidSpec(
                f"TF_CONFIG: {tasks} are at the same address, {address!r}. Give each task one of "
                "its own: another machine, or another port."
            )


def index_of(place: Mapping[str, Object]) -> int | None:
    """Returns the index of a task, or None; raises InvalidSpec if it is not a whole number."""
    index = place.get("index")
    if index is None:
        return None
    is_number = isinstance(index, int) and not isinstance(index, bool)
    if is_number or (isinstance(index, str) and re.fullmatch(r"-?[0-9]+", index)):
        return int(index)
    raise errors.InvalidSpec(
        f'TF_CONFIG: the "index" of a task must be a whole number, from 0 on for each job; the '
        f"task is {dict(place)!r}."
    )
