"""What tests of clusters share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests.support.nursery import Nursery


@pytest.fixture(scope="module")
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """Starts tasks, with the package imported; they end with the tests of a module.

    `ENVIRONMENT` of the module has further environment variables.
    """
    environment = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
    environment |= getattr(request.module, "ENVIRONMENT", {})
    started = Nursery("estimator_bridge.estimator", "tf2_engine.backends", environment=environment)
    yield started
    started.close()
