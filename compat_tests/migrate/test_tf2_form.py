"""`estimator-bridge migrate --form tf2`: what it keeps, comments out and refuses.

`test_tf2_form_runs.py` tests that the new program trains as the old one did.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import pathlib
import re

import pytest

from compat_tests.support.whole_forms import migrate
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.forms import FORMS, LISTED
from estimator_bridge.migrate.selection import ALL, Selection
from estimator_bridge.migrate.syntax.modules import ALONE
from estimator_bridge.migrate.tf2 import tf2_rules, unread_flags
from tf2_engine import training

PROGRAM = '''\
"""A program."""

from __future__ import print_function

import os

import tensorflow.compat.v1 as tf  # The old one.
from tensorflow.compat.v1 import estimator as tf_estimator


def model_fn(features, labels, mode):  # Ours.
  logits = tf.layers.dense( features['x'], 1 )
  if mode == tf_estimator.ModeKeys.PREDICT:
    outputs = tf_estimator.export.PredictOutput(logits)
    return tf_estimator.tpu.TPUEstimatorSpec(
        mode, predictions=logits,  # What it says.
        export_outputs={'serving_default': outputs})
  loss = tf.losses.mean_squared_error(labels, logits)
  optimizer = tf.train.AdamOptimizer(.1)
  if os.environ.get('TPU'):
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  return tf_estimator.tpu.TPUEstimatorSpec(
      mode, loss=loss, train_op=optimizer.minimize(loss))


def receiver_fn():
  return tf_estimator.export.ServingInputReceiver({}, {})


def main(columns):
  estimator = tf_estimator.tpu.TPUEstimator(
      model_fn, use_tpu=True,
      config=tf_estimator.tpu.RunConfig(model_dir='model', session_config=None),
      embedding_config_spec=tf_estimator.tpu.experimental.EmbeddingConfigSpec(
          feature_columns=columns,
          optimization_parameters=tf.tpu.experimental.AdagradParameters(.1)))
  with open('log') as log:
    session = tf_estimator.Hidden(log)
  print(session,
        2)
  print(estimator.export_savedmodel('served', receiver_fn, strip_default_attrs=True))
  return estimator


if __name__ == '__main__':
  tf.disable_v2_behavior()
  main([])
'''

MIGRATED = '''\
"""A program."""

from __future__ import print_function

import os

from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.

import tensorflow.compat.v1 as tf  # The old one.
from estimator_bridge.estimator.export import (
    PredictOutput, ServingInputReceiver)
from estimator_bridge.legacy.parameters import AdagradParameters
from estimator_bridge.legacy.spec import EmbeddingConfigSpec
from tf2_engine.training import (
    ModeKeys, ModelSpec, RunConfig, Trainer, minimize)


def model_fn(features, labels, mode):  # Ours.
  logits = tf.layers.dense( features['x'], 1 )
  if mode == ModeKeys.PREDICT:
    outputs = PredictOutput(logits)
    return ModelSpec(
        mode, predictions=logits,  # What it says.
        export_outputs={'serving_default': outputs})
  loss = tf.losses.mean_squared_error(labels, logits)
  optimizer = tf.train.AdamOptimizer(.1)
  return ModelSpec(
      mode, loss=loss, train_op=minimize(optimizer, loss))


def receiver_fn():
  return ServingInputReceiver({}, {})


def main(columns):
  # estimator-bridge: RunConfig(session_config) is left out: NOTHING.
  # session_config=None
  estimator = Trainer(
      model_fn,
      config=RunConfig(model_dir='model'),
      embedding_config_spec=EmbeddingConfigSpec(
          feature_columns=columns,
          optimization_parameters=AdagradParameters(.1), quirks='stock'))
  with open('log') as log:
    # estimator-bridge: tf_estimator.Hidden is left out: NOTHING.
    # session = tf_estimator.Hidden(log)
    pass
  # estimator-bridge: It uses session, which is left out.
  # print(session,
  #       2)
  print(estimator.export_saved_model('served', receiver_fn))
  return estimator


if __name__ == '__main__':
  main([])
'''


def test_nothing_else_changes() -> None:
    """Names are replaced, unneeded code goes, and code without a counterpart becomes a comment."""
    expected = MIGRATED.replace(": NOTHING.\n", ": the new program has no counterpart.\n")
    assert migrate(PROGRAM).source == expected


def test_what_is_left_out_is_in_the_report() -> None:
    """The report has a line for each dropped argument and each dropped or commented statement.

    An import that is too long for a line of the program is one line of the report.
    """
    lines = [str(line) for line in migrate(PROGRAM).lines]
    left_out = [line for line in lines if line.startswith("[left out]")]

    assert [line.split(".")[0] for line in left_out] == [
        "[left out] line 20: if os",
        "[left out] line 32: use_tpu=True",
        "[left out] line 33: session_config=None",
        "[left out] line 38: session = tf_estimator",
        "[left out] line 39: print(session,",
        "[left out] line 41: strip_default_attrs=True",
        "[left out] line 46: tf",
    ]
    added = "from tf2_engine.training import (ModeKeys, ModelSpec, RunConfig, Trainer, minimize)"
    assert any(line.startswith(f"[added] {added}") for line in lines)


def test_what_goes_leaves_no_trace() -> None:
    """Dropped code leaves no comment and no unused variable; other dependent code is shown."""
    source = PROGRAM.replace(
        "  estimator = tf_estimator.tpu.TPUEstimator(\n      model_fn, use_tpu=True,",
        "  # The loop.\n  loop = 7\n  # Cores and loop.\n"
        "  tpu = tf_estimator.tpu.TPUConfig(iterations_per_loop=loop)\n"
        "  print(tpu)\n"
        "  estimator = tf_estimator.tpu.TPUEstimator(\n      model_fn, use_tpu=True,",
    )
    new = migrate(source).source
    for word in ("loop", "Cores", "TPUConfig", "disable_v2", "use_tpu"):
        assert word not in new, word
    assert "# estimator-bridge: It uses tpu, which is left out.\n  # print(tpu)\n" in new


def test_tabs_form_feeds_and_line_ends_are_kept() -> None:
    """Edits are in the right place despite tab indentation and form feeds.

    Windows line ends are kept, and new code has them too.
    """
    source = re.sub("^( +)", lambda m: "\t" * (len(m[1]) // 2), PROGRAM, flags=re.MULTILINE)
    source = source.replace("\n\n\ndef", "\n\n\x0c\ndef").replace("# Ours.", "# Ours. \x85 \u2028.")
    new = migrate(source.replace("\n", "\r\n")).source

    assert "\n" not in new.replace("\r\n", "")
    new = new.replace("\r\n", "\n")
    compile(new, "new", "exec", dont_inherit=True)
    assert "\n\t\t# session = tf_estimator.Hidden(log)\n\t\tpass\n" in new
    assert "\n\n\x0c\ndef model_fn(features, labels, mode):  # Ours. \x85 \u2028.\n" in new
    assert not re.search("^ +[a-z]", new.partition("def model_fn")[2], re.MULTILINE)


def test_names_of_the_program_stay() -> None:
    """A name that the program already uses is imported under another name, or by its module."""
    names = "Trainer = minimize = 1\n\n\nclass PredictOutput: pass\n"
    new = migrate(PROGRAM.replace("def receiver_fn", f"{names}\n\ndef receiver_fn")).source

    assert f"\n{names}" in new
    assert "estimator = training.Trainer(" in new
    assert "from tf2_engine import training\n" in new
    assert "train_op=training.minimize(optimizer, loss))" in new
    assert "PredictOutput as tf2_PredictOutput, ServingInputReceiver)" in new
    assert "    outputs = tf2_PredictOutput(logits)\n" in new


RETURN = "  return estimator\n"
LOST = r"\[loses-training\] .*(Hidden is left out|It uses)"
OF_HIDDEN = (
    "if tf_estimator.Hidden():\n    estimator.evaluate(1)",
    "for _ in tf_estimator.Hidden():\n    tf_estimator.train_and_evaluate(estimator, 1, 2)",
    "hidden = tf_estimator.Hidden()\n  estimator.export_saved_model('x', hidden)",
)
"""Statements that train or use what is trained, and depend on something without a counterpart."""


@pytest.mark.parametrize(
    "old, new, words",
    [
        (
            "model_fn, use_tpu",
            "model_fn, 'model', None, {}, True, use_tpu",
            "line 31: .* 5 arguments",
        ),
        ("strip_default_attrs=True", "1, 2, 3, 4", "line 41: .*model has 6 arguments"),
        (RETURN, "  tf_estimator.CheckpointSaverHook('x')\n", r"\[checkpoint-saver-hook\]"),
        *((RETURN, f"  {statement}\n{RETURN}", LOST) for statement in OF_HIDDEN),
    ],
)
def test_what_would_be_lost_is_refused(old: str, new: str, words: str) -> None:
    """Arguments by position that have moved, hooks, and trainings that depend on dropped code."""
    with pytest.raises(errors.Untranslatable, match=rf"(?s)job\.py.*{words}"):
        migrate(PROGRAM.replace(old, new), "job.py")


STOCK = "from tensorflow.compat.v1 import"


@pytest.mark.parametrize(
    "statements, kept",
    [
        (f"{STOCK} estimator", "pass"),
        (f"{STOCK} estimator; a = 1", "pass; a = 1"),
        (f"{STOCK} estimator, train", f"{STOCK} train"),
        (f"a = 1\n  {STOCK} estimator", "a = 1"),
        ("import os; tf.disable_v2_behavior()", "import os"),
        ("import os; tf.disable_v2_behavior(); import re", "import os; import re"),
        ("tf.disable_v2_behavior(); import os", "pass; import os"),
        ("tf.disable_eager_execution(); tf.disable_v2_behavior()", "pass"),
    ],
)
def test_what_is_dropped_leaves_what_is_beside_it(statements: str, kept: str) -> None:
    new = migrate(PROGRAM.replace("def main", f"def early():\n  {statements}\n\n\ndef main")).source

    assert f"def early():\n  {kept}\n\n" in new
    compile(new, "new", "exec", dont_inherit=True)


WRAPPED = "    optimizer = tf.tpu.CrossShardOptimizer(optimizer)"
CROSSED = "tf.tpu.CrossShardOptimizer(optimizer)"
OTHER_CROSSED = "tf.tpu.CrossShardOptimizer(other)"


@pytest.mark.parametrize(
    "wrapping",
    [
        f"optimizer = {CROSSED} if mode else optimizer",
        f"optimizer = optimizer if not mode else {CROSSED}",
        f"if mode: optimizer = {CROSSED}",
        f"if mode: optimizer = {CROSSED}; other = {OTHER_CROSSED}",
        f"optimizer, other = [{CROSSED}, {OTHER_CROSSED} if mode else other]",
        f"[optimizer, other] = {CROSSED}, other",
        f"optimizer, other = (\n        {CROSSED},  # the tables'\n        other)",
    ],
)
def test_a_wrapping_leaves_nothing_over(wrapping: str) -> None:
    """A statement that only wraps optimizers is removed whole, in whatever way it is written."""
    assert WRAPPED in PROGRAM
    bare = migrate(PROGRAM.replace(WRAPPED, "    pass")).source
    wrapping = f"    {wrapping}\n    pass"
    assert migrate(PROGRAM.replace(WRAPPED, wrapping)).source == bare


@pytest.mark.parametrize(
    "wrapping, kept",
    [
        (
            "wrap = tf.tpu.CrossShardOptimizer if mode else (lambda o: o)\n"
            "    optimizer = wrap(optimizer)",
            "wrap = CrossShardOptimizer if mode else (lambda o: o)",
        ),
        (
            "wrap = tf.tpu.CrossShardOptimizer\n    optimizer = wrap(optimizer)",
            "wrap = CrossShardOptimizer\n",
        ),
        (
            "optimizer = {True: tf.tpu.CrossShardOptimizer}[True](optimizer)",
            "{True: CrossShardOptimizer}[True](optimizer)",
        ),
        (
            "def wrapped(o):\n      return tf.tpu.CrossShardOptimizer(o)\n"
            "    optimizer = wrapped(optimizer)",
            "return o\n",
        ),
        (
            "optimizer = {'a': tf.train.AdamOptimizer}['a'](.1)",
            "optimizer = {'a': tf.train.AdamOptimizer}['a'](.1)",
        ),
        (f"optimizer = {CROSSED} if mode else other", "optimizer = optimizer if mode else other"),
        (f"optimizer = {CROSSED} if log(mode) else optimizer", "if log(mode) else optimizer"),
        (f"if mode: log(mode); optimizer = {CROSSED}", "if mode: log(mode)"),
        (f"if mode: optimizer = {CROSSED}\n    else: log(mode)", "else: log(mode)"),
        (
            f"optimizer, other = {CROSSED}, tf.tpu.CrossShardOptimizer(other, None)",
            "other = optimizer, CrossShardOptimizer(other, None)",
        ),
    ],
)
def test_no_training_is_lost(wrapping: str, kept: str) -> None:
    """However the optimizer is created and wrapped, the new program trains with it.

    A statement that does more than wrap optimizers keeps the rest of what it does.
    """
    new = migrate(PROGRAM.replace(WRAPPED, f"    {wrapping}")).source

    assert kept in new
    assert "mode, loss=loss, train_op=minimize(optimizer, loss))" in new


def test_a_lost_training_names_the_first_cause() -> None:
    code = """\
  class Kept(tf_estimator.Hidden):
    pass
  hook = Kept()
  if PROGRAM:
    estimator.train(input_fn, hooks=[hook])
  return estimator
"""
    source = PROGRAM.replace("  return estimator\n", code)
    line = source[: source.index("class Kept")].count("\n") + 1
    cause = rf"It uses hook, which is left out \(line {line}: tf_estimator.Hidden is left out: "
    with pytest.raises(errors.Untranslatable, match=cause) as refused:
        migrate(source)
    assert str(refused.value).count("[loses-training] estimator.train") == 1


UNSEEN = {
    "a helper of a library": "helper.create_train_op(loss, optimizer)",
    "updates of Keras": "tf.group(tf.keras.optimizers.SGD(1.).get_updates(loss, []))",
    "a method by its name": "getattr(optimizer, 'mini' + 'mize')(loss)",
}


@pytest.mark.parametrize("train_op", UNSEEN.values(), ids=UNSEEN)
def test_a_training_that_is_not_seen_is_refused(train_op: str) -> None:
    """Code that would fail at its first step is refused; a program that only predicts is not."""
    source = PROGRAM.replace("optimizer.minimize(loss)", train_op)
    migrate(source)
    with pytest.raises(errors.Untranslatable, match=r"\[no-training\] job.py: it trains, and"):
        migrate(source.replace("  return estimator\n", "  estimator.train(1)\n"), "job.py")


def test_hooks_of_sessions_are_those_of_train() -> None:
    """`tf.estimator` and `tf.train` share their hooks.

    A ProfilerHook is taken, and profiles nothing.
    """
    code = """\
  class Stop(tf_estimator.SessionRunHook):
    def before_run(self, run_context):
      return tf_estimator.SessionRunArgs(tf.train.get_global_step())
  estimator.train(input_fn, hooks=[Stop(), tf_estimator.StopAtStepHook(2)])
  tf_estimator.ProfilerHook(1)
  return estimator
"""
    new = migrate(PROGRAM.replace("  return estimator\n", code)).source
    assert "class Stop(SessionRunHook):" in new
    assert "return SessionRunArgs(tf.train.get_global_step())" in new
    assert "hooks=[Stop(), StopAtStepHook(2)]" in new
    imports = [each for each in ast.walk(ast.parse(new)) if isinstance(each, ast.ImportFrom)]
    (of_train,) = (each for each in imports if each.module == "tensorflow.compat.v1.train")
    namespace: dict[str, object] = {}
    exec(ast.unparse(of_train), namespace)
    names = {"ProfilerHook", "SessionRunArgs", "SessionRunHook", "StopAtStepHook"}
    assert names <= namespace.keys()


@pytest.mark.parametrize(
    "old, new, rule",
    [
        ("  return estimator\n", "  tf.GradientTape()\n  return estimator\n", "gradient-tape"),
        ("tf_estimator.tpu.TPUEstimator(", "tf_estimator.DNNClassifier(", "canned-estimator"),
    ],
)
def test_what_would_need_an_edit_keeps_its_estimators(old: str, new: str, rule: str) -> None:
    """The bridge runs it in TensorFlow 2; the report says why, and migrating again does nothing."""
    source = PROGRAM.replace(old, new)
    form = FORMS["tf2"]
    kept = packages.rewrite_text(form, source, "job.py")
    reasons = [each.why for each in kept.lines if each.rule == tf2_rules.KEEP]

    assert source != PROGRAM
    assert any(f"[{rule}]" in each for each in reasons), reasons
    assert kept.source == FORMS["bridge"].rewrite(source, "job.py", ALL, ALONE).source
    assert packages.rewrite_text(form, kept.source, "job.py").source == kept.source
    file = packages.SourceFile(pathlib.Path("job.py"), "job.py", source, "utf-8")
    with pytest.raises(Refused):
        packages.rewrite_alone(form, file, Selection(skip={tf2_rules.KEEP}))


def test_all_blockers_are_named_at_once() -> None:
    """Each blocker has a file, line, rule, reason and way out; they are sorted by line."""
    source = PROGRAM.replace("  return estimator\n", "  tf.GradientTape()\n  return estimator\n")
    source = source.replace("optimizer.minimize(loss)", "step(optimizer.minimize)")
    source = source.replace(
        "  return tf_estimator.export.ServingInputReceiver({}, {})",
        "  tf.train.shuffle_batch([x], 8, 100, 10)\n"
        "  tf.train.Scaffold(init_fn=print)\n"
        "  return tf.train.batch([x], 8)",
    )
    with pytest.raises(errors.Untranslatable) as refused:
        migrate(source, "job.py")

    first, *lines = str(refused.value).splitlines()
    assert first == "job.py cannot be migrated to TensorFlow 2:"
    form = re.compile(r"  job\.py, line (\d+): \[([\w-]+)\] .*: .*\. [A-Z].*\.$")
    named = [form.match(line) for line in lines]
    assert all(named)
    assert [(int(each[1]), each[2]) for each in named if each] == [
        (23, "minimize"),
        (27, "shuffle-batch"),
        (28, "scaffold"),
        (29, "batch"),
        (44, "gradient-tape"),
    ]


@pytest.mark.parametrize(
    "old, new, carried",
    [
        ("embedding_config_spec=", "predict_batch_size=1, params=", "Trainer("),
        (
            "tpu.RunConfig(model_dir='model', session_config=None)",
            "RunConfig('model', 7, 100, 20, None)",
            "RunConfig('model', 7, 100, 20, None)",
        ),
        (
            "  return estimator\n",
            "  hasattr(tf.tpu.experimental, 'x')\n",
            "hasattr(tf.tpu.experimental",
        ),
        ("  return estimator\n", "  run(tf_estimator)\n", "run(tf2_estimator)"),
        (
            "import os\n",
            "from scipy import optimize\noptimize.minimize(1)\n",
            "optimize.minimize(1)",
        ),
        (
            "optimizer.minimize(loss)",
            "tf.tpu.CrossShardOptimizer(tf.train.AdamOptimizer(.1)).minimize(loss)",
            "train_op=minimize(tf.train.AdamOptimizer(.1), loss)",
        ),
        # The library may have to refuse a reduction.
        (
            "optimizer.minimize(loss)",
            "tf.tpu.CrossShardOptimizer(tf.train.AdamOptimizer(.1), 'sum').minimize(loss)",
            "minimize(CrossShardOptimizer(tf.train.AdamOptimizer(.1), 'sum'), loss)",
        ),
    ],
)
def test_trainer_takes_what_a_model_fn_needs(old: str, new: str, carried: str) -> None:
    """Models without tables, positional arguments, modules passed around, and an optimizer.

    It is created, wrapped and used in one expression.
    """
    source = PROGRAM.replace(old, new)

    assert source != PROGRAM
    assert carried in migrate(source).source


def test_losses_of_regularization_are_read_and_not_written() -> None:
    """Reads of the collection become calls of the library, also by its name or for a scope."""
    statements = """\
  tower = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES, scope='tower')
  named = tf.get_collection('regularization_losses')
  tf.add_to_collection('regularization_losses', loss)
  tf.losses.add_loss(loss, tf.GraphKeys.REGULARIZATION_LOSSES)
"""
    optimizer = "  optimizer = tf.train"
    new = migrate(PROGRAM.replace(optimizer, f"{statements}{optimizer}")).source

    writes = statements.split("\n", 2)[2]
    assert "  tower = get_regularization_losses(scope='tower')\n" in new
    assert f"  named = get_regularization_losses()\n{writes}" in new


def test_every_rule_has_an_id_and_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list-rules` lists each rule of each form once, and everything that rules import exists.

    A replacement accepts the arguments that stay in calls, under their names.
    """
    tables = (tf2_rules.STOCK, tf2_rules.TENSORFLOW, tf2_rules.METHODS, tf2_rules.NOT_IN_CONFIG)
    rules = tf2_rules.listed()

    assert main.main(["migrate", "--list-rules"]) == 0
    count = sum(len(form.rules()) for form in LISTED.values())
    assert capsys.readouterr().out.count("\n") == count
    assert {tf2_rules.rule_id(name) for name in itertools.chain(*tables)} <= rules.keys()
    assert {tf2_rules.argument_rule(name) for name in tf2_rules.ARGUMENTS} <= rules.keys()
    for name, rule in rules.items():
        if rule.module == tf2_rules.TRAINING:
            assert hasattr(training, rule.new), name
    for rule in (*tf2_rules.STOCK.values(), *tf2_rules.TENSORFLOW.values()):
        if rule.arguments is not None:
            taken = inspect.signature(getattr(training, rule.new)).parameters
            assert {*rule.arguments} <= taken.keys(), rule.new


def test_flags_that_nothing_reads_any_more_are_named() -> None:
    flags = (
        'parser.add_argument("-u", "--use-tpu", dest="tpu")\n'
        'parser.add_argument("--cores")\nflags.DEFINE_integer("shards", 2, "")\n'
        'flags.DEFINE_integer("unread", 2, "")\nflags.DEFINE_integer(help="", name="loop")\n'
    )
    lines = unread_flags.unread(
        f"{flags}f(args.tpu, args.cores, FLAGS.shards, FLAGS.loop)\n", f"{flags}f(args.cores)\n"
    )
    assert [(each.line, each.old) for each in lines] == [
        (1, "--tpu"),
        (3, "--shards"),
        (5, "--loop"),
    ]


@pytest.mark.parametrize(
    "given, is_read_before, is_named",
    [
        ('make(params={"tpu": FLAGS.tpu, "rate": 1})\n', True, True),
        ('settings = {"tpu": FLAGS.tpu}\nmake(params=settings)\n', True, True),
        ('make(params={"device": FLAGS.tpu, "tpu": 1})\n', True, False),
        ('make({"tpu": FLAGS.tpu})\n', True, False),
        ('make(params={"tpu": FLAGS.tpu})\nprint(FLAGS.tpu)\n', True, False),
        ('make(params={**old, "tpu": FLAGS.tpu})\n', False, False),
    ],
)
def test_an_entry_of_params_that_nothing_reads_reads_no_flag(
    given: str, is_read_before: bool, is_named: bool
) -> None:
    """A flag whose only reader is an entry of `params` is read if a function reads that entry."""
    flag = 'flags.DEFINE_bool("tpu", False, "")\n'
    reader = 'params["tpu"], params["device"]\n' if is_read_before else ""
    kept = 'params["device"]\n'
    lines = unread_flags.unread(f"{flag}{given}{reader}", f"{flag}{given}{kept}")
    assert [each.old for each in lines] == ["--tpu"] * is_named
