"""Registers the native ops when this module is imported, for graphs that contain these ops.

TensorFlow opens a graph only if all of its ops are registered. The graphs of training runs with
tables contain ops of this project (`Tf2Engine…`), and so do their `.meta` files:

    import tf2_engine.native.ops

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph("model_dir/model.ckpt-100.meta")
        saver.restore(session, "model_dir/model.ckpt-100")
"""

from tf2_engine.native import build, loading

if (_loaded := loading.load()).ops is None:
    raise build.CannotBuild(
        f"The native ops cannot be registered: {_loaded.reason}. Fix that, or write the graph "
        f"again with {loading.SETTING}=0, which trains on TensorFlow's own ops."
    )
