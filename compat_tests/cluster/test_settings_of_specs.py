"""Settings of an embedding spec have the same effect on a cluster as in one process."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from compat_tests.cluster.tables_on_servers import TABLES, assert_equal, copied, train, values_of
from tf2_engine.backends.host import profile


@pytest.mark.full
def test_an_estimator_trains_as_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelined, profiled and by mod: all variables, and the profiles, are those of one process.

    Both go on twice, so that what is pending passes through a checkpoint, too.
    """
    # A sample in 33 is counted: too few for a file, unless few are enough.
    monkeypatch.setattr(profile, "MIN_SAMPLES", 2)
    first = train(tmp_path / "first", 0, 1)

    def trained(name: str, servers: int, workers: int) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = copied(first, tmp_path / name)
        settings = {
            "pipeline_execution_with_tensor_core": True,
            "profile_data_directory": str(tmp_path / f"{name}'s profiles"),
            "partition_strategy": "mod",
        }
        for steps in (6, 12):
            path = train(folder, servers, steps, workers=workers, **settings)
        files = (tmp_path / f"{name}'s profiles").glob("*.json")
        profiles = {file.name: json.loads(file.read_text()) for file in files}
        return values_of(path, "mod"), profiles

    variables, profiles = trained("alone", 0, 0)
    assert len(profiles) == len(TABLES)
    of_cluster, profiles_of_cluster = trained("cluster", 3, 2)
    assert_equal(of_cluster, variables)
    assert profiles_of_cluster == profiles

    # Without pipelining the numbers are others: a test that could not tell would prove nothing.
    plain = values_of(train(copied(first, tmp_path / "plain"), 0, 12))
    assert not np.array_equal(plain[TABLES[0]], variables[TABLES[0]])
