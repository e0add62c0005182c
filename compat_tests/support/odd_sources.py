"""Sources that no programmer writes: each is read, or refused in a line that names its file.

The cases that fuzzing found are `FOUND`; add one here for each new find.
"""

from __future__ import annotations

_HEAD = "import tensorflow as tf\n"
_WRONG = f"""{_HEAD}
E = tf.compat.v1.estimator.tpu
E.TPUEstimator(model_fn=3, train_batch_size='x', params=[1], config=7, embedding_config_spec=-1)
E.experimental.EmbeddingConfigSpec(feature_columns=3, optimization_parameters='adam',
                                   clipping_limit=[1], partition_strategy=5)
E.TPUConfig(*3, **'x')
tf.compat.v1.tpu.experimental.AdagradParameters(learning_rate={{}}, initial_accumulator=b'')
tf.compat.v1.tpu.experimental.embedding_column(1, 2, 3, 4, 5, 6, 7, 8)
"""
DEEP = {
    "parentheses": "x = " + "(" * 100_000 + "1" + ")" * 100_000,
    "minus signs": "x = " + "-" * 3_000 + "1",
    "many minus signs": "x = " + "-" * 50_000 + "1",
    "negations": "x = " + "not " * 20_000 + "1",
    "attributes": "x = a" + ".b" * 900,
    "many attributes": "x = a" + ".b" * 50_000,
    "a long sum": "x = " + "+".join(["1"] * 3_000),
    "calls of calls": "x = f" + "()" * 900,
    "functions": "x = " + "lambda: " * 5_000 + "1",
    "conditions": "if a: pass\n" + "elif a: pass\n" * 5_000,
    "blocks": "".join(" " * depth + "if 1:\n" for depth in range(90)) + " " * 90 + "pass",
}
"""Nested deeply: Python itself reads some of them."""
FOUND: dict[str, bytes] = {
    **{name: f"{text}\n".encode() for name, text in DEEP.items()},
    "nothing": b"",
    "latin-1, not declared": "# caf\xe9\nx = '\xe9'\n".encode("latin-1"),
    "latin-1": "# -*- coding: latin-1 -*-\nx = '\xe9'\n".encode("latin-1"),
    "UTF-16": _HEAD.encode("utf-16"),
    "no encoding": b"# -*- coding: nonsense -*-\nx = 1\n",
    "a zero byte": b"import os\nx = '\0'\n",
    "a byte order mark": b"\xef\xbb\xbfimport os\n",
    "carriage returns": b"import os\rx=1\r",
    "Python 2": b"print 'x'\n",
    "tabs and spaces": b"if 1:\n\tx=1\n        y=2\n",
    "wrong literals": _WRONG.encode(),
}
