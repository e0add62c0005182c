"""The exceptions. Each class derives from the built-in type that stock TensorFlow documents."""

from __future__ import annotations

from tf2_engine import plain_text

_WRAPPERS = ("in user code:", "Exception encountered when calling")
"""The text that AutoGraph and Keras put in front of an error's text."""


class EngineError(Exception):
    """Base class of the errors that the engine raises on purpose; escapes unsafe characters."""

    # AutoGraph keeps the type of an exception that leaves a tf.function only if the exception's
    # constructor is that of Exception.
    __init__ = Exception.__init__

    def __str__(self) -> str:
        # KeyError would show the repr of the text.
        text = self.args[0] if len(self.args) == 1 else Exception.__str__(self)
        if isinstance(self.__context__, EngineError) and str(text).startswith(_WRAPPERS):
            return plain_text.Lines(*text.split("\n"))
        return plain_text.plain(text)


class InvalidSpec(EngineError, ValueError):
    """A setting of a table, feature or optimizer is not possible; the message names it."""


class InvalidInput(EngineError, ValueError):
    """A batch, weight or gradient does not fit the spec; the message names the feature."""


class MissingMetric(InvalidInput, KeyError):
    """A required metric is missing in an evaluation; the message lists the existing metrics."""


class WrongType(EngineError, TypeError):
    """An argument has the wrong type; the message names the argument."""


class WrongSetting(WrongType, InvalidSpec):
    """A setting has the wrong type. This is an InvalidSpec and, as in stock, a TypeError."""


class WrongKind(WrongType, InvalidInput):
    """An input has the wrong type. As in stock, this is a TypeError and a ValueError."""


class CannotWrite(EngineError, OSError):
    """A file or folder cannot be written; the message names it."""


class LossIsNaN(EngineError, RuntimeError):
    """The loss of a training step is NaN; the message names the step."""


class OutOfOrder(EngineError, RuntimeError):
    """A call is not possible at this point; the message names the call to make first."""


class ControlFlow(EngineError, RuntimeError):
    """A call cannot be made inside control flow."""
