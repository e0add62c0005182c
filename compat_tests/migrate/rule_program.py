"""The program that contains the examples of migrate's rules, and what it becomes."""

from __future__ import annotations

import re
import textwrap

from compat_tests.migrate import keras_rule_program
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.forms import LISTED
from estimator_bridge.migrate.rewrite_report import Rewritten, left_to_do
from estimator_bridge.migrate.selection import ALL, Selection
from estimator_bridge.migrate.syntax.modules import ALONE

_PROGRAM = """\
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator

with tf.name_scope('example'):
  # first

{}
  # last
  done()

estimator = tf_estimator.tpu.TPUEstimator(model_fn, embedding_config_spec=make_spec())
train_op = optimizer.minimize(loss)
"""


def program(example: str, form: str = "bridge") -> str:
    if form == "keras":
        return keras_rule_program.program(example)
    return _PROGRAM.format(textwrap.indent(example, "  "))


def rewritten(form: str, example: str, selected: Selection = ALL) -> Rewritten:
    """Rewrites the program with an example; raises `Refused`."""
    return LISTED[form].rewrite(program(example, form), "job.py", selected, ALONE)


def part(source: str) -> str:
    """Returns the part of a program at the place of the example."""
    inside = source.partition("  # first\n")[2].lstrip("\n").partition("  # last\n")[0]
    return textwrap.dedent(inside).rstrip("\n")


def after(form: str, example: str) -> str:
    """Returns the new code of an example, or what is left to a person, without line numbers."""
    try:
        new = rewritten(form, example)
        left = [each.partition(": ")[2] for each in left_to_do({"job.py": new})]
        if form == "bridge" or not left:
            return part(new.source)
        parts = [re.fullmatch(r"([\w-]+): line \d+: (.*)", each) for each in left]
        return "\n".join(f"[{each[1]}] {each[2]}" for each in parts if each is not None)
    except Refused as refused:
        blockers = (str(each).partition(": ")[2] for each in refused.blockers)
        return "\n".join(blockers)
