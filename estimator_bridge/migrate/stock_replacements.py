"""Where the bridge has a name of stock, by the names that programs would write for both."""

from __future__ import annotations

from typing import NamedTuple

from estimator_bridge.run import stock_names, unsupported

NAMESPACE = "estimator_bridge.estimator"
"""The replacement of `tf.compat.v1.estimator`; programs call it `tf_estimator`."""

_NAMESPACES = tuple(f"{path}.estimator" for path in stock_names.PUBLIC_NAMESPACES)

_TENSORFLOW = ("tensorflow.compat.v1.", "tensorflow.compat.v2.", "tensorflow.")

# Names that users find below `NAMESPACE` rather than in the module that defines them, by that
# module: the path below the namespace, "" for the namespace itself.
_PUBLIC = {
    "estimator_bridge.estimator": "",
    "estimator_bridge.estimator.export": "export",
    "estimator_bridge.estimator.tpu": "tpu",
    "estimator_bridge.legacy.base_run_config": "",
    "estimator_bridge.legacy.estimator_spec": "",
    "estimator_bridge.legacy.exporters": "",
    "estimator_bridge.legacy.run_config": "tpu",
    "estimator_bridge.legacy.spec": "tpu.experimental",
    "estimator_bridge.legacy.train_and_eval_specs": "",
    "estimator_bridge.runtime.loop.train_and_evaluate": "",
}
_NOT_PUBLIC = {"parse_iterations_per_loop"}

_REFUSED = {
    f"{namespace}.{path}{name}": reason
    for namespace in _NAMESPACES
    for path, reasons in (
        ("", unsupported.ESTIMATOR),
        ("experimental.", unsupported.EXPERIMENTAL),
        ("inputs.", unsupported.INPUTS),
    )
    for name, reason in reasons.items()
}


class Place(NamedTuple):
    """Where the bridge has something.

    Attributes:
        module: the module to import.
        attributes: the name in the module, "" for the module itself; dotted for `NAMESPACE` only.
    """

    module: str
    attributes: str = ""

    def importable(self) -> Place:
        """Returns the same place with a name without dots, for `from module import name`."""
        below, _, last = self.attributes.rpartition(".")
        return Place(f"{NAMESPACE}.{below}", last) if below else self


def place_of(name: str) -> Place | None:
    """Returns where the bridge has a name of stock, such as tensorflow.estimator.tpu.RunConfig.

    Returns None for names that are not of stock's estimator, or that the bridge does not have.
    """
    if name in _NAMESPACES:
        return Place(NAMESPACE)
    module, _, attribute = name.rpartition(".")
    if module == "tensorflow.compat.v1.tpu.experimental" and attribute in stock_names.PARAMETERS:
        return Place("estimator_bridge.legacy.parameters", attribute)
    if module in stock_names.RESOLVERS and attribute == "TPUClusterResolver":
        return Place("estimator_bridge.run.cluster_resolver", attribute)
    target = stock_names.MODULES.get(module, {}).get(attribute)
    return None if target is None else _public_place(*target.partition(":")[::2])


def module_of(path: str) -> str | None:
    """Returns the bridge's module for a module below stock's namespace; None for other modules."""
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


def is_stock(name: str) -> bool:
    """Returns whether a full name is of stock's estimator, or of its TPU embeddings."""
    below = below_tensorflow(name)
    return (
        place_of(name) is not None
        or is_stock_module(name)
        or below == "estimator"
        or below.startswith("estimator.")
    )


def below_tensorflow(name: str) -> str:
    """Returns the part of a full name behind TensorFlow's public module; "" for other names."""
    return next((name.removeprefix(each) for each in _TENSORFLOW if name.startswith(each)), "")


def refusal_of(name: str) -> str | None:
    """Returns why the bridge does not support a name of stock; None if it may."""
    if name.startswith(("tensorflow.contrib.", "tensorflow.compat.v1.contrib.")):
        return "tf.contrib ended with TensorFlow 1. Port it to tf.compat.v1 first"
    return _REFUSED.get(name)


def _public_place(module: str, attribute: str) -> Place:
    if not attribute:
        return Place(module)
    if module not in _PUBLIC or attribute in _NOT_PUBLIC:
        return Place(module, attribute)
    below = _PUBLIC[module]
    return Place(NAMESPACE, f"{below}.{attribute}" if below else attribute)
