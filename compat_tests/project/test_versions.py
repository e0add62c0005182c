"""Which TensorFlow the project says it knows, and that it is typed."""

from __future__ import annotations

import importlib.resources

import pytest
import tensorflow as tf

from compat_tests.support import fresh

PROGRAM = """
import logging, sys
import tensorflow as tf
logging.basicConfig(stream=sys.stdout, format="%(message)s")
tf.__version__ = sys.argv[1]
from tf2_engine import tf_compat
"""


@pytest.mark.whole
@pytest.mark.parametrize("version, warned", [("2.18.0", True), (tf.__version__, False)])
def test_an_untested_tensorflow_is_named_once(version: str, warned: bool) -> None:
    """A TensorFlow that is not tested gets one warning that names it and those that are."""
    ran = fresh.code(PROGRAM, version, check=True)

    assert ran.stdout.count(f"TensorFlow {version}: this project is tested with") == warned
    assert ("2.15, 2.21, 2.22" in ran.stdout) == warned


@pytest.mark.parametrize("package", ["estimator_bridge", "tf2_engine"])
def test_packages_say_that_they_are_typed(package: str) -> None:
    """Type checkers of programs read the annotations, from an installed wheel too."""
    assert importlib.resources.files(package).joinpath("py.typed").is_file()
