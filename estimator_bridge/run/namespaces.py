"""The modules of `tf.estimator`: their names are imported from the bridge when first used."""

from __future__ import annotations

import sys
from collections.abc import Callable

from estimator_bridge import errors
from estimator_bridge.run.alias_module import load
from estimator_bridge.run.stock_names import NAMESPACE, SYMBOLS
from estimator_bridge.run.unsupported import REASONS
from tf2_engine.types import Object


def exports(module: str) -> tuple[Callable[[str], Object], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a module of the namespace.

        __getattr__, __dir__, __all__ = namespaces.exports(__name__)

    Its names are those that `stock_names.SYMBOLS` has for it; those in `unsupported.REASONS` raise
    an `Unsupported` with the way out.

    Args:
        module: its full name.
    """
    below = module.removeprefix(NAMESPACE).removeprefix(".")
    homes = {symbol.name: symbol.home for symbol in SYMBOLS if symbol.namespace == below}
    reasons = REASONS.get(below, {})
    stock_name = f"tf.estimator.{below}".removesuffix(".")

    def attribute(name: str) -> Object:
        if name in reasons:
            raise errors.Unsupported(f"`{stock_name}.{name}` is not supported: {reasons[name]}.")
        if name not in homes:
            raise AttributeError(f"`{stock_name}` has no attribute {name!r}.")
        value = load(homes[name])
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return attribute, names, sorted(homes)
