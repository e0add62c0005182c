"""The host backend: the arithmetic of a TPU on `tf.Variable`s, on any device."""

from __future__ import annotations

from tf2_engine.backends.host.driver import HostDriver
