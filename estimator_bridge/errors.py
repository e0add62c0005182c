"""The errors of the bridge; every class is also the built-in type that stock raises.

`InvalidSpec`, `InvalidInput` and `WrongType` are the engine's: a setting refused by either
layer is caught by the same name.
"""

from __future__ import annotations

from tf2_engine.errors import (
    EngineError,
    InvalidInput,
    InvalidSpec,
    MissingMetric,
    WrongSetting,
    WrongType,
)


class Untranslatable(EngineError, ValueError):
    """A legacy setting has no counterpart in the engine; the message names both."""


class MissingFeature(InvalidInput, KeyError):
    """The features of a batch lack one that the spec names; the message lists what there is."""


class MissingKey(InvalidInput, KeyError):
    """A dict that a program gives lacks a key, or has one that fits nothing; it is named."""


class MissingStock(EngineError, ImportError):
    """A command or function needs stock's TPUEstimator, which this TensorFlow lacks."""


class SignatureMismatch(EngineError, RuntimeError):
    """A function does not take the arguments that it will be called with."""


class GradientTakenTwice(EngineError, RuntimeError):
    """A program computes the gradient of an activation more than once."""


class ColumnsNotUsed(EngineError, RuntimeError):
    """A feature column of the embedding config was not used in the model_fn."""


class NotTrained(EngineError, ValueError):
    """A program asks for a value of a checkpoint, but the model_dir has no checkpoint."""


class Unsupported(EngineError, AttributeError):
    """The bridge does not have this name of stock, on purpose; the message says what to use."""


class UnsupportedImport(EngineError, ModuleNotFoundError):
    """A program imports what the bridge does not have, on purpose; the message says what to use."""

    def __init__(self, message: str, *, name: str) -> None:
        """Makes the error of the import of the module `name`."""
        super().__init__(message)
        self.name = name


class NoNewCheckpoint(EngineError, RuntimeError):
    """Training wrote no checkpoint that an evaluation could use."""


class TooLate(EngineError, RuntimeError):
    """The process has made another choice already, which cannot be changed."""


class UnreadableCheckpoint(EngineError, ValueError):
    """A file of a checkpoint is missing or damaged; the message names it."""


class Unmatched(EngineError, ValueError):
    """Variables of a checkpoint have no counterpart; the message lists them."""


class CannotWrite(EngineError, OSError):
    """A file cannot be written; the message names it."""


class WrongCaller(EngineError, RuntimeError):
    """A function calls what only another function of the program may call."""


def not_python(name: str, error: Exception) -> InvalidInput:
    """Returns the error of a program that Python 3 cannot read, with the line and what is wrong.

    Args:
        error: of Python's parser or decoder, or of LibCST.
    """
    line = getattr(error, "lineno", None) or getattr(error, "raw_line", None)
    reason = getattr(error, "msg", None) or getattr(error, "message", None) or error
    where = f"{name}, line {line}" if line else name
    refusal: InvalidInput = InvalidInput(
        f"{where}: {type(error).__name__}: {reason}. Python 3 cannot read this program: correct it "
        "there. A program for Python 2 has to be ported first."
    )
    return refusal
