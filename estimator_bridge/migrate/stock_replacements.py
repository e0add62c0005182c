"""Maps names of stock to names of the bridge."""

from __future__ import annotations

from typing import NamedTuple

from estimator_bridge.run import stock_names
from estimator_bridge.run.stock_names import NAMESPACE

_NAMESPACES = tuple(f"{path}.estimator" for path in stock_names.PUBLIC_NAMESPACES)

_TENSORFLOW = ("tensorflow.compat.v1.", "tensorflow.compat.v2.", "tensorflow.")


class Replacement(NamedTuple):
    """A name of the bridge that replaces a name of stock.

    `attributes` is the name in `module`, or "" if the module itself is the replacement. It contains
    dots only if the module is `NAMESPACE`.
    """

    module: str
    attributes: str = ""

    def importable(self) -> Replacement:
        """Returns the same replacement without dots in the name, for `from module import name`."""
        below, _, last = self.attributes.rpartition(".")
        return Replacement(f"{NAMESPACE}.{below}", last) if below else self


def place_of(name: str) -> Replacement | None:
    """Finds the replacement for a name such as tensorflow.estimator.tpu.RunConfig.

    Returns None if the name is not part of stock's estimator, or if the bridge lacks it.
    """
    if name in _NAMESPACES:
        return Replacement(NAMESPACE)
    module, _, attribute = name.rpartition(".")
    namespace = stock_names.PUBLIC_NAMESPACES.get(module.removesuffix(".estimator"))
    if namespace == stock_names.NAMESPACE_V2 and attribute in stock_names.OTHERS_IN_V2:
        return Replacement(NAMESPACE, f"v2.{attribute}")
    if module == "tensorflow.compat.v1.tpu.experimental" and attribute in stock_names.PARAMETERS:
        return Replacement("estimator_bridge.legacy.parameters", attribute)
    if module in stock_names.RESOLVERS and attribute == "TPUClusterResolver":
        return Replacement("estimator_bridge.run.cluster_resolver", attribute)
    target = stock_names.MODULES.get(module, {}).get(attribute)
    if target is None:
        return None
    module, _, attribute = target.partition(":")
    if not f"{module}.".startswith(f"{NAMESPACE}."):
        return Replacement(module, attribute)
    # Names of the namespace are written as its attributes.
    below = module.removeprefix(NAMESPACE).removeprefix(".")
    return Replacement(NAMESPACE, ".".join(filter(None, (below, attribute))))


def module_of(path: str) -> str | None:
    for namespace in _NAMESPACES:
        if path == namespace:
            return NAMESPACE
        below = path.removeprefix(f"{namespace}.")
        if below in stock_names.SUBMODULES:
            return f"{NAMESPACE}.{below}"
    return None


def is_of_tensorflow(name: str) -> bool:
    return name.partition(".")[0] in ("tensorflow", "tensorflow_estimator")


def is_stock_module(path: str) -> bool:
    below = (path == root or path.startswith(f"{root}.") for root in stock_names.ROOTS)
    return path in stock_names.MODULES or any(below)


def is_stock(name: str) -> bool:
    below = below_tensorflow(name)
    return (
        place_of(name) is not None
        or is_stock_module(name)
        or below == "estimator"
        or below.startswith("estimator.")
    )


def is_spec(name: str) -> bool:
    return name.rpartition(".")[2] == "EmbeddingConfigSpec" and is_stock(name)


def below_tensorflow(name: str) -> str:
    return next((name.removeprefix(each) for each in _TENSORFLOW if name.startswith(each)), "")


def refusal_of(name: str) -> str | None:
    """Explains why the bridge lacks a name of stock. Returns None if no reason is known."""
    for namespace in _NAMESPACES:
        below = name.removeprefix(f"{namespace}.")
        if below != name and below in stock_names.UNSUPPORTED:
            return stock_names.UNSUPPORTED[below]
    if name.startswith(("tensorflow.contrib.", "tensorflow.compat.v1.contrib.")):
        return (
            "tf.contrib ended with TensorFlow 1. Port it to tf.compat.v1 first, or run the program "
            "with `estimator-bridge run --tf1`"
        )
    return None
