"""`estimator-bridge migrate --form keras`: the new text, and the refusals.

`test_keras_form_runs.py` tests that the new program trains as the old one did. After a change of
the form, this command records the new programs of the examples; review them:

    python -m compat_tests.migrate.test_keras_form
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

from compat_tests.migrate.keras_rule_program import whole
from compat_tests.support import migrate_corpus
from compat_tests.support.paths import EXAMPLES
from compat_tests.support.whole_forms import keras_form, migrate_to_keras
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import sites
from estimator_bridge.migrate.keras_form.model_class import models
from estimator_bridge.migrate.keras_form.program_text.source import NotSimple, Source
from estimator_bridge.migrate.keras_form.straight import straightening

GOLDENS = pathlib.Path(__file__).parent / "keras_goldens"
CARRIED = ("movielens", "two_tower", "wide_and_deep", "sequence", "dict_config", "warm_start")


@functools.cache
def written(name: str) -> str:
    return keras_form((EXAMPLES / name / "train.py").read_text(), name).source


@pytest.mark.parametrize("name", CARRIED)
def test_an_example_becomes_the_program_that_was_read(name: str) -> None:
    """The new program is the recorded and reviewed one.

    A class needs nothing from TensorFlow 1 except the placeholders of a receiver that runs in a
    graph.
    """
    new = written(name)
    assert new == (GOLDENS / f"{name}.txt").read_text(), "write the goldens anew, and read them"
    words = ["TPUEstimator(", "tf.estimator"]
    if "TrainerModel" not in new:
        words += ["TPUEstimator", "compat", "estimator_bridge", "feature_column", "tf.layers"]
    for word in words:
        assert word not in re.sub(r"# .*|tf\.compat\.v1\.placeholder", "", new), word
    compile(new, name, "exec", dont_inherit=True)


@pytest.mark.parametrize(
    "name", [CARRIED[0], *(pytest.param(name, marks=pytest.mark.full) for name in CARRIED[1:])]
)
def test_lines_end_where_python_ends_them(name: str) -> None:
    """Form feeds and similar characters, which some editors insert, do not end a line."""
    source = (EXAMPLES / name / "train.py").read_text()
    marked = re.sub(r"^(?=def |class |if __name__)", "# \x0b \x1c \u2028\n\f\n", source, flags=re.M)
    assert marked.count("\f") > 2

    old, new = (keras_form(text, name) for text in (source, marked))

    assert ast.unparse(ast.parse(new.source)) == ast.unparse(ast.parse(old.source))
    reported = [
        [(text.split("\n")[each.line - 1] if each.line else "", each.new) for each in result.lines]
        for text, result in ((source, old), (marked, new))
    ]
    assert reported[0] == reported[1]


def test_all_blockers_are_listed_at_once_and_nothing_is_written(tmp_path: pathlib.Path) -> None:
    """Each blocker is reported with its line, rule, reason and way out."""
    program = tmp_path / "train.py"
    lines = "tf.layers.separable_conv2d(loss, 1)\n  tf.Variable(0.)\n  tf.GradientTape()"
    program.write_text(changed(lines))
    command = ["migrate", "--form", "keras", "--skip", "keep-estimator", str(program)]
    assert main.main(command) == 2
    assert [*tmp_path.iterdir()] == [program]
    with pytest.raises(errors.Untranslatable, match=r"(?s)\[keras-layer\].*\[keras-variable\]"):
        migrate_to_keras(program.read_text(), "train.py")


PROGRAM = whole(
    """\
  net = tf.layers.dropout(net, 0.1, training=is_training)
  logits = tf.layers.dense(net, 1)
  if mode == estimator.ModeKeys.PREDICT:
    return estimator.tpu.TPUEstimatorSpec(mode, predictions={'logits': logits})
  loss = tf.losses.sigmoid_cross_entropy(labels, logits)
  HERE
  if mode == estimator.ModeKeys.TRAIN:
    optimizer = tf.train.AdamOptimizer(0.1)
    STEP
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
""",
    arguments="use_tpu=False, ",
)


def changed(here: str = "loss += 0.", step: str = "train_op = optimizer.minimize(loss)") -> str:
    return PROGRAM.replace("HERE", here).replace("STEP", step)


def method(source: str, name: str) -> str:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.unparse(node)
    raise AssertionError(f"there is no {name}")


FUNCTIONS = {
    "clipped gradients": """\
pairs = optimizer.compute_gradients(loss)
    gradients, variables = zip(*pairs)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.)
    train_op = optimizer.apply_gradients(zip(gradients, variables), tf.train.get_global_step())""",
    "some variables": """\
few = tf.trainable_variables('dense')
    train_op = optimizer.minimize(loss, var_list=few)""",
    "two optimizers": """\
other = tf.train.AdagradOptimizer(.1)
    train_op = tf.group(optimizer.minimize(loss), other.minimize(loss))""",
    "a loss of the training alone": """\
loss += 0.1 * tf.nn.l2_loss(logits)
    train_op = optimizer.minimize(loss)""",
    "a summary": """\
tf.summary.scalar('loss', loss)
    train_op = optimizer.minimize(loss)""",
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_training_of_more_than_a_minimum_stays_in_the_function(what: str) -> None:
    """A class trains by the minimum of one loss; every statement of other trainings is kept."""
    new = keras_form(changed(step=FUNCTIONS[what]), "it").source

    assert "model = TrainerModel(" in new
    assert "class " not in new
    assert new.count("minimize(") + new.count("apply_gradients(") == (
        1 + (what == "two optimizers")
    )


def test_a_model_fn_that_no_class_can_have_stays_a_function() -> None:
    """The lists of such layers could be confused in a class; a function makes them in its loop."""
    inner = "[tf.layers.dense(tf.layers.dense(net, each), each + 1) for each in (1, 2)]"
    new = keras_form(changed(here=f"loss += tf.add_n({inner})"), "it").source

    assert inner in new
    assert "model = TrainerModel(" in new
    assert "class " not in new
    assert keras_form(new, "it").source == new


_TABLE = """0
  from tensorflow.python.tpu import tpu_embedding
  tables = {{'words': tpu_embedding.TableConfig({})}}"""
REFUSED = {
    "keras-no-counterpart": (
        "tf.feature_column.shared_embeddings([net], 2)",
        "make(tf.feature_column)",
        "make(tf.keras.layers.DenseFeatures)",
    ),
    "keras-of-train": (
        "tf.train.ExponentialMovingAverage(0.9)",
        "use(tf.train.SessionRunHook)",
    ),
    "keras-argument": (
        "tf.string_split(features['it'], result_type='RaggedTensor')",
        "tf.placeholder(tf.float32, [None], 'it', 1)",
        "tf.feature_column.categorical_column_with_vocabulary_list('a', ['b'], None, -1, 0, 1)",
        "tf.feature_column.crossed_column(['a', 'b'], 10, None, 1)",
        "tf.feature_column.crossed_column(*arguments)",
        "tf.feature_column.input_layer(features, [], trainable=False)",
        "tf.nn.in_top_k(labels, labels, 1, True, 2)",
        _TABLE.format("10, 4, hot_id_replication=True"),
        _TABLE.format("10, dimension=4, unheard_of=1"),
        _TABLE.format("10"),
    ),
}
"""For each rule: values that it refuses."""


@pytest.mark.parametrize(
    ("here", "rule"), [(here, rule) for rule, code in REFUSED.items() for here in code]
)
def test_what_would_be_lost_is_refused(here: str, rule: str) -> None:
    """Neither names without a counterpart nor arguments or settings of tables are dropped."""
    with pytest.raises(errors.Untranslatable, match=rf"\[{rule}\]"):
        migrate_to_keras(changed(f"it = {here}"), "it")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tf.squared_difference(logits, labels)", "tf.math.squared_difference(logits, labels)"),
        (
            "tf.pad(logits, [[0, 0], [0, 1]], 'CONSTANT', 'wide')",
            "tf.pad(tensor=logits, paddings=[[0, 0], [0, 1]], mode='CONSTANT', name='wide')",
        ),
        ("tf.constant_initializer(0.1)([1])", "tf.constant_initializer(value=0.1)([1])"),
        ("tf.nn.leaky_relu(logits)", "tf.nn.leaky_relu(logits)"),
        (
            "tf.reduce_sum(logits, 1, keep_dims=True)",
            "tf.reduce_sum(logits, 1, keepdims=True)",
        ),
        ("tf.shape(logits, 'size')", "tf.shape(logits, name='size')"),
        ("tf.losses.hinge_loss(labels, logits)", "tf.compat.v1.losses.hinge_loss(labels, logits)"),
        ("tf.nn.dropout(logits, 0.9)", "tf.compat.v1.nn.dropout(logits, 0.9)"),
    ],
)
def test_what_tensorflow_has_elsewhere_is_found_there(old: str, new: str) -> None:
    """A function that has moved to another module or reordered its arguments is rewritten."""
    assert new in method(migrate_to_keras(changed(f"loss += {old}"), "it").source, "loss_of")


def test_a_spec_may_have_a_name() -> None:
    """A model_fn whose spec is no returned call stays a function."""
    source = changed().replace(
        "  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)\n\n",
        "  spec = estimator.tpu.TPUEstimatorSpec(mode, loss=loss)\n  return spec\n\n",
    )
    new = keras_form(source, "it").source

    assert "  spec = ModelSpec(mode, loss=loss)\n  return spec\n" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tf.layers.dense(net, 1)", "tf.layers.dense(tf.layers.batch_normalization(net), 1)"),
        ("def model_fn(", "@wraps\ndef model_fn("),
        ("tf.layers.dense(net, 1)", "tf.layers.dense(net, 1 if is_training else 1)"),
        ("mode, loss=loss)\n\n", "mode, loss=loss, eval_metrics=(f, values))\n\n"),
        ("mode, loss=loss)\n\n", "mode, loss=loss, eval_metrics=(f, {key: labels}))\n\n"),
        *(
            ("mode, loss=loss)\n\n", f"mode, loss=loss, {metrics})\n\n")
            for metrics in (
                "eval_metrics=(lambda a: {'recall': tf.metrics.recall(a, a)}, [labels])",
                "eval_metrics=(lambda a: {'%d' % k: tf.metrics.mean(k * a) for k in ks}, [labels])",
                "eval_metric_ops={'recall': tf.metrics.recall(labels, logits)}",
            )
        ),
        ("mode, loss=loss)\n\n", "mode, loss=loss, evaluation_hooks=[])\n\n"),
    ],
)
def test_what_a_class_would_change_is_not_simple(old: str, new: str) -> None:
    """Updates of averages, decorators, computed arguments and some metrics stay in the function."""
    assert old in changed()
    source = straightening.straight(changed().replace(old, new, 1), "it")
    program = Source(source.text, "it")
    site = sites.find(program)
    assert site is not None

    with pytest.raises(NotSimple):
        models.write(program, site)


if __name__ == "__main__":
    for example in CARRIED:
        (GOLDENS / f"{example}.txt").write_text(written(example))


ELSEWHERE = {
    "a config of an argument": ("model_dir='model'", "config=FLAGS.config", r"\[keras-config\]"),
    "arguments of a dict": ("model_dir='model'", "**options", r"\[keras-argument\]"),
    "a config with a dict": (
        "model_dir='model'",
        "config=estimator.tpu.RunConfig(**options)",
        r"\[keras-argument\]",
    ),
    "hooks by a name": (
        "model.train(input_fn, steps=2)",
        "estimator.train_and_evaluate(model, estimator.TrainSpec(input_fn, hooks=hooks), "
        "estimator.EvalSpec(input_fn))",
        r"\[keras-hook\]",
    ),
    "an estimator": (  # The refusal shows no line, and not the whole program.
        "estimator.tpu.TPUEstimator(",
        "make(",
        r"it: \[keras-estimators\] the program makes no estimator\.",
    ),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_is_written_elsewhere_is_refused(what: str) -> None:
    """Settings that are computed elsewhere are refused, not treated as absent."""
    old, new, words = ELSEWHERE[what]
    assert old in changed()
    with pytest.raises(errors.Untranslatable, match=words):
        migrate_to_keras(changed().replace(old, new), "it")


@pytest.mark.parametrize("name", sorted(rules.WRITERS))
def test_an_unknown_argument_of_any_call_is_not_lost(name: str) -> None:
    """An unknown argument is refused or kept in the new program, never dropped."""
    source = Source(f"import tensorflow.compat.v1 as tf\nit = tf.{name}(unheard_of=1)\n", "it")
    call = source.tree.body[-1].value  # type: ignore[attr-defined]
    new = rules.WRITERS[name](source, call)

    assert source.problems or new is None or "unheard_of=1" in new


def test_words_are_split_by_the_same_op() -> None:
    """`tf.strings.split` would return words where `tf.string_split` returns none."""
    here = "it = tf.string_split(features['it'], delimiter='|', skip_empty=False)"
    new = migrate_to_keras(changed(here), "it").source
    assert "preprocessing.split_words(features['it'], '|', keep_empty=not False)" in new
    assert "preprocessing.split_words(features['it'])" in (
        migrate_to_keras(changed("it = tf.string_split(features['it'])"), "it").source
    )


def test_what_is_left_is_listed_by_the_lines_of_the_new_program(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 3, each mark is listed, and --brief writes a page that names both programs."""
    old, new = tmp_path / "old.py", tmp_path / "old_keras.py"
    source = migrate_corpus.programs()["plain"].source
    old.write_text(
        source.replace("  estimator.train(", "  tf.GradientTape()\n  estimator.train(job)(")
    )

    assert main.main(["migrate", "--form", "keras", str(old)]) == 3
    lines = new.read_text().splitlines()
    marks = [number for number, line in enumerate(lines, 1) if "TODO(estimator-bridge)" in line]
    told = capsys.readouterr().err
    assert marks
    assert re.findall(rf"{re.escape(str(new))}, line (\d+): gradient-tape: ", told) == [
        str(number) for number in marks
    ]
    assert main.main(["migrate", "--form", "keras", "--check", "--brief", str(old)]) == 3
    page = capsys.readouterr().out
    assert f"{new}, line {marks[0]}: gradient-tape" in page
    assert f"verify --a bridge-tpu --against {new} {old} ARGUMENTS" in page
