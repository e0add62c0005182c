"""Formats a plan as text and as JSON values, with advice."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator

from estimator_bridge import svg
from estimator_bridge.planner.capacity import CapacityPlan
from estimator_bridge.planner.step_time import MOST_NODES, StepTime, TaskTime, shown
from estimator_bridge.readable_sizes import readable
from tf2_engine import plain_text
from tf2_engine.types import Object

_WORTH = 0.95
"""A change is suggested if it shortens a step to less than this fraction of its present time."""

_UNEVEN = 1.1
"""Another layout is suggested if the busiest server's bytes shrink by at least this factor."""

_OF_LIMITS = {
    "the chief's network": "the chief reads the input and sends every worker its ids. Let the "
    "workers read the input, with an input_fn that uses only TensorFlow ops and shards the data by "
    "host; or give the chief the fastest network.",
    "the chief's calls": "the chief calls every task in every step. Fewer workers with more "
    "samples each wait less for the chief.",
    "a worker's network": "with more workers that have fewer samples each, a worker sends less.",
    "a worker's CPU": (
        "with more CPUs, or with more workers that have fewer samples each, sending takes less "
        "time."
    ),
}
_GRADIENTS = {
    "smallest": "for each id or for each activation, whichever takes fewer bytes",
    "occurrences": "for each id",
    "cells": "for each activation",
    "summed": "summed for each row and core",
}
MODEL = (
    "Bytes, milliseconds and numbers of machines come from a model that is linear in bytes and "
    "tensors. It was fitted to few tasks on one machine, and not measured on a cluster of this "
    "size. The numbers of rows and slots on each task are exact."
)
_WIDTH, _HEIGHT = 760, 360
_LEFT, _RIGHT, _TOP, _BASE = 84, 736, 48, 304
_LINE, _AXIS, _GRID = "#2563a6", "#333333", "#cccccc"


def advice(plan: CapacityPlan) -> tuple[str, ...]:
    return (*_memory(plan), *_layout(plan), *_servers(plan), *_limits(plan))


def _memory(plan: CapacityPlan) -> Iterator[str]:
    if not plan.fits:
        need = max(each.bytes for each in plan.memory)
        yield (
            f"{plan.servers} parameter servers are too few: the fullest would need "
            f"{readable(int(need))}. Use {plan.servers_for_memory} servers."
        )
    restoring = max(each.bytes + each.unsliced for each in plan.memory)
    if plan.fits and restoring > plan.machine.memory:
        yield (
            "A checkpoint with each table in one piece, such as one from a single machine, cannot "
            f"be restored here: that takes {readable(int(restoring))} on a parameter server. "
            "Restore it once on more or larger machines, and save it there: each server then "
            "writes its own rows."
        )


def _layout(plan: CapacityPlan) -> Iterator[str]:
    if plan.options.layout == "div" and plan.servers > 1:
        best = plan.uneven["octaves"]
        if plan.uneven["div"] > _UNEVEN * best:
            time = plan.time_with(options=dataclasses.replace(plan.options, layout="octaves"))
            yield (
                f"The layout div sends {plan.uneven['div']:.1f} times the mean to the busiest "
                f"parameter server, octaves {best:.1f} times: rows at the beginning of tables are "
                f"looked up most. With `run --layout octaves`, a step takes {shown(time.ms)} "
                f"instead of {shown(plan.time.ms)}."
            )


def _servers(plan: CapacityPlan) -> Iterator[str]:
    wanted = plan.servers_for_bandwidth
    if wanted is None:
        yield (
            "However many parameter servers there are, the busiest is slower than a worker, "
            "because it has all of the most frequent rows."
        )
    elif wanted > plan.servers:
        more = plan.time_with(servers=wanted)
        if more.ms < _WORTH * plan.time.ms:
            yield (
                f"With {wanted} parameter servers instead of {plan.servers}, a step takes "
                f"{shown(more.ms)} instead of {shown(plan.time.ms)}."
            )


def _limits(plan: CapacityPlan) -> Iterator[str]:
    if plan.time.nodes > MOST_NODES:
        yield (
            f"The chief's graph has {plan.time.nodes / 1e6:.1f} million nodes, which one process "
            "would need too long to build. Use fewer workers with more samples each, or fewer "
            "parameter servers."
        )
    elif plan.time.limit in _OF_LIMITS:
        yield f"A step waits most for {plan.time.limit}: {_OF_LIMITS[plan.time.limit]}"
    alone = next((each for each in plan.growth if each.machines == 1), None)
    if alone is not None and alone.samples_per_second > plan.samples_per_second:
        yield (
            "The tables fit into one machine, which is expected to be faster than this cluster: "
            f"{alone.samples_per_second:,.0f} samples a second, compared with "
            f"{plan.samples_per_second:,.0f}. The model's own time is included only if --model_ms "
            "gives it."
        )


def as_dict(plan: CapacityPlan) -> dict[str, Object]:
    busiest = plan.time.busiest
    return {
        "subject": plan.job.subject,
        "workers": plan.workers,
        "cores": plan.cores,
        "ps": plan.servers,
        "samples_of_a_core": plan.job.samples,
        "lookups": plan.job.source,
        "layout": plan.options.layout,
        "wire": plan.options.wire,
        "chief_reads": plan.options.chief_reads,
        "machine": {
            "memory": plan.machine.memory,
            "network_bits_per_second": plan.machine.network,
            "cpus": plan.machine.cpus,
            "model_ms": plan.machine.model_ms,
        },
        "tables": [_table(plan, index) for index in range(len(plan.job.tables))],
        "bytes_of_tables": plan.job.bytes,
        "least_ps_for_memory": plan.servers_for_memory,
        "least_ps_for_bandwidth": plan.servers_for_bandwidth,
        "fits": plan.fits,
        "tasks": {
            "worker": {"memory": plan.worker_bytes, **_task(plan.time.worker)},
            "ps": [
                {
                    "tables": memory.tables,
                    "memory": memory.bytes,
                    "memory_restoring_in_one_piece": memory.bytes + memory.unsliced,
                    **_task(time),
                }
                for memory, time in zip(plan.memory, plan.time.servers, strict=True)
            ],
        },
        "busiest_ps": {"task": busiest, "over_mean": plan.uneven},
        "step": {
            "payload": plan.cores * plan.traffic.payload,
            "tensors": plan.cores * int(plan.traffic.tensors.sum()),
            "bytes": plan.bytes,
            **_time(plan.time),
            "samples_per_second": plan.samples_per_second,
        },
        "growth": [
            {
                "machines": row.machines,
                "workers": row.workers,
                "ps": row.servers,
                **_time(row.time),
                "samples_per_second": row.samples_per_second,
            }
            for row in plan.growth
        ],
        "advice": list(advice(plan)),
        "coefficients": plan.coefficients.as_dict(),
        "what_is_a_model": MODEL,
    }


def lines(plan: CapacityPlan) -> Iterator[str]:
    yield plan.job.subject
    yield (
        f"  {plan.workers} worker(s) with {plan.cores // plan.workers} core(s) of "
        f"{plan.job.samples} samples each, {plan.servers} ps; a machine has "
        f"{readable(int(plan.machine.memory))}, {plan.machine.network / 1e9:g} Gb/s each way and "
        f"{plan.machine.cpus} CPUs"
    )
    yield f"  lookups: {plan.job.source}"
    yield ""
    yield "Tables"
    for index in range(len(plan.job.tables)):
        table = _table(plan, index)
        servers = len(table["ps"])
        where = "whole on one ps" if servers == 1 else f"in {servers} parts"
        yield (
            f"  {table['name']}: [{table['rows']}, {table['dim']}], {len(table['slots'])} slot(s), "
            f"{readable(table['bytes'])}, {where}; a core looks up "
            f"{table['ids']:,.0f} ids of {table['distinct']:,.0f} rows"
        )
    yield f"  all with their slots: {readable(plan.job.bytes)}"
    yield ""
    yield "Parameter servers"
    yield f"  fewest servers with enough memory: {plan.servers_for_memory}"
    wanted = plan.servers_for_bandwidth
    shown_wanted = "no number is enough" if wanted is None else wanted
    yield f"  fewest servers that are all at least as fast as a worker: {shown_wanted}"
    yield from _lines_of_servers(plan)
    yield ""
    yield "A step"
    yield from _lines_of_step(plan)
    yield ""
    yield "As the cluster grows, with the same samples per worker (estimated)"
    yield "  machines  workers   ps    step ms  samples/s    limit"
    for row in plan.growth:
        yield (
            f"  {row.machines:8d} {row.workers:8d} {row.servers:4d} {row.time.ms:10.1f} "
            f"{row.samples_per_second:10,.0f}    {row.time.limit}"
        )
    proposed = advice(plan)
    if proposed:
        yield ""
        yield "What to change"
        for sentence in proposed:
            yield from textwrap.wrap(
                f"- {plain_text.plain(sentence)}", 96, initial_indent="  ", subsequent_indent="    "
            )
    yield ""
    yield from textwrap.wrap(MODEL, 96)
    yield from textwrap.wrap(f"Coefficients: {plan.coefficients.source}.", 96)


def _lines_of_servers(plan: CapacityPlan) -> Iterator[str]:
    fullest = max(plan.memory, key=lambda each: each.bytes)
    state = "fits" if plan.fits else "DOES NOT FIT"
    yield (
        f"  memory of the fullest server: {readable(int(fullest.bytes))} ({state}), of which "
        f"{readable(fullest.tables)} for tables and slots; to restore a checkpoint with each table "
        f"in one piece, {readable(int(fullest.bytes) + fullest.unsliced)}"
    )
    shares = ", ".join(f"{share:.2f} ({layout})" for layout, share in plan.uneven.items())
    yield (
        "  bytes of the busiest server relative to the mean, by layout: "
        f"{shares}; the plan is for {plan.options.layout}"
    )


def _lines_of_step(plan: CapacityPlan) -> Iterator[str]:
    time = plan.time
    tensors = plan.cores * int(plan.traffic.tensors.sum())
    yield (
        f"  {plan.bytes / 1e6:,.2f} MB on all links, {tensors} tensors; gradients are sent "
        f"{_GRADIENTS[plan.options.wire]} (--wire {plan.options.wire})"
    )
    busiest = time.servers[time.busiest]
    tasks = {"a worker": time.worker, f"ps {time.busiest}, the busiest": busiest}
    for name, task in tasks.items():
        if task is not None:
            yield (
                f"  {name}: sends {task.sent / 1e6:,.2f} MB, gets {task.received / 1e6:,.2f} MB; "
                f"network {shown(task.network_ms)}, CPU {shown(task.cpu_ms)}"
            )
    yield f"  memory of a worker, without model and input: {readable(int(plan.worker_bytes))}"
    parts = {
        "model": time.model_ms,
        "ids from the chief": time.input_ms,
        "exchange": time.exchange_ms,
        "updates": time.update_ms,
        "chief's calls": time.client_ms,
    }
    sum_of_parts = " + ".join(f"{name} {shown(ms)}" for name, ms in parts.items())
    yield f"  expected: {shown(time.ms)} = {sum_of_parts}"
    yield f"  {plan.samples_per_second:,.0f} samples/s; a step waits most for {time.limit}"


def _table(plan: CapacityPlan, index: int) -> dict[str, Object]:
    table = plan.job.tables[index]
    placed, traffic = plan.placement.tables[table.size.name], plan.traffic.tables[table.size.name]
    return {
        "name": table.size.name,
        "rows": table.size.rows,
        "dim": table.size.dim,
        "slots": list(table.slots),
        "bytes": table.size.bytes,
        "ps": list(placed.servers),
        "bytes_on_ps": list(placed.part_bytes),
        "ids": table.load.num_occurrences,
        "distinct": table.load.num_distinct,
        "activations": table.cells,
        "bytes_of_a_core": {
            "wanted": float(traffic.wanted.sum()),
            "rows": float(traffic.rows.sum()),
            "gradients": float(traffic.gradients.sum()),
        },
    }


def _task(time: TaskTime | None) -> dict[str, Object]:
    return {} if time is None else dict(time._asdict())


def _time(time: StepTime) -> dict[str, Object]:
    return {
        "ms": time.ms,
        "model_ms": time.model_ms,
        "input_ms": time.input_ms,
        "exchange_ms": time.exchange_ms,
        "update_ms": time.update_ms,
        "chief_ms": time.client_ms,
        "nodes": time.nodes,
        "limit": time.limit,
    }


def chart(plan: CapacityPlan) -> str:
    rows = [row for row in plan.growth if row.samples_per_second > 0]
    points = [(row.machines, row.samples_per_second) for row in rows]
    rates = [rate for _, rate in points] or [1.0]
    low = math.floor(math.log10(min(rates)))
    high = max(math.ceil(math.log10(max(rates))), low + 1)

    def x(machines: float) -> float:
        return _LEFT + math.log10(machines) / 3 * (_RIGHT - _LEFT)

    def y(rate: float) -> float:
        return _BASE - (math.log10(rate) - low) / (high - low) * (_BASE - _TOP)

    parts = [
        svg.element("rect", x=0, y=0, width=_WIDTH, height=_HEIGHT, fill="white"),
        svg.text(_LEFT, 22, f"{plan.job.subject}: samples a second (a model)", "start"),
    ]
    for decade in range(low, high + 1):
        parts.append(svg.line(_LEFT, y(10.0**decade), _RIGHT, y(10.0**decade), _GRID))
        parts.append(svg.text(_LEFT - 8, y(10.0**decade) + 4, f"{10**decade:,}", "end"))
    for machines in (1, 10, 100, 1000):
        parts.append(svg.line(x(machines), _TOP, x(machines), _BASE, _GRID))
        parts.append(svg.text(x(machines), _BASE + 18, f"{machines}"))
    parts.append(svg.line(_LEFT, _BASE, _RIGHT, _BASE, _AXIS))
    parts.append(svg.text((_LEFT + _RIGHT) / 2, _BASE + 40, "workers and parameter servers"))
    clusters = [(machines, rate) for machines, rate in points if machines > 1]
    if clusters:
        (machines, rate), top = clusters[0], 10.0**high
        # The line ends at the edge of the drawing, or at the largest number of machines.
        last = min(machines * top / rate, clusters[-1][0])
        even = [(x(machines), y(rate)), (x(last), y(rate * last / machines))]
        parts.append(svg.curve(even, _AXIS, 0.0, stroke_dasharray="6 4"))
    places = [(x(machines), y(rate)) for machines, rate in points]
    parts.append(svg.curve(places, _LINE, 3.0, content=svg.element("title", "samples a second")))
    for row, (left, top) in zip(rows, places, strict=True):
        parts.append(svg.text(left, top + 18, shown(row.time.ms), font_size="11"))
    return svg.drawing(
        parts,
        f"0 0 {_WIDTH} {_HEIGHT}",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        font_family="sans-serif",
        font_size="13",
        aria_label="Expected samples a second by the number of machines",
    )
