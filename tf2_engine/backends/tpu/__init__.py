"""The TPU backend: first-generation embedding hardware, through TensorFlow's TPU ops."""

from __future__ import annotations

from tf2_engine.backends.tpu.driver import TpuDriver
