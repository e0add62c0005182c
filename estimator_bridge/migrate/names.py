"""Which name of the bridge stands for a name of stock, as programs would write both."""

from __future__ import annotations

from typing import NamedTuple

from estimator_bridge.run import stock_names, unsupported

NAMESPACE = "estimator_bridge.estimator"
"""What stands for `tf.compat.v1.estimator`; programs call it `tf_estimator`."""

_NAMESPACES = tuple(f"{path}.estimator" for path in stock_names.PUBLIC_NAMESPACES)

_TENSORFLOW = ("tensorflow.compat.v1.", "tensorflow.compat.v2.", "tensorflow.")


class Place(NamedTuple):
    """Where the bridge has something.

    Attributes:
        module: what is imported.
        attributes: what follows, "" if the module itself is meant; may have dots for `NAMESPACE`.
    """

    module: str
    attributes: str = ""

    def importable(self) -> Place:
        """Returns the same with attributes without dots, for `from module import attributes`."""
        below, _, last = self.attributes.rpartition(".")
        if not below:
            return self
        return Place(f"{NAMESPACE}.{below}", last)


def place_of(name: str) -> Place | None:
    """Returns where the bridge has a name of stock, such as tensorflow.estimator.tpu.RunConfig.

    None for names that are not stock's estimator, or that the bridge does not have.
    """
    for namespace in _NAMESPACES:
        if name == namespace:
            return Place(NAMESPACE)
    module, _, attribute = name.rpartition(".")
    if module == "tensorflow.compat.v1.tpu.experimental" and attribute in stock_names.PARAMETERS:
        return Place("estimator_bridge.legacy.parameters", attribute)
    if module in stock_names.RESOLVERS and attribute == "TPUClusterResolver":
        return Place("estimator_bridge.run.cluster_resolver", attribute)
    target = stock_names.MODULES.get(module, {}).get(attribute)
    if target is None:
        return None
    return _written(*target.partition(":")[::2])


def module_of(path: str) -> str | None:
    """Returns the bridge's module for a module of stock's namespace, as in `from ... import`."""
    for namespace in _NAMESPACES:
        if path == namespace:
            return NAMESPACE
        below = path.removeprefix(f"{namespace}.")
        if below in stock_names.SUBMODULES:
            return f"{NAMESPACE}.{below}"
    return None


def is_stock_module(path: str) -> bool:
    """Returns whether a path is a module of stock's estimator that newer TensorFlow lacks."""
    below = (path == root or path.startswith(f"{root}.") for root in stock_names.ROOTS)
    return path in stock_names.MODULES or any(below)


def is_stock(full: str) -> bool:
    """Returns whether a name is, or is below, what the bridge stands for."""
    below = below_tensorflow(full)
    return (
        place_of(full) is not None
        or is_stock_module(full)
        or below == "estimator"
        or below.startswith("estimator.")
    )


def below_tensorflow(full: str) -> str:
    """Returns what follows the public module of TensorFlow; "" for other names."""
    return next((full.removeprefix(each) for each in _TENSORFLOW if full.startswith(each)), "")


def refusal_of(name: str) -> str | None:
    """Returns why the bridge leaves out a name of stock's namespaces; None if it does not."""
    for namespace in _NAMESPACES:
        below = name.removeprefix(f"{namespace}.")
        if below == name:
            continue
        namespace, _, attribute = below.rpartition(".")
        reason = unsupported.REASONS.get(namespace, {}).get(attribute)
        if reason is not None:
            return reason
    if name.startswith(("tensorflow.contrib.", "tensorflow.compat.v1.contrib.")):
        return "tf.contrib ended with TensorFlow 1. Port it to tf.compat.v1 first"
    return None


def _written(module: str, attribute: str) -> Place:
    """Returns the place of a target; names of the namespace are written as its attributes."""
    if f"{module}.".startswith(f"{NAMESPACE}."):
        below = module.removeprefix(NAMESPACE).removeprefix(".")
        return Place(NAMESPACE, ".".join(filter(None, (below, attribute))))
    return Place(module, attribute)
