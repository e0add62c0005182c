"""`migrate --target sparsecore`: refusals, report, and the numbers of the new program."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from compat_tests.migrate import rule_program
from compat_tests.migrate.test_tf2_form_runs import EXAMPLES, check_on_cores, run, write_example
from compat_tests.support.paths import ROOT
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.migrate import forms
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.rewrite_report import Rewritten
from estimator_bridge.migrate.selection import ALL
from estimator_bridge.migrate.syntax.modules import ALONE
from estimator_bridge.migrate.tf2 import sparse_core_rules
from estimator_bridge.settings.catalogue import ROWS

STEPS = 4

WITHOUT_RULES = {
    # The source shows nothing about these that the spec object does not; see `to_tf2`.
    "optimizer_of_engine": "no legacy class: engines alone have it",
    "combiner_none": "the spec's translation writes 'sum', as on the first generation",
    "weight_decay_zero": "it counts as unset, in the new program too",
    "weight_decay_multiplied": "without a decay, which is refused, it has no effect",
    "weighted_feature": "Trainer makes ids and weights sparse",
    "dense_ids": "Trainer makes them sparse, without 0",
}
"""Catalogue rows that SparseCores refuse or ignore but that cannot occur in migrated programs."""


def test_every_setting_that_sparse_cores_lack_has_a_rule() -> None:
    """Every row of the catalogue has a rule in `migrate` or is listed as an exception."""
    lacking = {
        name for name, row in ROWS.items() if row.sparse_core.outcome in ("raises", "ignored")
    }
    ids = {f"sparsecore-{name.replace('_', '-')}": name for name in lacking - set(WITHOUT_RULES)}

    assert set(WITHOUT_RULES) <= lacking
    assert set(ids) <= set(sparse_core_rules.RULES)


@pytest.mark.parametrize(
    "setting",
    ["lazy_adam=True", "clip_gradient_min=None", "weight_decay_factor=0.0", "clip_weight_max=None"],
)
def test_what_is_not_set_is_not_said(setting: str) -> None:
    """A default that is written out causes no report line and no refusal."""
    example = f"a = tf.tpu.experimental.AdamParameters(0.1, {setting})"
    lines = rule_program.rewritten("tf2-sparsecore", example).lines

    assert {each.rule for each in lines if each.rule.startswith("sparsecore")} == {
        "sparsecore-arithmetic"
    }


def test_a_form_that_has_no_such_target() -> None:
    """The error names the forms that have this target."""
    words = r"--form tf2 or --form keras, not for --form bridge.*--arithmetic"
    with pytest.raises(errors.InvalidInput, match=words):
        forms.of_name("bridge", "sparsecore")


def in_keras_form(source: str) -> Rewritten:
    form = forms.of_name("keras", "sparsecore")
    return form.rewrite(source, "train.py", ALL, ALONE)


def test_the_keras_form_has_the_arithmetic_and_the_size() -> None:
    """The program differs from the one for other hardware only in these two arguments."""
    source = (ROOT / "examples" / "two_tower" / "train.py").read_text()
    result = in_keras_form(source)
    words = ("batch_size=FLAGS.batch_size", "arithmetic='sparsecore'")

    assert [result.source.count(each) for each in words] == [1, 1]
    plain = forms.of_name("keras").rewrite(source, "train.py", ALL, ALONE)
    assert not any(each in plain.source for each in words)
    added = [each for each in result.lines if each not in plain.lines]
    assert [each.rule for each in added] == ["sparsecore-sequence", "sparsecore-arithmetic"]
    assert "Trainer" not in "".join(map(str, added))


@pytest.mark.parametrize("form", ["tf2", "keras"])
def test_an_example_whose_optimizer_would_be_lost_is_refused(form: str) -> None:
    """The example with config dicts uses momentum, for which SparseCores have no update rule."""
    source = (ROOT / "examples" / "dict_config" / "train.py").read_text()
    with pytest.raises(Refused) as raised:
        forms.of_name(form, "sparsecore").rewrite(source, "train.py", ALL, ALONE)
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "MomentumParameters(" in text)
    refused = [(each.line, each.rule) for each in raised.value.blockers]
    assert refused == [(line, "sparsecore-optimizer-lost")]


def test_canned_estimators_are_refused_in_the_keras_form() -> None:
    canned = (ROOT / "examples" / "census" / "train.py").read_text()
    with pytest.raises(errors.Untranslatable, match=r"no tables, .*Leave --target out"):
        in_keras_form(canned)


def test_the_command_writes_beside_the_program(tmp_path: pathlib.Path) -> None:
    """`train_sparsecore.py` has the argument; a refused program is not written."""
    program = tmp_path / "train.py"
    program.write_text(rule_program.program("a = 1"))
    assert main.main(["migrate", "--form", "tf2", "--target", "sparsecore", str(program)]) == 0
    new = (tmp_path / "train_sparsecore.py").read_text()
    assert "Trainer(model_fn, embedding_config_spec=make_spec(), arithmetic='sparsecore')" in new

    refused = tmp_path / "refused.py"
    lost = "a = tf.tpu.experimental.MomentumParameters(0.1, 0.9)"
    refused.write_text(rule_program.program(lost))
    assert main.main(["migrate", "--form", "tf2", "--target", "sparsecore", str(refused)]) != 0
    assert not (tmp_path / "refused_sparsecore.py").exists()


@pytest.mark.full
@pytest.mark.parametrize("name", ["movielens", "two_tower"])
def test_an_example_is_written_if_it_is_the_legacy_one(name: str, tmp_path: pathlib.Path) -> None:
    """With the arithmetic of SparseCores, verify finds both programs equal to the last bit.

    It compares activations, gradients, tables and slots in each step, then predictions and exports.
    """
    write_example(tmp_path, name)
    migrated = ("migrate", "--form", "tf2", "--target", "sparsecore", "--verify", "train.py")
    example = EXAMPLES[name]
    arguments = (*example.arguments, "--model_dir=model", *example.until(STEPS))
    ran = run(tmp_path, "-m", "estimator_bridge", *migrated, *arguments)

    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert "EQUAL to the bit" in ran.stdout
    assert ran.stdout.count("arithmetic of SparseCores") >= 2
    assert "arithmetic='sparsecore'" in (tmp_path / "train_sparsecore.py").read_text()


ON_CORES = {
    # A TPU needs batches of equal size.
    "movielens": (2, "--train_batch_size=60"),
    # With two cores, each core has its own loss and averages, which is another model.
    "two_tower": (1,),
    "wide_and_deep": (2,),
    "sequence": (2,),
    "warm_start": (1,),
}
"""The cores of each example, and its arguments; the refused example is tested above."""


@pytest.mark.full
@pytest.mark.skipif(tf.__version__ < "2.21", reason="TensorFlow 2.15 has no ops for SparseCores")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "dict_config"])
def test_an_example_trains_the_same_on_the_software_sparse_cores(
    name: str, tmp_path: pathlib.Path
) -> None:
    """From one checkpoint, the host and the software SparseCores compute the same.

    Cores sum the gradients of a row in another order than a host, with a rounding of 2^-24 each.
    """
    cores, *arguments = ON_CORES[name]
    how = (f"--cores={cores}", "--sparse_cores=2")
    check_on_cores(tmp_path, name, map(str, arguments), *how, target="sparsecore")
