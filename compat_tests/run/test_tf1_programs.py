"""Programs of TensorFlow 1 run unedited, with and without a TPU, and on 2.15.1 as on stock.

The programs in `compat_tests/programs/tf1` are small, and make the same calls as public programs.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import fresh
from compat_tests.support.legacy_checkpoints import read
from compat_tests.support.legacy_specs import needs_stock

PROGRAMS = pathlib.Path(__file__).parents[1] / "programs" / "tf1"

SCRIPTS = {
    "bert": "run_classifier.py",
    "resnet": "resnet_main.py",
    "mnist": "mnist.py",
    "ncf": "ncf_main.py",
    "xlnet": "train.py",
    "minigo": "train.py",
    "unet": "unet_main.py",
    "bigbird": "run_classifier.py",
    "slim": "train.py",
    "retinanet": "retinanet_main.py",
}
MODEL_DIR = {"bert": "output_dir", "minigo": "work_dir"}
"""The flag for the model_dir, where it is another one."""

STEPS = {
    **{"bert": 3, "resnet": 4, "mnist": 4, "ncf": 4, "xlnet": 3},
    **{"minigo": 6, "unet": 2, "bigbird": 2, "slim": 2, "retinanet": 2},
}

NOT_ON_STOCK = {"resnet", "slim", "retinanet", "bigbird"}
"""Two have a CrossShardOptimizer, retinanet exports for a TPU; bigbird is left open."""


def run(
    name: str,
    folder: pathlib.Path,
    *arguments: str,
    options: tuple[str, ...] = (),
    model_dir: str = "job",
) -> str:
    """Runs a copy of a program, which must succeed; returns what it wrote to stderr."""
    copied = folder / name
    shutil.copytree(PROGRAMS / name, copied, dirs_exist_ok=True)
    flag = MODEL_DIR.get(name, "model_dir")
    program = (copied / SCRIPTS[name], f"--{flag}={folder / model_dir}", *arguments)
    ran = fresh.module("estimator_bridge", "run", *options, *program)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def test_a_tf1_program_is_found_and_run(tmp_path: pathlib.Path) -> None:
    """Without an option a TF1 program is recognised; stderr says by which name, and where."""
    output = run("ncf", tmp_path, options=("--cores=2",))

    assert re.search(r"the program names tf\.\S+ \(ncf_main\.py, line \d+\), which", output)
    assert "which TensorFlow 2 lacks, so it runs as with --tf1" in output
    assert "use_tpu=True: 2 TPU core(s) emulated" in output
    assert "holds the tables" not in output
    assert read(str(tmp_path / "job"))["global_step"] == STEPS["ncf"]


@pytest.mark.full
def test_a_program_with_files_of_its_own_evaluates(tmp_path: pathlib.Path) -> None:
    """A program with files of its own has TensorFlow 1's variable names, so checkpoints fit."""
    output = run("bert", tmp_path, "--use_tpu", "--tpu_name=not-there")

    assert "the program names tf.flags (run_classifier.py, line" in output
    lines = (tmp_path / "job" / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in lines] == [
        *("eval_accuracy", "eval_loss", "global_step", "loss"),
    ]
    names = read(str(tmp_path / "job")).keys()
    assert {"bert/embeddings/LayerNorm/beta", "bert/encoder/layer_0/LayerNorm_1/gamma"} <= names


@pytest.mark.full
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("use_tpu", [True, False])
def test_a_program_trains(name: str, use_tpu: bool, tmp_path: pathlib.Path) -> None:
    """A program makes its steps; variables move and are finite, with CrossShardOptimizer too."""
    options = ("--cores=2",) if name == "ncf" else ()
    run(name, tmp_path, f"--use_tpu={use_tpu}", options=options)
    trained = read(str(tmp_path / "job"))

    assert trained["global_step"] == STEPS[name]
    assert all(np.isfinite(value).all() for value in trained.values())


@pytest.mark.full
@needs_stock
@pytest.mark.parametrize("name", sorted({*SCRIPTS} - NOT_ON_STOCK))
def test_a_program_trains_as_on_stock(name: str, tmp_path: pathlib.Path) -> None:
    """With use_tpu=False every variable is stock's, bit for bit: both run the same ops in order.

    The programs that are left out have what stock cannot run on a CPU, or are not compared.
    """
    run(name, tmp_path, "--use_tpu=False")
    run(name, tmp_path, "--use_tpu=False", options=("--stock", "--tf1"), model_dir="stock")
    ours, stocks = read(str(tmp_path / "job")), read(str(tmp_path / "stock"))

    assert ours.keys() == stocks.keys()
    for each, value in stocks.items():
        np.testing.assert_array_equal(ours[each], value, err_msg=each)


@pytest.mark.full
def test_two_cores_train_as_one(tmp_path: pathlib.Path) -> None:
    """The sum over cores of gradients of half batches is the gradient of the whole.

    CrossShardOptimizer divides each core's loss by the cores. Sums of float32 in another order
    differ by a few units of the last place a step, which Adam's division of numbers near zero makes
    larger: rtol 1e-3 of weights of 0.1 to 1 after three steps.
    """
    run("mnist", tmp_path, "--use_tpu=True", model_dir="two")
    run("mnist", tmp_path, "--use_tpu=False", model_dir="one")
    two, one = read(str(tmp_path / "two")), read(str(tmp_path / "one"))

    assert two.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.full
def test_a_warm_start_takes_shared_variables(tmp_path: pathlib.Path) -> None:
    """A scaffold_fn with init_from_checkpoint starts where the checkpoint is, also on cores."""
    run("bert", tmp_path, "--use_tpu=False", model_dir="first")
    start = read(str(tmp_path / "first"))
    checkpoint = tf.train.latest_checkpoint(str(tmp_path / "first"))
    run("bert", tmp_path, f"--init_checkpoint={checkpoint}", "--use_tpu=True", model_dir="second")
    first = tf.train.load_checkpoint(str(tmp_path / "second" / "model.ckpt-0"))

    for name in ("bert/embeddings/word_embeddings", "bert/pooler/dense/kernel"):
        np.testing.assert_array_equal(first.get_tensor(name), start[name])


@pytest.mark.full
def test_without_tf1_the_failure_says_what_to_do(tmp_path: pathlib.Path) -> None:
    """`--no-tf1` leaves TensorFlow as it is; the error then comes with the option that helps."""
    script = tmp_path / "job.py"
    script.write_text("import tensorflow as tf\nprint(getattr(tf, 'cont' + 'rib').tpu)\n")
    command = [sys.executable, "-m", "estimator_bridge", "run"]
    ran = subprocess.run([*command, str(script)], capture_output=True, text=True)
    helped = subprocess.run([*command, "--tf1", str(script)], capture_output=True, text=True)

    assert ran.returncode == 1
    assert "because of tf.contrib, which only TensorFlow 1 has. Run it with --tf1." in ran.stderr
    assert helped.returncode == 0, helped.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", ["bigbird", "retinanet"])
def test_a_program_exports_what_it_trained(name: str, tmp_path: pathlib.Path) -> None:
    """The export is of the last checkpoint, and computes: a batch gives numbers that are finite."""
    run(name, tmp_path, "--use_tpu=True")
    (export,) = (tmp_path / "job" / "export").iterdir()
    signature = tf.saved_model.load(str(export)).signatures["serving_default"]
    picture = tf.io.encode_png(tf.zeros([4, 6, 3], tf.uint8)).numpy()
    (argument,) = signature.structured_input_signature[1]
    # TensorFlow 2.15 takes nothing but tensors.
    batch = tf.constant([b"abc", b"d"] if name == "bigbird" else [picture] * 2)
    outputs = signature(**{argument: batch})

    assert all(np.isfinite(value).all() for value in outputs.values())
    assert all(value.shape[0] == 2 for value in outputs.values())


@pytest.mark.full
def test_names_of_contrib_compute_what_tensorflow_1_computed(tmp_path: pathlib.Path) -> None:
    """Values and variables have the numbers and names that TensorFlow 1.15.5 gave.

    A value passes through at most three steps of a cell, each of which sums four products and
    applies a function: about 16 roundings of 2^-24, of terms that are at most as large as the
    largest number of the array, or 1, as the inputs are. The record has seven digits, which adds
    1e-7. This covers the gradients of peepholes, too: their terms cancel, so that single elements
    are off by 2e-5 of themselves, but by 2e-7 of the largest.
    """
    recorded = json.loads((PROGRAMS.parents[1] / "goldens" / "contrib_names.json").read_text())
    script = PROGRAMS / "contrib" / "numbers_of_names.py"
    command = [sys.executable, "-m", "estimator_bridge", "run", str(script)]
    ran = subprocess.run([*command, str(tmp_path / "now")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    now = json.loads((tmp_path / "now").read_text())

    assert now.keys() == recorded.keys()
    for name, wanted in recorded.items():
        if isinstance(wanted[0], str):
            assert now[name] == wanted, name
            continue
        assert now[name][0] == wanted[0], name
        allowed = (16 * 2.0**-24 + 1e-7) * max(1.0, np.max(np.abs(wanted[1]), initial=0.0))
        np.testing.assert_allclose(now[name][1], wanted[1], rtol=0, atol=allowed, err_msg=name)
