"""Records what stock's TPUEmbeddingV2 trains on the software SparseCores, on TensorFlow 2.21.

python -m compat_tests.goldens.record_sparse_cores
"""

from __future__ import annotations

import json

import tensorflow as tf

from compat_tests.support.sparse_core_crossing import (
    FEW,
    MANY,
    PATH,
    Group,
    crossed,
    encoded,
    of_case,
    trained,
)
from compat_tests.support.sparse_cores import Stock


def record(group: Group) -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """Returns the tables of each case after few and after many steps."""
    few, many = trained(Stock, group)
    return {
        case.numbers: {
            str(FEW): encoded(of_case(number, few)),
            str(MANY): encoded(of_case(number, many.tables)),
        }
        for number, case in enumerate(group)
    }


def main() -> None:
    goldens = {}
    for group in crossed():
        if group[0].stacked:
            goldens.update(record(group))
    lines = [f"  {json.dumps(name)}: {json.dumps(golden)}" for name, golden in goldens.items()]
    head = f'{{\n "tensorflow": {json.dumps(tf.version.VERSION)},\n "cases": {{\n'
    PATH.write_text(head + ",\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    main()
