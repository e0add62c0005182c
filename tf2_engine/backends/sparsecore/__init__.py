"""The SparseCore backend: TPU v5p, v6e and TPU7x, through the ops of stock's TPUEmbeddingV2."""

from __future__ import annotations

from tf2_engine.backends.sparsecore.driver import SparseCoreDriver
from tf2_engine.sparsecore_limits import SparseCoreLimits
