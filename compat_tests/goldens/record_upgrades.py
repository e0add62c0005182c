"""Writes what TensorFlow's own tables say of the names of TensorFlow 1, for `migrate`.

The tables of `tensorflow.tools.compatibility` are read as text: TensorFlow is not imported.

python -m compat_tests.goldens.record_upgrades
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

from estimator_bridge.run import public_names

_TABLES = ("renames_v2", "all_renames_v2", "reorders_v2", "tf_upgrade_v2")


def tables() -> dict[str, dict[str, Any]]:
    """Returns the dicts that the modules of TensorFlow assign, by their names."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None
    assert spec.origin is not None
    folder = pathlib.Path(spec.origin).parent / "tools" / "compatibility"
    found: dict[str, dict[str, Any]] = {}
    for name in _TABLES:
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_bytes())):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Dict)
                and node.value.keys
            ):
                target = ast.unparse(node.targets[0]).removeprefix("self.")
                keys = [each for each in node.value.keys if isinstance(each, ast.Constant)]
                try:
                    found.setdefault(target, ast.literal_eval(node.value))
                except ValueError:  # Its values are computed.
                    found.setdefault(target, dict.fromkeys(each.value for each in keys))
    return found


def lines() -> Iterator[str]:
    """Yields a line for each name that tf_upgrade_v2 renames, or whose arguments it changes."""
    known = tables()
    renames = {**known["renames"], **known["manual_symbol_renames"]}
    orders, keywords = known["reorders"], known["function_keyword_renames"]
    rewritten = known["function_transformers"]
    for name in sorted({*renames, *orders, *keywords, *rewritten}):
        if not name.startswith("tf.") or ".contrib." in name:
            continue
        if name in rewritten:  # tf_upgrade_v2 does more than rename it: the old one stays.
            yield f"{name.removeprefix('tf.')} compat.v1.{name.removeprefix('tf.')} -"
            continue
        order = ",".join(each or "" for each in orders.get(name, ())) or "-"
        pairs = (f"{old}={now or ''}" for old, now in keywords.get(name, {}).items())
        new = renames.get(name, name)
        yield " ".join([name.removeprefix("tf."), new.removeprefix("tf."), order, *pairs])


if __name__ == "__main__":
    public_names.UPGRADES.write_text("\n".join(lines()) + "\n", encoding="ascii")
