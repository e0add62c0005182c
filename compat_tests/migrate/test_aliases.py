"""`migrate` follows TensorFlow names that the program binds to other names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import pytest

from compat_tests.support.whole_forms import migrate
from estimator_bridge.migrate import Rewritten, adopt
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.keras_form.straight import straightening

PROGRAM = """\
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as est
{top}

def make(model_fn, params):
  {body}
  return est.tpu.TPUEstimator(model_fn, embedding_config_spec=make_spec())
{end}
"""


def program(body: str, top: str = "", end: str = "") -> str:
    return PROGRAM.format(body=body, top=top, end=end)


BOUND = {
    "module": ("E = tf.tpu.experimental", "", "E.AdamParameters(1)"),
    "bound later": ("", "E = tf.tpu.experimental", "E.AdamParameters(1)"),
    "only under if": ("if tf:\n  E = tf.tpu.experimental", "", "E.AdamParameters(1)"),
    "bound twice": ("E = tf.tpu.experimental", "E = tf.tpu.experimental", "E.AdamParameters(1)"),
    "alias of an alias": ("T = tf.tpu\nE = T.experimental", "", "E.AdamParameters(1)"),
    "two targets": ("D = E = tf.tpu.experimental", "", "E.AdamParameters(1)"),
    "annotated": ("E: object = tf.tpu.experimental", "", "E.AdamParameters(1)"),
    "a tuple": ("C, E = tf.feature_column, tf.tpu.experimental", "", "E.AdamParameters(1)"),
    "class attribute": ("class C:\n  E = tf.tpu.experimental", "", "C.E.AdamParameters(1)"),
    "attribute of self": (
        "class C:\n  def __init__(self):\n    self.e = tf.tpu.experimental\n\nc = C()",
        "",
        "c.e.AdamParameters(1)",
    ),
    "a default": ("", "def g(e=tf.tpu.experimental):\n  x = e.AdamParameters(1)", "g()"),
    "an argument": ("", "def g(e):\n  x = e.AdamParameters(1)", "g(tf.tpu.experimental)"),
    "returned": ("def g():\n  return tf.tpu.experimental", "", "g().AdamParameters(1)"),
    "both branches": (
        "if tf:\n  E = tf.tpu.experimental\nelse:\n  E = tf.compat.v1.tpu.experimental",
        "",
        "E.AdamParameters(1)",
    ),
    "one of try": (
        "try:\n  E = tf.tpu.experimental\nexcept AttributeError:\n  E = None",
        "",
        "E.AdamParameters(1)",
    ),
}


@pytest.mark.parametrize("how", BOUND)
def test_a_module_under_another_name_is_followed(how: str) -> None:
    """Both forms import the members that are used; the alias stays for other members."""
    top, end, use = BOUND[how]
    source = program(f"x = {use}", top, end)

    new = migrate(source).source
    assert "  x = AdamParameters(1)\n" in new
    assert "from estimator_bridge.legacy.parameters import AdamParameters\n" in new
    assert "  x = parameters.AdamParameters(1)\n" in adopt(source).source


@pytest.mark.parametrize("how", BOUND)
def test_the_keras_form_reads_full_names(how: str) -> None:
    """Aliases become full names before the rules of the Keras form read a program."""
    top, end, use = BOUND[how]
    text = straightening.straight(program(f"x = {use}", top, end), "the program").text

    assert "  x = tf.tpu.experimental.AdamParameters(1)\n" in text.replace("tf.compat.v1.", "tf.")
    assert "E = " not in text.replace("E = None", "")


@pytest.mark.parametrize(
    "top, use",
    [
        ("", "est.classifier_parse_example_spec([], 'label')"),
        ("E = est.classifier_parse_example_spec", "E([], 'label')"),
        ("def g(f):\n  return f([], 'label')", "g(est.classifier_parse_example_spec)"),
    ],
)
def test_a_function_without_counterpart_is_not_taken_for_a_module(top: str, use: str) -> None:
    """Modules of stock disappear under all their names; what calls a function is left out."""
    new = ast.parse(migrate(program(f"x = {use}", top)).source)

    called = [each.func for each in ast.walk(new) if isinstance(each, ast.Call)]
    assert not [each for each in called if isinstance(each, ast.Constant)]
    assert "x" not in {each.id for each in ast.walk(new) if isinstance(each, ast.Name)}


def test_a_partial_call_is_followed() -> None:
    """A call of a `functools.partial` keeps the arguments that the partial binds."""
    top = "import functools\nP = functools.partial(tf.tpu.experimental.AdamParameters, beta1=1)"
    source = program("x = P(2)", top)

    assert "P = functools.partial(AdamParameters, beta1=1)\n" in migrate(source).source
    text = straightening.straight(source, "the program").text
    assert "  x = tf.tpu.experimental.AdamParameters(2, beta1=1)\n" in text


@pytest.mark.parametrize(
    "top, body",
    [
        ("E = tf.tpu.experimental", "x = (lambda E: E.AdamParameters(1))(params)"),
        ("E = tf.tpu.experimental", "E = params; x = E.AdamParameters(1)"),
    ],
)
def test_a_name_that_stands_for_something_else_stays(top: str, body: str) -> None:
    use = body.partition("x = ")[2]

    assert use in migrate(program(body, top)).source
    assert use in adopt(program(body, top)).source


@pytest.mark.parametrize(
    "top, body, new",
    [
        (
            "T = est.tpu",
            "x = T.RunConfig(master='a', session_config=1)",
            "x = RunConfig(master='a')",
        ),
        ("C = est.tpu.RunConfig", "x = C(master='a', session_config=1)", "x = C(master='a')"),
        ("K = est.ModeKeys", "x = K.TRAIN", "x = K.TRAIN"),
        ("", "x = tf.estimator.ModeKeys.EVAL", "x = ModeKeys.EVAL"),
        ("", "x: est.tpu.RunConfig = None", "x: RunConfig = None"),
        ("", "x = isinstance(params, est.tpu.RunConfig)", "x = isinstance(params, RunConfig)"),
        (
            "",
            "x = isinstance(params, (est.Estimator, int))",
            "x = isinstance(params, (Trainer, int))",
        ),
        ("", "config = params.replace(session_config=1, a=2)", "config = params.replace(a=2)"),
    ],
)
def test_arguments_are_left_out_through_aliases(top: str, body: str, new: str) -> None:
    """A class keeps only the arguments that can be carried over, whatever alias calls it."""
    assert f"  {new}\n" in migrate(program(body, top)).source


@pytest.mark.parametrize(
    "body, rule",
    [
        ("x = {1: est.tpu.RunConfig}[1](session_config=1)", "called-elsewhere"),
        ("x = (est.tpu.RunConfig if params else dict)(session_config=1)", "called-elsewhere"),
        ("x = getattr(tf.tpu.experimental, 'AdamParameters')(1)", "called-elsewhere"),
        ("params.module = tf.tpu.experimental", "called-elsewhere"),
        ("E = tf.tpu.experimental; E = E if params else 1", "called-elsewhere"),
        ("x = est.tpu.TPUEstimator(**params)", "arguments-unpacked"),
        ("x = params.config.tpu_config", "config-tpu-config"),
        ("x = tf.train.Scaffold(init_op=1)", "scaffold"),
    ],
)
def test_what_cannot_be_followed_is_refused(body: str, rule: str) -> None:
    """Code that would fail in the new program is refused under the expected rule."""
    with pytest.raises(Refused) as refused:
        migrate(program(body))
    assert rule in {each.rule for each in refused.value.blockers}


@pytest.mark.parametrize(
    "body, gone",
    [
        ("rate = 3\n  hidden = est.Hidden(rate)", "rate"),
        ("def hidden():\n    return 1\n  other = est.Hidden(hidden)", "hidden"),
        ("if params:\n    hidden = est.Hidden()", "if params"),
    ],
)
def test_dead_code_goes(body: str, gone: str) -> None:
    """Code that only dropped code uses is dropped too, and no empty `if` remains."""
    new = migrate(program(body)).source
    lines = [line for line in new.splitlines() if not line.lstrip().startswith("#")]

    assert not [line for line in lines if gone in line or line.strip() == "pass"]


def test_comments_stay_with_their_arguments() -> None:
    body = """x = est.tpu.RunConfig(
      # The model.
      model_dir='m',  # Here.
      # The session.
      session_config=1,  # One.
      # The rest.
      save_summary_steps=2)"""
    new = migrate(program(body)).source

    assert (
        "  # estimator-bridge: RunConfig(session_config) is left out: the new program has no "
        "counterpart.\n  # The session.\n  # One.\n  # session_config=1\n  x = RunConfig(\n"
        "      # The model.\n      model_dir='m',  # Here.\n      # The rest.\n"
        "      save_summary_steps=2)\n"
    ) in new


def test_lines_stay_as_long_as_they_were() -> None:
    """A dropped argument takes no line break with it and joins no lines."""
    body = """x = est.tpu.RunConfig(
      model_dir='m', session_config=1,
      master='a', protocol=2, tf_random_seed=1,
      evaluation_master=1, save_summary_steps=2, device_fn=3)"""
    new = migrate(program(body)).source

    assert (
        "  x = RunConfig(\n      model_dir='m',\n      master='a', tf_random_seed=1,\n"
        "      save_summary_steps=2)\n"
    ) in new


ANNOTATED = """\
import dataclasses
from typing import Dict, Literal, Optional

import tensorflow as tf
from tensorflow.compat.v1 import estimator as tf_estimator

E = tf.estimator


@dataclasses.dataclass
class Job:
  estimator: "tf.compat.v1.estimator.tpu.TPUEstimator"
  spec: Optional["tf_estimator.EstimatorSpec"] = None
  configs: "Dict[str, tf_estimator.tpu.TPUConfig]" = None
  tpu: tf_estimator.tpu.TPUConfig = None
  word: Literal["tf.estimator.Estimator"] = "tf.estimator.Estimator"


def make(base: tf.estimator.Estimator, same: 'E.Estimator', own: "Job", none: "no name"):
  return tf_estimator.tpu.TPUEstimator(model_fn, embedding_config_spec=spec)
"""


@pytest.mark.parametrize(
    "rewrite, annotations",
    [
        (
            adopt,
            [
                "'tf_estimator.tpu.TPUEstimator'",
                "Optional['tf_estimator.EstimatorSpec']",
                "'Dict[str, tf_estimator.tpu.TPUConfig]'",
                "tf_estimator.tpu.TPUConfig",
                "Literal['tf.estimator.Estimator']",
                *("tf_estimator.Estimator", "'tf_estimator.Estimator'", "'Job'", "'no name'"),
            ],
        ),
        (
            migrate,
            [
                *("'Trainer'", "Optional['ModelSpec']", "'Dict[str, object]'", "object"),
                "Literal['tf.estimator.Estimator']",
                *("Trainer", "'Trainer'", "'Job'", "'no name'"),
            ],
        ),
    ],
)
def test_annotations_follow(
    rewrite: Callable[[str], Rewritten], annotations: Sequence[str]
) -> None:
    """Annotations get the new names, as code or as strings; other strings stay.

    An annotation without a counterpart becomes `object`; its function or field stays.
    """
    tree = ast.parse(rewrite(ANNOTATED).source)
    nodes = [
        (each.lineno, each.col_offset, each.annotation)
        for each in ast.walk(tree)
        if isinstance(each, ast.AnnAssign | ast.arg) and each.annotation is not None
    ]
    assert [ast.unparse(each) for *_, each in sorted(nodes, key=lambda one: one[:2])] == annotations
