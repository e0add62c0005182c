"""MovieLens trains as well with the arithmetic of SparseCores as with the first generation's.

`python -m compat_tests.sparsecore.test_movielens [SEED ...]` prints the errors.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile

import pytest

from compat_tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "movielens"
SEEDS = (1, 2, 3)

ALLOWED = 0.003
"""Of the error on the test set, which is about 0.9, and differs by that much from seed to seed."""


def data_dir() -> pathlib.Path:
    """Returns the folder of the ratings, which `fetch.py` gets if they are not there."""
    sys.path.insert(0, str(FOLDER))
    try:
        import fetch  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(FOLDER))
    folder = pathlib.Path(fetch.default_data_dir())
    if not fetch.is_present(folder):
        fetch.fetch(folder)
    return folder


def error_of(model_dir: pathlib.Path, seed: int, arithmetic: str) -> float:
    """Returns the error on the test set of the legacy program, run unedited."""
    command = [sys.executable, "-m", "estimator_bridge", "run", "--arithmetic", arithmetic]
    arguments = (f"--data_dir={data_dir()}", f"--model_dir={model_dir}", f"--seed={seed}")
    ran = subprocess.run(
        [*command, str(FOLDER / "train.py"), *arguments, "--use_tpu"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return float(json.loads((model_dir / "metrics.json").read_text())["test_rmse"])


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_as_good_as_on_the_first_generation(seed: int, tmp_path: pathlib.Path) -> None:
    """The settings of the example are those that SparseCores have; numbers differ by rounding."""
    first, sparse = (
        error_of(tmp_path / arithmetic, seed, arithmetic) for arithmetic in ("tpu", "sparsecore")
    )
    print(f"\n  seed {seed}: {first:.4f}, on SparseCores {sparse:.4f}")  # noqa: T201
    assert 0.5 < first < 1.1
    assert abs(sparse - first) < ALLOWED


if __name__ == "__main__":
    for number in [int(each) for each in sys.argv[1:]] or SEEDS:
        with tempfile.TemporaryDirectory() as place:
            errors = {
                arithmetic: error_of(pathlib.Path(place) / arithmetic, number, arithmetic)
                for arithmetic in ("tpu", "sparsecore")
            }
        print(f"seed {number}: {errors}")  # noqa: T201
