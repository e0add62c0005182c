"""The SparseCore backend, for TPU v5p, v6e and TPU7x. It runs the ops of stock's TPUEmbeddingV2."""

from __future__ import annotations

from tf2_engine.backends.sparsecore.driver import SparseCoreDriver
from tf2_engine.sparsecore_limits import SparseCoreLimits
