"""Sources that no programmer writes. Each is read, or refused in a line that names its file.

`FOUND` has the cases that fuzzing found; add new ones here.
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
"""Long or deeply nested sources, some of which Python itself can read."""
_CALL = "E.TPUEstimator(model_fn=f, use_tpu=False, use_tpu=False, train_batch_size=4)"
NOT_COMPILED = {
    "a keyword twice": f"E = tf.compat.v1.estimator.tpu\n{_CALL}",
    "a parameter twice": "def f(a, a): pass",
    "return outside of a function": "return 3",
    "yield outside of a function": "yield 3",
    "await outside of a function": "await f()",
    "await in a function": "def f():\n    await g()",
    "break outside of a loop": "break",
    "continue in a function": "for x in ():\n    def f():\n        continue",
    "nonlocal at the top": "nonlocal x",
    "global after use": "def f():\n    x = 1\n    global x",
    "a parameter that is global": "def f(x):\n    global x",
    "two starred targets": "*a, *b = range(3)",
    "a starred name": "x = *a",
    "a late future": "x = 1\nfrom __future__ import annotations",
    "an unknown future": "from __future__ import nothing",
    "a capture twice": "match x:\n    case (a, a): pass",
    "an assigned debug": "__debug__ = 1",
    "import * in a function": "def f():\n    from os import *",
}
"""Sources that `ast` parses but Python refuses to compile."""
FOUND: dict[str, bytes] = {
    **{name: f"{_HEAD}{text}\n".encode() for name, text in NOT_COMPILED.items()},
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
