"""What the bridge raises on purpose; every class is also the built-in type that stock raises.

`InvalidSpec`, `InvalidInput` and `WrongType` are the engine's: a setting refused by either
layer is caught by the same name.
"""

from __future__ import annotations

from tf2_engine.errors import EngineError, InvalidInput, InvalidSpec, WrongType

__all__ = [
    "CannotWrite",
    "ColumnsNotUsed",
    "CoresDiffer",
    "EngineError",
    "GradientTakenTwice",
    "InvalidInput",
    "InvalidSpec",
    "LeftOut",
    "MissingFeature",
    "MissingMetric",
    "MissingStock",
    "NoNewCheckpoint",
    "NotTrained",
    "SignatureMismatch",
    "TooLate",
    "Unmatched",
    "UnreadableCheckpoint",
    "Untranslatable",
    "WrongCaller",
    "WrongType",
]


class Untranslatable(EngineError, ValueError):
    """A legacy setting has no counterpart in the engine; the message names both."""


class MissingFeature(InvalidInput, KeyError):
    """The features of a batch lack one that the spec names; the message lists what there is."""

    # KeyError shows the repr of its argument, which is hard to read for a sentence.
    __str__ = Exception.__str__


class MissingMetric(InvalidInput, KeyError):
    """The metrics of an evaluation lack one that a hook looks at; the message lists them."""

    __str__ = Exception.__str__


class MissingStock(EngineError, ImportError):
    """Something needs stock's TPUEstimator, and this TensorFlow has none."""


class SignatureMismatch(EngineError, RuntimeError):
    """A function takes another number of arguments than it will be given."""


class GradientTakenTwice(EngineError, RuntimeError):
    """A program computes the gradient of an activation more than once."""


class CoresDiffer(EngineError, RuntimeError):
    """A model_fn builds something else on one core than on another."""


class ColumnsNotUsed(EngineError, RuntimeError):
    """A feature column of the embedding config was not used in the model_fn."""


class NotTrained(EngineError, ValueError):
    """A value of a checkpoint is asked for, but the model_dir has none."""


class LeftOut(EngineError, AttributeError):
    """A name of stock's that is not here on purpose; the message says what to do instead."""


class NoNewCheckpoint(EngineError, RuntimeError):
    """Training wrote no checkpoint that an evaluation could use."""


class TooLate(EngineError, RuntimeError):
    """A choice of the process was already made otherwise."""


class UnreadableCheckpoint(EngineError, ValueError):
    """A file of a checkpoint is missing or damaged; the message names it."""


class Unmatched(EngineError, ValueError):
    """Variables of a checkpoint have no counterpart; the message lists them."""


class CannotWrite(EngineError, OSError):
    """A file cannot be written; the message names it."""


class WrongCaller(EngineError, RuntimeError):
    """A function asks what only another one of the program can be told."""
