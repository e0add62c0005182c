"""Programs of TensorFlow 1 are ported from tf.contrib before they are migrated."""

from __future__ import annotations

import pytest

from estimator_bridge.migrate import contrib_uses, tf1_programs

USES = {
    "a dotted name": (
        "import tensorflow as tf\nconfig = tf.contrib.tpu.RunConfig(model_dir='m')\n",
        "import tensorflow as tf\nconfig = tf.estimator.tpu.RunConfig(model_dir='m')\n",
    ),
    "a private module": (
        "import tensorflow as tf\nfrom tensorflow.contrib.tpu.python.tpu import tpu_optimizer\n"
        "wrap = tpu_optimizer.CrossShardOptimizer\n",
        "import tensorflow as tf\n\nwrap = tf.tpu.CrossShardOptimizer\n",
    ),
    "a name": (
        "import tensorflow as tf\nfrom tensorflow.contrib.tpu import (\n    TPUConfig)\n"
        "x = TPUConfig()\n",
        "import tensorflow as tf\n\n\nx = tf.estimator.tpu.TPUConfig()\n",
    ),
    "another package": (
        "import tensorflow as tf\ny = tf.contrib.layers.layer_norm(x)\n",
        "import tensorflow as tf; from tf_slim.layers import layer_norm as slim_layer_norm\n"
        "y = slim_layer_norm(x)\n",
    ),
    "a module that TensorFlow hides": (
        "import tensorflow as tf\nx = tf.contrib.lookup.index_table_from_file(y)\n",
        "import tensorflow as tf; from tensorflow.python.ops import lookup_ops as tf_lookup_ops\n"
        "x = tf_lookup_ops.index_table_from_file(y)\n",
    ),
    "old arguments": (
        "import tensorflow as tf\nd = d.apply(tf.contrib.data.batch_and_drop_remainder(3))\n",
        "import tensorflow as tf\nd = d.apply("
        "(lambda size: lambda data: data.batch(size, drop_remainder=True))(3))\n",
    ),
    "an unknown name": (
        "import tensorflow as tf\nx = tf.contrib.tpu.keras_to_tpu_model(y)\n",
        "import tensorflow as tf\nx = tf.contrib.tpu.keras_to_tpu_model(y)\n",
    ),
    "without tensorflow": (
        "from tensorflow.contrib import tpu\nx = tpu.TPUConfig()\n",
        "from tensorflow.contrib import tpu\nx = tpu.TPUConfig()\n",
    ),
}


@pytest.mark.parametrize("what", USES)
def test_names_of_contrib_become_those_of_tensorflow(what: str) -> None:
    """Each line stays where it is, and imports that nothing uses any more are gone.

    A ported program imports the module of version 1, which has these names.
    """
    before, after = USES[what]

    assert contrib_uses.replaced(before) == after
    assert contrib_uses.replaced(after) == after
    ported = after.replace("import tensorflow as", "import tensorflow.compat.v1 as")
    assert tf1_programs.ported(before) == ported
