"""Uses names of stock's private modules as libraries do, and prints what each did, as JSON.

python private_names.py stock|bridge MODEL_DIR
"""

import functools
import importlib
import json
import os
import sys

import numpy as np

if sys.argv[1] == "bridge":
    from estimator_bridge import install

    install.install(replace=True)
import tensorflow as tf
import tensorflow.compat.v1 as tf1


def stock(below):
    """Imports a private module of stock, which may be the bridge's."""
    return importlib.import_module(f"tensorflow_estimator.python.estimator.{below}")


estimator_lib, estimator_export, exporter = map(
    stock, ("estimator", "estimator_export", "exporter")
)
gc, training, util = map(stock, ("gc", "training", "util"))
head_lib, metric_keys = stock("canned.head"), stock("canned.metric_keys")
optimizers, prediction_keys = stock("canned.optimizers"), stock("canned.prediction_keys")

FEATURES = {"w": [[1.0], [2.0], [0.5]]}
LOGITS = [[0.3], [-1.2], [2.0]]


def caught(function, *args, **settings):
    """Calls a function; returns the built-in type of its error."""
    try:
        function(*args, **settings)
    except Exception as error:
        kinds = (ValueError, TypeError, NotImplementedError)
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), str(error))
    return "no error"


def of_head(make, labels, logits):
    """Returns the loss, its parts and the metrics of a head."""
    found = {}
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        head, batch = make(), (FEATURES, tf1.estimator.ModeKeys.EVAL, tf.constant(logits))
        spec = head.create_estimator_spec(
            *batch, labels=tf.constant(labels), regularization_losses=[tf.constant(0.25)]
        )
        parts = head.create_loss(*batch, labels=tf.constant(labels))
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run([update for _, update in spec.eval_metric_ops.values()])
        values = {name: value for name, (value, _) in spec.eval_metric_ops.items()}
        found["metrics"] = session.run(values)
        found["loss"] = session.run(spec.loss)
        found["parts"] = session.run(
            {k: tf.convert_to_tensor(v) for k, v in parts._asdict().items()}
        )
        found["outputs"] = sorted(spec.export_outputs or ())
        found["logits"] = head.logits_dimension, head.name
    return found


def heads():
    """Yields what each head did, by its name."""
    binary = head_lib._binary_logistic_head_with_sigmoid_cross_entropy_loss
    several = head_lib._multi_class_head_with_softmax_cross_entropy_loss
    ones = [[1], [0], [1]]
    yield "binary", of_head(binary, ones, LOGITS)
    make = functools.partial(binary, weight_column="w", thresholds=(0.4, 0.9), name="click")
    yield "binary with all", of_head(make, ones, LOGITS)
    scores = [[0.1, 2.0, 0.3], [1.0, 0.0, 0.5], [0.2, 0.1, 0.9]]
    make = functools.partial(several, 3, weight_column="w", name="kind")
    yield "classes", of_head(make, [[1], [0], [1]], scores)
    make = functools.partial(head_lib._regression_head, name="price")
    yield "regression", of_head(make, [[0.5], [1.0], [-1.0]], LOGITS)
    make = functools.partial(
        head_lib._regression_head, "w", 3, tf1.losses.Reduction.MEAN, inverse_link_fn=tf.exp
    )
    yield "regression with all", of_head(make, scores, scores)
    yield "two classes", caught(several, 2)


class OwnHead(head_lib._Head):
    """A head as DeepCTR has one."""

    name, logits_dimension = "own", 1

    def create_loss(self, features, mode, logits, labels):
        return tf1.losses.mean_squared_error(labels, logits)


def model_fn(features, labels, mode):
    weight = tf1.get_variable("weight", initializer=1.0)
    predictions = features["x"] * weight
    loss = None if labels is None else tf.reduce_mean((predictions - labels) ** 2)
    train_op = None
    if mode == tf1.estimator.ModeKeys.TRAIN:
        step = tf1.train.get_global_step()
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf1.estimator.EstimatorSpec(mode, {"p": predictions}, loss, train_op)


def input_fn():
    rows = {"x": tf.constant([[1.0], [2.0]])}, tf.constant([[3.0], [6.0]])
    return tf.data.Dataset.from_tensors(rows).repeat()


def receiver_fn():
    x = tf1.placeholder(tf.float32, [None, 1], "x")
    return tf1.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


class Free(tf1.estimator.Estimator):
    """Overrides a method, and takes the check away that forbids it."""

    def _assert_members_are_not_overridden(self):
        pass

    def evaluate(self, *args, **settings):
        return "own"


class Bound(tf1.estimator.Estimator):
    """Overrides a method without more."""

    def evaluate(self, *args, **settings):
        return "own"


class Counts(tf1.train.SessionRunHook):
    """Counts the steps that it sees."""

    steps = 0

    def before_run(self, run_context):
        self.steps += 1


class Listener(training._ContinuousEvalListener):
    """Ends the evaluator after its first evaluation."""

    results = ()

    def after_eval(self, eval_result):
        self.results += (eval_result.status, os.path.basename(eval_result.checkpoint_path or ""))
        return False


def estimators(folder):
    """Yields what an estimator did whose private attributes are used."""
    made = tf1.estimator.Estimator(model_fn, os.path.join(folder, "first"))
    config = made._session_config
    yield "session config", (config.allow_soft_placement, made._model_dir == made.model_dir)
    made._model_dir = os.path.join(folder, "second")
    made._session_config = tf1.ConfigProto(allow_soft_placement=True)
    made.train(input_fn, steps=3)
    yield "assigned", (sorted(os.listdir(folder)), os.path.basename(made.model_dir))
    yield "weight", made.get_variable_value("weight")
    with tf.Graph().as_default() as graph:
        step = made._create_and_assert_global_step(graph)
        yield "step", (step is tf1.train.get_global_step(), step.dtype.is_integer)
    yield "free", Free(model_fn, folder).evaluate()
    yield "bound", caught(Bound, model_fn, folder)


def executors(folder):
    """Yields what executors did: alone, and as the evaluator of a cluster."""
    made = tf1.estimator.Estimator(model_fn, folder)
    specs = (
        tf1.estimator.TrainSpec(input_fn, max_steps=4),
        tf1.estimator.EvalSpec(
            input_fn,
            steps=1,
            start_delay_secs=0,
            throttle_secs=0,
            exporters=[exporter._SavedModelExporter("all", receiver_fn)],
        ),
    )
    counts = Counts()
    executor = training._TrainingExecutor(made, *specs, train_hooks=[counts])
    metrics, exports = executor.run()
    yield "alone", (sorted(metrics), len(exports), counts.steps, executor.estimator is made)
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "evaluator", "index": 0}}
    )
    made, listener = tf1.estimator.Estimator(model_fn, folder), Listener()
    training._TrainingExecutor(made, *specs, continuous_eval_listener=listener).run()
    del os.environ["TF_CONFIG"]
    yield "evaluator", listener.results
    wrong = functools.partial(training._TrainingExecutor, made)
    yield "wrong spec", caught(wrong, specs[0], "no spec")
    yield "wrong listener", caught(wrong, *specs, continuous_eval_listener="none")
    yield "wrong estimator", caught(training._TrainingExecutor, "none", *specs)
    yield "not asserted", caught(training._assert_eval_spec, "no spec")
    yield "asserted", caught(training._assert_eval_spec, specs[1])
    export = exporter._SavedModelExporter("kept", receiver_fn)
    for _ in range(6):  # All are kept; LatestExporter keeps five.
        export.export(made, os.path.join(folder, "kept"), made.latest_checkpoint(), {}, False)
    yield "kept", (export.name, len(os.listdir(os.path.join(folder, "kept"))))


def filters(folder):
    for version in (0, 3, 4, 8, 15, 16):
        os.makedirs(os.path.join(folder, str(version)))
    os.makedirs(os.path.join(folder, "other"))

    def parser(path):
        name = os.path.basename(path.path)
        return path._replace(export_version=int(name)) if name.isdigit() else None

    paths = gc._get_paths(folder, parser)
    largest, every = gc._largest_export_versions(2), gc._one_of_every_n_export_versions(4)
    some = gc._mod_export_version(8)
    kept = {
        "all": lambda each: each,
        "largest": largest,
        "none": gc._largest_export_versions(0),
        "every": every,
        "some": some,
        "union": gc._union(largest, some),
        "negation": gc._negation(every),
    }
    for name, keep in kept.items():
        yield name, [each.export_version for each in keep(paths)]
    odd = [gc.Path("b", None), gc.Path("a", 7)]
    yield "without version", [each.path for each in largest(odd) + every(odd)]


def others():
    for kind in (prediction_keys.PredictionKeys, metric_keys.MetricKeys):
        yield kind.__name__, {n: getattr(kind, n) for n in dir(kind) if n.isupper()}
    for name in ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"):
        made = optimizers.get_optimizer_instance(name, learning_rate=0.5)
        made_v2 = optimizers.get_optimizer_instance_v2(name)
        yield (
            name,
            (type(made).__name__, type(made_v2).__name__, made_v2.get_config()["learning_rate"]),
        )
    get = optimizers.get_optimizer_instance
    own = tf1.train.AdamOptimizer(0.1)
    yield "own optimizer", get(own) is own is get(lambda: own, 0.2)
    for wrong in (("SGD",), ("SGD", 0), ("Nonsense", 0.1), (3, 0.1)):
        yield f"wrong {wrong}", caught(get, *wrong)
    head = OwnHead()
    yield "own head", (isinstance(head, head_lib._Head), caught(head.create_estimator_spec, *"abc"))
    overwrite = estimator_lib.maybe_overwrite_model_dir_and_session_config
    config = tf1.estimator.RunConfig(model_dir="here")
    made = overwrite(config, "here")
    yield "config", (made.model_dir, made.session_config.allow_soft_placement)
    yield "wrong config", (caught(overwrite, config, "there"), caught(overwrite, 3, "there"))
    yield "new folder", os.path.isdir(overwrite(None, None).model_dir)
    yield "arguments", util.fn_args(functools.partial(lambda a, b, c=1: None, b=2))
    yield "of a method", util.fn_args(head.create_loss)
    export = estimator_export.estimator_export("estimator.mine", v1=["estimator.mine"])
    yield "exported", export(lambda: 5)()


def plain(value):
    """Returns what JSON can hold of a value; numbers with six digits."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    tf1.disable_v2_behavior()

    place = functools.partial(os.path.join, sys.argv[2])
    parts = {
        "heads": heads(),
        "estimators": estimators(place("estimators")),
        "executors": executors(place("executors")),
        "filters": filters(place("filters")),
        "others": others(),
    }
    json.dump({name: plain(dict(part)) for name, part in parts.items()}, sys.stdout)
