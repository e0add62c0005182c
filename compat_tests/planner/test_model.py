"""The model of a cluster's step, compared with arithmetic by hand and with randomly drawn ids."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_bridge import errors
from estimator_bridge.planner.calibration import Measured, fit
from estimator_bridge.planner.capacity import (
    RESTORING_BYTES,
    Options,
    least_servers,
    plan_capacity,
    server_memory,
)
from estimator_bridge.planner.job import Job, RowLoad, TableLoad, sampled_load, zipf_load
from estimator_bridge.planner.step_time import (
    Coefficients,
    Machine,
    Wire,
    core_traffic,
    graph_nodes,
    on_servers,
    step_bytes,
    step_time,
    values_updated,
)
from tf2_engine.placement import Layout, TableSize, place_tables

ONLY_CALLS = dataclasses.replace(Coefficients(), cpu_ms_per_megabyte=0.0)
NO_HEADERS = dataclasses.replace(Coefficients(), bytes_per_tensor=0.0)


def even_job(tables: int, dim: int, ids: float, distinct: float, rows: int = 9000) -> Job:
    """Returns a job whose lookups are the same for all rows of all tables."""
    ones = np.ones(rows)
    load = RowLoad(np.arange(rows), ones, ones * distinct / rows, ones * ids / rows)
    sizes = [TableSize(f"t{i}", rows, dim, 2) for i in range(tables)]
    return Job("even", tuple(TableLoad(size, load, ids) for size in sizes), int(ids), "by hand")


@pytest.mark.parametrize(
    "workers, servers, tensors, network_ms, call_ms, nodes",
    [
        (8, 2, 8, (11.9, 47.7), 1.5, 0.01e6),
        (64, 36, 144, (11.9, 21.2), 27, 1.2e6),
        (500, 500, 2000, (11.9, 11.9), 375, 130e6),
    ],
)
def test_figures_of_26_tables(
    workers: int,
    servers: int,
    tensors: int,
    network_ms: tuple[float, float],
    call_ms: float,
    nodes: float,
) -> None:
    """26 tables of dim 32, 4,096 ids of 2,048 rows a worker, 10 Gb/s: worked out by hand.

    A worker sends 26 (2048 8 + 4096 136) bytes, and half the CPU of a tensor is at either end.
    """
    job = even_job(26, 32, 4096, 2048)
    # Every row counts alike: mod spreads 9,000 of them evenly over 2, 36 and 500.
    placement = place_tables(job.sizes, servers, layout="mod", whole_up_to=0)
    machine = Machine(16e9, 10e9, cpus=1)
    traffic = core_traffic(job, placement)
    assert traffic.tensors.sum() == tensors
    time = step_time(
        *(job, placement, traffic, machine, ONLY_CALLS), workers=workers, cores=workers
    )
    assert time.worker is not None
    assert time.worker.cpu_ms == pytest.approx(call_ms)
    time = step_time(
        *(job, placement, traffic, machine, NO_HEADERS), workers=workers, cores=workers
    )
    assert time.worker is not None
    milliseconds = (time.worker.network_ms, time.servers[time.busiest].network_ms)
    assert milliseconds == pytest.approx(network_ms, rel=0.01)  # They are rounded to three digits.
    per_core = dataclasses.replace(
        Coefficients(), nodes_per_core=413, nodes_per_table=0, nodes_per_part=20
    )
    expected = pytest.approx(nodes, rel=0.2)  # It is given to one or two digits.
    assert graph_nodes(job, placement, workers, per_core) == expected


@pytest.mark.parametrize(
    "wire, gradients",
    [
        ("occurrences", 60 * (8 + 16)),
        ("cells", 20 * 16 + 60 * 20),
        ("smallest", 60 * (8 + 16)),
        ("summed", 30 * (8 + 16)),
    ],
)
def test_bytes_of_each_form(wire: Wire, gradients: float) -> None:
    """One table of dim 4 on one server: 60 ids of 30 rows, in 20 activations."""
    job = even_job(1, 4, 60, 30, rows=100)
    job = dataclasses.replace(job, tables=(dataclasses.replace(job.tables[0], cells=20.0),))
    traffic = core_traffic(job, place_tables(job.sizes, 1), wire=wire)

    (table,) = traffic.tables.values()
    assert (table.wanted.sum(), table.rows.sum()) == pytest.approx((30 * 8, 30 * 16))
    assert table.gradients.sum() == pytest.approx(gradients)
    payload = 30 * 24 + gradients
    assert step_bytes(traffic, 3, Coefficients()) == pytest.approx(3 * payload + 652 * 12 + 2800)


@pytest.mark.parametrize(
    "ids, distinct, features, touched",
    [
        # Two ids need each of two servers with probability 3/4.
        (80, 40, (), 40 * 0.75),
        # Of a feature of its own, one id touches one server, and three ids nearly both.
        (40, 40, ((10.0, 10.0), (10.0, 30.0)), 10 * 0.5 + 10 * (1 - 0.5**3)),
    ],
)
def test_an_activation_goes_to_every_server_it_has_ids_of(
    ids: float, distinct: float, features: tuple[tuple[float, float], ...], touched: float
) -> None:
    job = even_job(1, 4, ids, distinct, rows=1000)
    table = dataclasses.replace(job.tables[0], cells=ids / 2, features=features)
    job = dataclasses.replace(job, tables=(table,))
    placement = place_tables(job.sizes, 2, layout="mod", whole_up_to=0)
    (traffic,) = core_traffic(job, placement, wire="cells").tables.values()
    assert traffic.gradients == pytest.approx([touched * 16 + ids / 2 * 20] * 2)


def test_rows_are_updated_once_for_all_cores() -> None:
    """Cores that draw a row with 1/2 each update it with 3/4; its slot with it."""
    job = even_job(1, 4, 50, 50, rows=100)
    placement = place_tables(job.sizes, 2, layout="mod", whole_up_to=0)

    assert values_updated(job, placement, 1) == pytest.approx([25 * 8] * 2)
    assert values_updated(job, placement, 2) == pytest.approx([37.5 * 8] * 2)


@pytest.mark.parametrize("exponent", [0.0, 1.05, 1.2])
def test_groups_of_rows_stand_for_all_rows(exponent: float) -> None:
    """Distinct rows of a Zipf law are those of the sum over all rows.

    A group is 0.3 % wide at most, and the error of its middle is of the second order in that.
    """
    rows, ids = 300_000, 5000
    frequency = np.arange(1, rows + 1) ** -exponent
    frequency /= frequency.sum()
    expected = -np.expm1(ids * np.log1p(-frequency)).sum()
    load = zipf_load(rows, ids, exponent)

    assert load.num_distinct == pytest.approx(expected, rel=1e-4)
    assert load.num_occurrences == pytest.approx(ids)
    assert load.widths.sum() == rows


@pytest.mark.parametrize(
    "exponent, share, uneven",
    [
        (1.05, 0.46, {2: (1.85, 1.02, 1.15), 8: (6.2, 1.05, 1.08)}),
        (1.2, 0.25, {2: (1.92, 1.01, 1.16), 8: (7.0, 1.07, 1.07)}),
    ],
)
def test_skew_is_that_of_drawn_ids(
    exponent: float, share: float, uneven: dict[int, tuple[float, float, float]]
) -> None:
    """8,192 ids of a million rows: distinct rows, and the busiest server over the mean.

    The figures are means of five draws, of which the busiest of 8 with some 470 rows each is 5 %
    above an expectation by chance.
    """
    load = zipf_load(1_000_000, 8192, exponent)
    assert load.num_distinct / 8192 == pytest.approx(share, abs=0.01)
    for servers, ratios in uneven.items():
        layouts: tuple[Layout, ...] = ("div", "mod", "octaves")
        for layout, expected in zip(layouts, ratios, strict=True):
            size = TableSize("t", 1_000_000, 32)
            placed = place_tables([size], servers, layout=layout).tables["t"]
            rows = on_servers(placed, load.rows, load.distinct, servers)
            assert rows.max() / rows.mean() == pytest.approx(expected, rel=0.06), (servers, layout)


def test_a_sample_counts_rows() -> None:
    """A sample gives the lookups of each row in a step, and the share of steps that look it up."""
    load = sampled_load(10, [np.array([3, 3, 7]), np.array([[3, 11], [-1, 9]])])

    assert load.rows.tolist() == [3, 7, 9]
    assert load.distinct.tolist() == [1, 0.5, 0.5]
    assert load.occurrences.tolist() == [1.5, 0.5, 0.5]
    assert sampled_load(10, []).num_distinct == 0


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    tables=st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 64)), min_size=1, max_size=4),
    megabytes=st.floats(2, 40),
)
def test_one_server_fewer_has_not_enough_memory(
    tables: list[tuple[int, int]], megabytes: float
) -> None:
    sizes = [TableSize(f"t{i}", rows, dim, 3) for i, (rows, dim) in enumerate(tables)]
    load = zipf_load(10, 1)
    job = Job("any", tuple(TableLoad(size, load, 1) for size in sizes), 1, "by hand")
    free = dataclasses.replace(Coefficients(), task_bytes=0.0)
    memory = RESTORING_BYTES + megabytes * 1e6

    def needs(servers: int) -> float:
        placement = place_tables(sizes, servers)
        return max(server_memory(placement, s, free).bytes for s in range(servers))

    least = least_servers(job, lambda servers: place_tables(sizes, servers), memory, free)
    assert needs(least) <= memory
    assert least == 1 or needs(least - 1) > memory


def test_what_fits_nowhere_is_refused_by_name() -> None:
    """A machine smaller than TensorFlow, and a row larger than a machine, are refused."""
    job = even_job(1, 1_000_000_000, 1, 1, rows=3)

    with pytest.raises(errors.InvalidInput, match="no room for tables"):
        plan_capacity(job, Machine(1e8, 1e9))
    with pytest.raises(errors.InvalidInput, match="Table 't0': a row with its slots takes"):
        plan_capacity(job, Machine(1e9, 1e9))


def test_one_server_fewer_is_slower_than_a_worker() -> None:
    """With the least number for bandwidth the busiest is no slower than a worker."""
    job = even_job(4, 32, 4096, 2048)
    machine = Machine(16e9, 10e9)
    plan = plan_capacity(job, machine, workers=12, options=Options(layout="mod"))

    wanted = plan.servers_for_bandwidth
    assert wanted is not None
    assert wanted > 1
    for servers, is_enough in ((wanted, True), (wanted - 1, False)):
        time = plan.time_with(servers=servers)
        assert time.worker is not None
        assert (time.servers[time.busiest].ms <= time.worker.ms) is is_enough


def test_a_fit_finds_the_coefficients_it_was_made_from() -> None:
    """Measurements without noise give the coefficients back; what they do not tell is kept."""

    def measured(payload: float, tensors: int, *, counted: bool = True) -> Measured:
        size = 1.01 * payload + 600 * tensors + 3000 if counted else None
        return Measured(payload, tensors, size, 2.5 * payload / 1e6 + 0.2 * tensors + 4)

    cases = [(1e3, 4), (1e6, 4), (1e7, 32), (1e5, 128)]
    coefficients = fit([measured(*case) for case in cases], "a test")
    assert (coefficients.bytes_per_byte, coefficients.bytes_per_tensor) == pytest.approx(
        (1.01, 600)
    )
    assert (coefficients.cpu_ms_per_megabyte, coefficients.cpu_ms_per_tensor) == pytest.approx(
        (2.5, 0.2)
    )
    assert (coefficients.cpu_ms_per_step, coefficients.source) == (pytest.approx(4), "a test")
    partial = fit([measured(*case, counted=case != cases[0]) for case in cases], "a test")
    assert partial.bytes_per_tensor == Coefficients().bytes_per_tensor


def test_no_coefficient_is_negative() -> None:
    """Where noise would make one negative it is 0, and the others are fitted without it."""
    cases = [Measured(1e6, 10, None, 9.0), Measured(2e6, 20, None, 19.0), Measured(4e6, 5, None, 5)]
    coefficients = fit(cases, "a test")

    values = (
        coefficients.cpu_ms_per_megabyte,
        coefficients.cpu_ms_per_tensor,
        coefficients.cpu_ms_per_step,
    )
    assert min(values) == 0
    assert max(values) > 0
