"""The bridge's errors; each class also derives from the built-in error that stock raises."""

from __future__ import annotations

from tf2_engine.errors import (
    CannotWrite,
    EngineError,
    InvalidInput,
    InvalidSpec,
    MissingMetric,
    WrongSetting,
    WrongType,
)


class Untranslatable(EngineError, ValueError):
    """A legacy setting has no counterpart in the engine; the message names the setting."""


class MissingFeature(InvalidInput, KeyError):
    """A batch lacks a feature that the spec names; the message lists the features of the batch."""


class MissingKey(InvalidInput, KeyError):
    """A dict from the program lacks a key or has an unknown key; the message names the key."""


class MissingStock(EngineError, ImportError):
    """A command or function needs stock's TPUEstimator, which this TensorFlow lacks."""


class SignatureMismatch(EngineError, RuntimeError):
    """A function does not accept the arguments that it will be called with."""


class GradientTakenTwice(EngineError, RuntimeError):
    """A program computes the gradient of an activation more than once."""


class ColumnsNotUsed(EngineError, RuntimeError):
    """A feature column of the embedding config was not used in the model_fn."""


class NotTrained(EngineError, ValueError):
    """A program asks for a value from a checkpoint, but the model_dir has no checkpoint."""


class Unsupported(EngineError, AttributeError):
    """A program uses a name that the bridge deliberately lacks; the message names a replacement."""


class UnsupportedImport(EngineError, ModuleNotFoundError):
    """The bridge lacks a module that a program imports; the message says what to use instead."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class NoNewCheckpoint(EngineError, RuntimeError):
    """Training wrote no checkpoint that an evaluation could use."""


class TooLate(EngineError, RuntimeError):
    """The process has already loaded Keras 3, so it can no longer use Keras 2."""


class UnreadableCheckpoint(EngineError, ValueError):
    """A file of a checkpoint is missing or damaged; the message names it."""


class Unmatched(EngineError, ValueError):
    """A table or variable of one checkpoint has no counterpart, or several, in another one."""


class WrongCaller(EngineError, RuntimeError):
    """A model_fn calls a function that only an input_fn may call, or vice versa."""


def not_python(name: str, error: Exception) -> InvalidInput:
    """Makes the error for a program that Python's parser or decoder, or LibCST, cannot read."""
    line = getattr(error, "lineno", None) or getattr(error, "raw_line", None)
    reason = getattr(error, "msg", None) or getattr(error, "message", None) or error
    where = f"{name}, line {line}" if line else name
    refusal: InvalidInput = InvalidInput(
        f"{where}: {type(error).__name__}: {reason}. Python 3 cannot read this program: correct "
        "the line. A program for Python 2 has to be ported first."
    )
    return refusal
