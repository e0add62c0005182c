"""Says which core holds a row.

Source: sharding_strategy in tpu_embedding_configuration.proto, with its example of 13 ids on
5 hosts, for the host. That the cores of a host take its rows in turn is read off the numbers
in TPUEstimatorGradientsWithIdCollisionTest of tensorflow/estimator.
"""

from __future__ import annotations


def owner_core(
    row: int, num_rows: int, num_cores: int, cores_per_host: int | None, sharding: str
) -> int:
    """Returns the core, counted over all hosts, that holds a row.

    Core `c` is on host `c // cores_per_host`. Within a host, the local row index modulo the
    host's cores is the core.

    Args:
        row: the id.
        num_rows: rows of the table; fewer rows than hosts are one each on the first of them.
        num_cores: cores of all hosts.
        cores_per_host: None when all cores are on one host.
        sharding: "div", consecutive ids on one host, the first hosts one row longer when the
            rows do not divide evenly; or "mod", id modulo hosts is the host.

    Raises:
        ValueError: an unknown sharding, or hosts that are not full.
    """
    cores_per_host = cores_per_host or num_cores
    if num_cores % cores_per_host:
        raise ValueError(f"{num_cores} cores do not fill hosts of {cores_per_host}.")
    num_hosts = num_cores // cores_per_host
    if sharding == "mod":
        host, local = row % num_hosts, row // num_hosts
    elif sharding == "div":
        shortest, longer_hosts = divmod(num_rows, num_hosts)
        host, local = 0, row
        while local >= shortest + (host < longer_hosts):
            local -= shortest + (host < longer_hosts)
            host += 1
    else:
        raise ValueError(f'`sharding` is {sharding!r}; known: "div", "mod".')
    return host * cores_per_host + local % cores_per_host
