"""Cleans up when a command is terminated: nothing that it started outlives it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_NUMBERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit(128 + signal number), which cleans up.

    A signal that is ignored or already has a handler is left alone.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    usual = [each for each in _NUMBERS if signal.getsignal(each) is signal.SIG_DFL]
    numbers = usual if in_main_thread else []
    try:
        for number in numbers:
            signal.signal(number, _exit)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
