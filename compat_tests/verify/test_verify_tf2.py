"""`verify` runs TensorFlow 2 programs: the tf2 form of `migrate`, and classes like it."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import numpy as np
import pytest

import estimator_bridge
from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import trained_by_hand
from compat_tests.run.test_run import PROGRAM
from compat_tests.support import recordings
from compat_tests.verify.test_verify_command import run_verify, verify
from estimator_bridge import declared, errors, migrate
from estimator_bridge.recording.files import Recording
from estimator_bridge.verification import result as text
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.record.recorder import Recorder
from estimator_bridge.verification.record.tf2_recorder import Tf2Recorder
from estimator_bridge.verification.sides import SIDES, A, RecordingRequest
from tf2_engine.declared import used

LEGACY = (
    PROGRAM.replace(
        "logits = tf.layers.dense(tf.keras.layers.DenseFeatures([column])(features), 1)",
        """\
net = tf.keras.layers.DenseFeatures([column])(features)
    with tf.variable_scope("tower"):
        net = tf.keras.layers.Dense(4, activation="tanh")(net)
        net = tf.layers.dropout(net, 0.5, training=mode == tf_estimator.ModeKeys.TRAIN)
    logits = tf.layers.dense(net, 1) * tf.Variable(2.0, name="scale")
    if mode == tf_estimator.ModeKeys.PREDICT:
        return tf_estimator.tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})""",
    )
    .replace(
        "    optimizer = tf.train",
        """\
    if mode == tf_estimator.ModeKeys.EVAL:
        metrics = lambda error: {"error": tf.metrics.mean(error)}
        return tf_estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metrics, [tf.abs(labels - logits)]))
    optimizer = tf.train""",
    )
    # Stock ignores it, and what is migrated does not.
    .replace("clipping_limit=0.5,", "")
    .replace("train_batch_size=4,", "train_batch_size=4, eval_batch_size=4, predict_batch_size=4,")
)
BEGIN = LEGACY.index("job.train(")
# Two inputs of a training, and everything that follows one.
TRAIN = (
    LEGACY[:BEGIN].replace('use_tpu=sys.argv[2] == "tpu"', "use_tpu=False")
    + """
def numbered(number):
    def fed(params):
        taken = tf.data.Dataset.range(number, number + 8).map(lambda id: tf.stack([id] * 4) % 10)
        def features(ids):
            where = tf.constant([[0, 0], [1, 0], [2, 0], [3, 0]], tf.int64)
            return {"word": tf.SparseTensor(where, ids, [4, 1])}, tf.ones([4, 1])
        return taken.map(features)
    return fed


def receiver():
    serialized = tf.placeholder(tf.string, [None], "examples")
    word = tf.io.parse_example(serialized, {"word": tf.io.VarLenFeature(tf.int64)})["word"]
    return tf_estimator.export.ServingInputReceiver({"word": word}, {"examples": serialized})


job.train(numbered(0), steps=2)
job.train(numbered(5), max_steps=4)
job.evaluate(numbered(0), steps=2)
list(job.predict(numbered(3)))
job.export_saved_model(sys.argv[1] + "/exported", receiver)
"""
)


def migrated(program: str = TRAIN) -> str:
    return migrate.migrate(program, "train.py").source


def compared(
    tmp_path: pathlib.Path, after: str, *options: str, a: str | None = None, program: str = TRAIN
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "train_tf2.py"
    path.write_text(after)
    side = a or ("stock-tpu" if HAS_STOCK else "bridge-tpu")
    named = ("--a", side, "--steps", "4", "--against", str(path))
    return verify(tmp_path, program, *named, *options)


@pytest.mark.full
def test_a_program_is_what_it_is_migrated_to(tmp_path: pathlib.Path) -> None:
    """The comparison covers everything from the device configuration to the answers of exports.

    The sides are equal to the last bit: they run the same engine and model ops, and the same
    dropout.
    """
    report = tmp_path / "report.json"
    ran = compared(tmp_path, migrated(), "--json", str(report), a="bridge-tpu")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "B: a program of TensorFlow 2, TensorFlow 2." in ran.stdout
    assert "EQUAL to the bit" in ran.stdout
    result = json.loads(report.read_text())
    assert result["sides"]["b"]["engine"] == "tf2"
    assert result["steps"] == [0, 1, 2, 3, 4]
    assert result["config"] == []
    assert result["only"] == {"a": [], "b": []}
    names = {series["name"] for series in result["series"]}
    assert {"tower/dense/kernel", "tower/dense/kernel/Adam", "scale", "word"} <= names
    roles = {series["role"] for series in result["series"]}
    assert roles == {"activation", "loss", "gradient", "table", "slot accumulators", "dense"}
    kinds = {outcome["kind"] for outcome in result["outcomes"]}
    assert kinds == {"evaluation-0", "prediction-0", "export-0", "served-0"}


@pytest.mark.full
@pytest.mark.stock
def test_stock_is_what_its_program_is_migrated_to(tmp_path: pathlib.Path) -> None:
    """Stock's estimator on the software TPU trains and evaluates like the migrated program."""
    # Stock can neither predict with sparse ids on a TPU nor export what was trained there so.
    program = TRAIN[: TRAIN.index("list(job.predict(")]
    ran = compared(tmp_path, migrated(program), "--no-measure", program=program)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "A: stock's TPUEstimator" in ran.stdout
    assert "in 4 steps and 3 evaluation results" in ran.stdout


FAULTS = {
    "gradients of tables": (
        """\
from tf2_engine.training import differentiation
right = differentiation.Differentiated
differentiation.Differentiated = lambda loss, share, *args: right(loss, 2 * share, *args)
""",
        ["first in table tbl_word, gradient word, step 1", "gradient scale"],
    ),
    "gradients as tables take them": (
        """\
from tf2_engine.training.differentiation import Differentiations
right = Differentiations.gradients
def wrong(self, *args):
    return {key: 2 * gradient for key, gradient in right(self, *args).items()}
Differentiations.gradients = wrong
""",
        ["first in table tbl_word, slot accumulators", "step 1", "gradient scale"],
    ),
    "gradients of the model": (
        """\
right = tf.train.Optimizer.minimize
tf.train.Optimizer.minimize = lambda self, loss, *args, **kwargs: right(
    self, 1.5 * loss, *args, **kwargs)
""",
        ["first in gradient", "step 1"],
    ),
    "metrics": (
        """\
from tf2_engine.training.host_functions import Metrics
right = Metrics.update
Metrics.update = lambda self, values: right(self, [value[:1] * 2 for value in values])
""",
        ["evaluation-0 error: side B reports", "evaluation: evaluation-0 error"],
    ),
    "predictions": (
        """\
from tf2_engine.training import trainer
right = trainer.Trainer._results
def wrong(self, mode, *args):
    for batch, metrics in right(self, mode, *args):
        if mode == "infer":
            batch = {key: value * 1.01 for key, value in batch.items()}
        yield batch, metrics
trainer.Trainer._results = wrong
""",
        ["prediction-0 logits differs by"],
    ),
    "exports": (
        """\
from tf2_engine.training import saved_models
right = saved_models._load
def wrong(model, session, checkpoint, variables):
    right(model, session, checkpoint, variables)
    for variable in variables.values():
        session.run(variable.assign(variable * 2))
saved_models._load = wrong
""",
        ["export-0", "served-0 serving_default: logits differs by"],
    ),
}
"""By what is wrong, code that makes it so, and what verify says of it."""


@pytest.mark.full
@pytest.mark.parametrize("wrong, messages", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_migration_is_found(
    wrong: str, messages: list[str], tmp_path: pathlib.Path
) -> None:
    """A mistake in a migrated program makes it unequal, and the first differing array is named."""
    before, train, after = migrated().partition("\njob.train(")
    assert train
    ran = compared(tmp_path, f"{before}\n{wrong}{train}{after}", a="bridge-tpu")

    assert ran.returncode == 1, ran.stdout + ran.stderr
    for part in messages:
        assert part in ran.stdout


@pytest.mark.full
def test_a_legacy_program_cannot_begin_with_objects(tmp_path: pathlib.Path) -> None:
    """A TF2 program cannot be side A of a legacy program, and the message says which can."""
    (tmp_path / "legacy.py").write_text(TRAIN)
    options = ("--a", "bridge", "--b", "bridge-tpu", "--steps", "1")
    ran = verify(tmp_path, migrated(), *options, "--against", str(tmp_path / "legacy.py"))

    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "Make the legacy program side A" in ran.stderr


@pytest.mark.full
def test_a_training_by_hand_is_a_side(tmp_path: pathlib.Path) -> None:
    """A class with an eager training loop, as in the decorator's documentation, is recorded."""
    report = tmp_path / "report.json"
    sides = ("--a", "bridge-native", "--b", "bridge-ops", "--steps", "4", "--json", str(report))
    ran = run_verify(*sides, trained_by_hand.__file__, str(tmp_path / "job"))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "tf2_engine, host driver, native ops" in ran.stdout
    assert "tf2_engine, host driver, TensorFlow's ops" in ran.stdout
    result = json.loads(report.read_text())
    assert result["steps"] == [0, 1, 2, 3, 4]
    names = {(series["group"], series["name"]) for series in result["series"]}
    assert names == {
        *(("activations", "user"), ("gradients", "user"), ("loss", "loss")),
        *(("variables", "embedding/users"), ("variables", "embedding/users/accumulators")),
        *(("variables", "global_step"), ("variables", "weights")),
    }
    kinds = {outcome["kind"] for outcome in result["outcomes"]}
    assert kinds == {"evaluation-0", "prediction-0"}


def test_recorders_get_each_class_that_is_declared() -> None:
    """A recorder is called once per class while its context is open; the class stays as it is."""
    classes: list[type] = []
    before = dict(vars(Trains))
    with declared.recorded(classes.append):
        assert estimator_bridge.verifiable(Trains) is Trains
    assert estimator_bridge.verifiable(Trains) is Trains
    assert classes == [Trains]
    assert dict(vars(Trains)) == before


def test_a_class_of_a_library_is_recorded_when_it_is_used() -> None:
    """A class of a library is recorded from its first instance on, and restored afterwards."""

    class Trains:
        def __new__(cls) -> Trains:
            used(cls)
            return super().__new__(cls)

        def train(self) -> int:
            return 1

    class More(Trains):
        pass

    Trains()
    classes: list[type] = []

    def record(kind: Any) -> None:
        classes.append(kind)
        kind.train, kind.more = (lambda self: 2), True

    with declared.recorded(record):
        assert [each().train() for each in (Trains, Trains, More)] == [2, 2, 2]
    assert classes == [Trains]
    assert Trains().train() == 1
    assert not hasattr(Trains, "more")


def recorder(tmp_path: pathlib.Path, side: str = "bridge") -> Tf2Recorder:
    """Returns a recorder of TensorFlow 2 programs."""
    request = RecordingRequest(A, str(tmp_path / "recording"))
    return Tf2Recorder(Recorder(request, SIDES[side], steps=1))


class Trains:
    """The methods that a declared class must have."""

    def __init__(
        self, model_fn: Any = None, model_dir: Any = None, embedding_config_spec: Any = None
    ) -> None:
        self.model_dir = model_dir

    def train(self, input_fn: Any, callbacks: Any = ()) -> None:
        """Trains."""

    def restore(self, checkpoint: str) -> None:
        """Restores."""

    def evaluate(self, input_fn: Any) -> dict[str, Any]:
        return {}

    def predict(self, input_fn: Any) -> Any:
        return iter(())


@pytest.mark.parametrize(
    "side, arguments, message",
    [
        ("bridge-cpu", {}, "which side 'bridge-cpu' cannot run. Use side 'bridge'"),
        ("stock", {}, "which side 'stock' cannot run"),
        ("bridge-software-tpu", {}, "side 'bridge-software-tpu' runs only TPUEstimators"),
        ("bridge", {"model_fn": print}, "is created without `embedding_config_spec` or `model_fn`"),
    ],
)
def test_wrong_sides_and_instances_are_refused(
    side: str, arguments: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    kind = type("Mine", (Trains,), {})
    with recorder(tmp_path, side).attached():
        estimator_bridge.verifiable(kind)
        with pytest.raises(errors.InvalidInput, match=message):
            kind(**arguments)


def test_a_class_that_lacks_a_method_is_refused(tmp_path: pathlib.Path) -> None:
    kind = type("Mine", (), {"train": Trains.train, "evaluate": Trains.evaluate})
    with (
        recorder(tmp_path).attached(),
        pytest.raises(errors.InvalidInput, match="but has no restore, predict"),
    ):
        estimator_bridge.verifiable(kind)


def test_each_input_of_a_training_is_recorded_separately(tmp_path: pathlib.Path) -> None:
    """Batches that one call of `train` prefetches are not part of the next call's input."""
    side = recordings.RecordingWriter(tmp_path / "a")
    for step, ids in ((0, (1, 2, 3)), (2, (4, 5))):
        of = side.input(step)
        for number in ids:
            side.batch({"id": np.array(number)}, of)

    recording = Recording(tmp_path / "a")
    assert [len(recording.batches(of)) for of in (0, 1, 2)] == [3, 2, 0]
    trained = [recording.batch(number) for number in range(5)]
    assert [batch and int(batch["id"]) for batch in trained] == [1, 2, 4, 5, None]


def perturbed(tmp_path: pathlib.Path, moved: float) -> Any:
    """Compares two equal sides; a perturbed start moves their loss of 0.5 by `moved`."""
    rows = recordings.rows()
    side = {"steps": (recordings.step(rows, activation=rows[:2]),)}
    sides = [recordings.record(tmp_path / name, **side) for name in ("a", "b")]
    moved_steps = (recordings.step(rows, activation=rows[:2], loss=0.5 + moved),)
    return comparison.compare(*sides, recordings.record(tmp_path / "p", steps=moved_steps))


def test_sides_that_amplify_rounding_too_much_are_not_equal(tmp_path: pathlib.Path) -> None:
    """If rounding alone moves the loss by percents, faults could hide: the sides are unequal."""
    result = perturbed(tmp_path / "much", 0.02)
    assert not result.equal
    assert "the loss loss moves by 4% by step 1" in text.verdict(result)
    assert perturbed(tmp_path / "little", 0.004).equal
