"""Suggests changes to a cluster, each with the improvement to expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from estimator_bridge.planner.capacity import CapacityPlan
from estimator_bridge.planner.step_time import MOST_NODES, shown
from estimator_bridge.readable_sizes import readable

_WORTH = 0.95
"""A change is suggested if a step then takes less than this fraction of its time."""

_UNEVEN = 1.1
"""Another layout is suggested if it divides the busiest server's bytes by at least this number."""

_OF_LIMITS = {
    "the chief's network": "the chief reads the input and sends every worker its ids. Let the "
    "workers read it, with an input_fn of TensorFlow's ops that shards by its host; or give the "
    "chief the fastest network.",
    "the chief's calls": "it calls every task in every step. Fewer workers with more samples each "
    "wait less for it.",
    "a worker's network": "more workers with fewer samples each send less, each of them.",
    "a worker's CPU": "more CPUs, or more workers with fewer samples each, send faster.",
}


def advice(plan: CapacityPlan) -> tuple[str, ...]:
    """Lists the changes that would help a plan, the most urgent first."""
    return (*_memory(plan), *_layout(plan), *_servers(plan), *_limits(plan))


def _memory(plan: CapacityPlan) -> Iterator[str]:
    if not plan.fits:
        need = max(each.bytes for each in plan.memory)
        yield (
            f"{plan.servers} parameter servers are too few: one would need {readable(int(need))}. "
            f"Take {plan.servers_for_memory}."
        )
    restoring = max(each.bytes + each.unsliced for each in plan.memory)
    if plan.fits and restoring > plan.machine.memory:
        yield (
            "A checkpoint that has its tables in one piece, as one of a single machine may, does "
            f"not restore: that takes {readable(int(restoring))} on a parameter server. Restore it "
            "once on more or larger machines, and save there: each then writes its own rows."
        )


def _layout(plan: CapacityPlan) -> Iterator[str]:
    if plan.options.layout == "div" and plan.servers > 1:
        best = plan.uneven["octaves"]
        if plan.uneven["div"] > _UNEVEN * best:
            time = plan.time_with(options=dataclasses.replace(plan.options, layout="octaves"))
            yield (
                f"The layout div sends {plan.uneven['div']:.1f} times the mean to the busiest "
                f"parameter server, octaves {best:.1f} times: rows at the beginning of tables are "
                f"looked up most. With `run --layout octaves` a step takes {shown(time.ms)} "
                f"in place of {shown(plan.time.ms)}."
            )


def _servers(plan: CapacityPlan) -> Iterator[str]:
    wanted = plan.servers_for_bandwidth
    if wanted is None:
        yield (
            "No number of parameter servers is as fast as a worker: the most frequent rows all "
            "meet one of them."
        )
    elif wanted > plan.servers:
        more = plan.time_with(servers=wanted)
        if more.ms < _WORTH * plan.time.ms:
            yield (
                f"With {wanted} parameter servers in place of {plan.servers} a step takes "
                f"{shown(more.ms)} in place of {shown(plan.time.ms)}."
            )


def _limits(plan: CapacityPlan) -> Iterator[str]:
    if plan.time.nodes > MOST_NODES:
        yield (
            f"The chief's graph has {plan.time.nodes / 1e6:.1f} million nodes, more than one "
            "process builds in a useful time. Take fewer workers with more samples each, or fewer "
            "parameter servers."
        )
    elif plan.time.limit in _OF_LIMITS:
        yield f"A step waits most for {plan.time.limit}: {_OF_LIMITS[plan.time.limit]}"
    alone = next((each for each in plan.growth if each.machines == 1), None)
    if alone is not None and alone.samples_per_second > plan.samples_per_second:
        yield (
            "The tables fit into one machine, which is expected to be faster than this cluster: "
            f"{alone.samples_per_second:,.0f} samples a second against "
            f"{plan.samples_per_second:,.0f}, without the model's own time unless --model_ms "
            "gives it."
        )
