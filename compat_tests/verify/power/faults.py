"""The table of seeded faults."""

from __future__ import annotations

from compat_tests.verify.power.fault import Fault
from compat_tests.verify.power.faults_of_lookups import LOOKUPS
from compat_tests.verify.power.faults_of_models import MODEL, OUTCOMES
from compat_tests.verify.power.faults_of_updates import RATES, STATES, SUMS, UPDATES

FAULTS: dict[str, Fault] = {**UPDATES, **RATES, **LOOKUPS, **SUMS, **STATES, **MODEL, **OUTCOMES}
"""The faults, keyed by name."""
