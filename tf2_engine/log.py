"""Loggers that make names and messages of others plain.

Names of tables and variables come from checkpoints and programs of others. Both packages log
through here, so that no name reaches a terminal or a file as an escape sequence, or makes a line of
its own; see `plain_text`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tf2_engine import plain_text


class PlainLogger:
    """Writes to the logger of a name; messages are made plain once their values are in them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *values: object) -> None:
        """Logs `message % values` at the level DEBUG."""
        self._log(logging.DEBUG, message, values)

    def info(self, message: str, *values: object) -> None:
        """Logs `message % values` at the level INFO."""
        self._log(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        """Logs `message % values` at the level WARNING."""
        self._log(logging.WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        """Logs `message % values` at the level ERROR."""
        self._log(logging.ERROR, message, values)

    def _logger(self) -> logging.Logger:
        return logging.getLogger(self._name)

    def _log(self, level: int, message: str, values: tuple[object, ...]) -> None:
        logger = self._logger()
        if logger.isEnabledFor(level):
            text = message % values if values else message
            # The line that is shown is that of the caller of `info` or `warning`.
            logger.log(level, "%s", plain_text.plain(text), stacklevel=3)


def _drop_repeating_handlers(logger: logging.Logger) -> None:
    """Drops handlers of a logger that write to a stream to which the root logger writes too.

    TensorFlow adds its handler only if the root logger has none. The first message of absl, with
    TensorFlow 2.21 at the first checkpoint, gives the root logger one later.
    """
    streams = [getattr(each, "stream", None) for each in logging.getLogger().handlers]
    for handler in [*logger.handlers] if logger.propagate else ():
        if (stream := getattr(handler, "stream", None)) is not None and stream in streams:
            logger.removeHandler(handler)


class _TensorFlowLogger(PlainLogger):
    """The logger of TensorFlow, which gets its level and its handler when it is asked for."""

    def _logger(self) -> logging.Logger:
        import tensorflow as tf

        logger: logging.Logger = tf.get_logger()
        _drop_repeating_handlers(logger)
        return logger

    def fact(self, message: str, *values: object) -> None:
        """Logs which engine runs where, at INFO; see `say_facts`."""
        self._log(logging.INFO, message, values)
        if _say is not None and not self._logger().isEnabledFor(logging.INFO):
            _say(message % values if values else message)


def say_facts(say: Callable[[str], object] | None) -> None:
    """Has facts said by a function where the log does not show them, as a command does."""
    global _say
    _say = say


_say: Callable[[str], object] | None = None
_tensorflow = _TensorFlowLogger("tensorflow")
# Where legacy programs look for what happens.
info = _tensorflow.info
fact = _tensorflow.fact
warning = _tensorflow.warning
error = _tensorflow.error
error = _tensorflow.error
