"""The exception family: every class also is the built-in type that stock TensorFlow documents."""

from __future__ import annotations

from tf2_engine import plain_text

_WRAPPERS = ("in user code:", "Exception encountered when calling")
"""How the texts begin that AutoGraph and Keras put around that of an error."""


class EngineError(Exception):
    """Base of everything the engine raises on purpose.

    Its text is plain: names in it come from programs and checkpoints of others.
    """

    # AutoGraph rebuilds an exception that passes a tf.function in its own type only if it is made
    # exactly as a plain Exception is.
    __init__ = Exception.__init__

    def __str__(self) -> str:
        # Not that of KeyError, which shows the repr of a sentence and is hard to read.
        text = self.args[0] if len(self.args) == 1 else Exception.__str__(self)
        if isinstance(self.__context__, EngineError) and str(text).startswith(_WRAPPERS):
            return plain_text.Lines(*text.split("\n"))
        return plain_text.plain(text)


class InvalidSpec(EngineError, ValueError):
    """A table, feature or optimizer setting cannot be honoured; the message names it."""


class InvalidInput(EngineError, ValueError):
    """A batch, weight or gradient does not fit the spec; the message names the feature."""


class MissingMetric(InvalidInput, KeyError):
    """The metrics of an evaluation lack one that is needed; the message lists what there is."""


class WrongType(EngineError, TypeError):
    """An object of the wrong type was handed in; the message names the argument."""


class WrongSetting(WrongType, InvalidSpec):
    """A setting is of the wrong type: a TypeError as stock's is, and an InvalidSpec as any."""


class WrongKind(WrongType, InvalidInput):
    """An input is of the wrong type: a TypeError as all of those, and stock's ValueError."""


class LossIsNaN(EngineError, RuntimeError):
    """The loss of a training step is no number; the message names the step."""


class OutOfOrder(EngineError, RuntimeError):
    """A call came at a moment at which it is not possible; the message names the call due."""


class ControlFlow(EngineError, RuntimeError):
    """A call inside control flow that cannot be made there."""
