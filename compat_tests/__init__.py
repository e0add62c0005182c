"""Conformance tests: the engine against references written without reading it."""

import os
import sys

# Without compiled files each process that a test starts compiles TensorFlow anew, for 9 seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
