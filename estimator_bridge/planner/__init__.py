"""Plans a cluster for a program: memory, bytes and time of its tasks, by a model.

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.planner.capacity import CapacityPlan as CapacityPlan
    from estimator_bridge.planner.capacity import Options as Options
    from estimator_bridge.planner.capacity import plan_capacity as plan_capacity
    from estimator_bridge.planner.coefficients import Coefficients as Coefficients
    from estimator_bridge.planner.job import Job as Job
    from estimator_bridge.planner.job import TableLoad as TableLoad
    from estimator_bridge.planner.of_program import Assumed as Assumed
    from estimator_bridge.planner.of_program import job_of_program as job_of_program
    from estimator_bridge.planner.of_program import job_of_spec as job_of_spec
    from estimator_bridge.planner.row_loads import RowLoad as RowLoad
    from estimator_bridge.planner.row_loads import sampled_load as sampled_load
    from estimator_bridge.planner.row_loads import zipf_load as zipf_load
    from estimator_bridge.planner.step_time import Machine as Machine

__getattr__, __dir__ = lazy.exports(__name__)
