"""Plans a cluster for a program: models the memory, bytes and time that its tasks need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.planner.capacity import CapacityPlan, Options, plan_capacity
    from estimator_bridge.planner.job import Job, RowLoad, TableLoad, sampled_load, zipf_load
    from estimator_bridge.planner.of_program import Assumed, job_of_program, job_of_spec
    from estimator_bridge.planner.step_time import Coefficients, Machine

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "estimator_bridge.planner.capacity": ["CapacityPlan", "Options", "plan_capacity"],
        "estimator_bridge.planner.job": [
            "Job",
            "RowLoad",
            "TableLoad",
            "sampled_load",
            "zipf_load",
        ],
        "estimator_bridge.planner.of_program": ["Assumed", "job_of_program", "job_of_spec"],
        "estimator_bridge.planner.step_time": ["Coefficients", "Machine"],
    },
)
