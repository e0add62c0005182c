"""Loggers that escape unsafe characters in names and messages; see `plain_text`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from tf2_engine import plain_text


class PlainLogger:
    """A named logger that escapes its messages."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *values: object) -> None:
        self._log(logging.DEBUG, message, values)

    def info(self, message: str, *values: object) -> None:
        self._log(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        self._log(logging.WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        self._log(logging.ERROR, message, values)

    def _logger(self) -> logging.Logger:
        return logging.getLogger(self._name)

    def _log(self, level: int, message: str, values: tuple[object, ...]) -> None:
        logger = self._logger()
        if logger.isEnabledFor(level):
            text = message % values if values else message
            # The log record shows the line that called `info` or `warning`.
            logger.log(level, "%s", plain_text.plain(text), stacklevel=3)


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Disables TensorFlow's logger, which warns about deprecated names."""
    logger = logging.getLogger("tensorflow")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _drop_repeating_handlers(logger: logging.Logger) -> None:
    """Removes a logger's handlers for streams to which the root logger also writes.

    TensorFlow gives its logger a handler if the root logger has none. Later, absl adds a handler to
    the root logger, too.
    """
    streams = [getattr(each, "stream", None) for each in logging.getLogger().handlers]
    for handler in [*logger.handlers] if logger.propagate else ():
        # Traced code may call this, and TensorFlow 2.15 cannot convert a `:=` within an `and`.
        stream = getattr(handler, "stream", None)
        if stream is not None and stream in streams:
            logger.removeHandler(handler)


class _TensorFlowLogger(PlainLogger):
    def _logger(self) -> logging.Logger:
        import tensorflow as tf

        logger: logging.Logger = tf.get_logger()
        _drop_repeating_handlers(logger)
        return logger

    def fact(self, message: str, *values: object) -> None:
        self._log(logging.INFO, message, values)
        if _say is not None and not self._logger().isEnabledFor(logging.INFO):
            _say(message % values if values else message)


def say_facts(say: Callable[[str], object] | None) -> None:
    global _say
    _say = say


_say: Callable[[str], object] | None = None
_tensorflow = _TensorFlowLogger("tensorflow")
# Users of legacy programs look for messages in TensorFlow's log.
info = _tensorflow.info
fact = _tensorflow.fact
warning = _tensorflow.warning
error = _tensorflow.error
