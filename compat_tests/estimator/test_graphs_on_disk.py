"""The graphs that training writes: `.meta`, `graph.pbtxt`, events and SavedModels."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

from compat_tests.programs import clicks, clicks_served, houses, jobs
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from tf2_engine.backends import HostDriver
from tf2_engine.native import cache


def supervised() -> Any:
    """Returns a receiver of serialised examples and labels."""
    received = clicks_served.receiver()
    labels = tf.placeholder(tf.float32, [None, 1], "labels")
    tensors = {**received.receiver_tensors, "labels": labels}
    return houses.Receiver(received.features, tensors, None, labels)


def trained(directory: pathlib.Path, **options: Any) -> Any:
    """Returns a job that has trained, evaluated, and exported a graph for each possible mode.

    After a training with use_tpu=True the checkpoint lacks slots that a graph to train on needs.
    """
    job = jobs.make(str(directory), tpu_options={"save_graph": True}, **options)
    job.train(clicks.input_fn, steps=2)
    job.evaluate(clicks.input_fn, steps=1)
    receivers = {"eval": supervised, "infer": clicks_served.receiver}
    if not options.get("use_tpu", True):
        receivers["train"] = supervised
    job.experimental_export_all_saved_models(str(directory / "export"), receivers)
    return job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A job whose tables are on the native ops."""
    return trained(tmp_path_factory.mktemp("graphs"), engine=HostDriver(native=True))


def saved_graphs(made: Any) -> Iterator[tuple[str, Any]]:
    """Yields the tag and the graph of each mode of a SavedModel."""
    (path,) = pathlib.Path(made.model_dir, "export").iterdir()
    for tag in ("train", "eval", "serve"):
        # It raises where there is no such mode.
        with (
            contextlib.suppress(RuntimeError),
            tf.Graph().as_default() as graph,
            tf.Session() as session,
        ):
            tf.saved_model.loader.load(session, [tag], str(path))
            yield tag, graph.as_graph_def()


def op_types(graph: Any) -> set[str]:
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    return {node.op for node in nodes}


OPENS = """
import glob
import pathlib
import sys

import tensorflow as tf
from google.protobuf import text_format

checkpoint = sys.argv[1]
{opening}
folder = pathlib.Path(checkpoint).parent
graphs = [tf.compat.v1.GraphDef()]
text_format.Parse((folder / "graph.pbtxt").read_text(), graphs[0])
for path in glob.glob(f"{{folder}}/**/events*", recursive=True):
    for event in tf.compat.v1.train.summary_iterator(path):
        if event.graph_def:
            graphs.append(tf.compat.v1.GraphDef.FromString(event.graph_def))
for graph_def in graphs:
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
print(len(graphs), step)
"""


def block_of_docs() -> str:
    """Returns the Python of the page on checkpoints that opens a graph."""
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(block for block in found if "import_meta_graph" in block)


def test_the_graphs_of_a_training_open_after_an_import(job: Any) -> None:
    """A new process opens and restores them once it has imported the ops, and not without."""
    opening = block_of_docs()
    done = fresh.code(OPENS.format(opening=opening), job.latest_checkpoint(), check=True)
    number, step = done.stdout.split()
    assert int(number) >= 2
    assert int(step) == 2

    without = opening.replace("import tf2_engine.native.ops", "import tf2_engine, estimator_bridge")
    done = fresh.code(OPENS.format(opening=without), job.latest_checkpoint())
    assert "Op type not registered 'Tf2Engine" in done.stderr


@pytest.mark.full
def test_a_program_that_run_starts_opens_them(job: Any, tmp_path: pathlib.Path) -> None:
    """`run` registers the ops by itself; where they are not built it says what to import."""
    script = tmp_path / "opens.py"
    opening = block_of_docs().replace("import tf2_engine.native.ops", "")
    script.write_text(OPENS.format(opening=opening))
    command = ["estimator_bridge", "run", script, job.latest_checkpoint()]
    done = fresh.module(*command, check=True)
    assert done.stdout.split()[1] == "2"

    environment = {**os.environ, cache.VARIABLE: str(tmp_path / "empty")}
    done = fresh.module(*command, env=environment)
    assert done.returncode == 1
    assert "Add `import tf2_engine.native.ops` before it loads the graph" in done.stderr


def test_ops_that_cannot_be_made_are_named(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, cache.VARIABLE: str(tmp_path), "CXX": "no-compiler"}
    done = fresh.code("import tf2_engine.native.ops", env=environment)
    assert done.returncode == 1
    assert "The native ops cannot be registered: there is no C++ compiler" in done.stderr
    assert "ESTIMATOR_BRIDGE_NATIVE=0" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"use_tpu": False},
        {"engine": HostDriver(native=False)},
        {"engine": "software_tpu"},
    ],
    ids=["no TPU", "TensorFlow's ops", "software TPU"],
)
def test_other_trainings_leave_ops_of_tensorflow_alone(
    options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    made = trained(tmp_path, **options)
    graph = tf.GraphDef()
    text_format.Parse((tmp_path / "graph.pbtxt").read_text(), graph)
    meta = tf.MetaGraphDef.FromString(pathlib.Path(f"{made.latest_checkpoint()}.meta").read_bytes())
    exported = dict(saved_graphs(made))
    assert ("train" in exported) == (not options.get("use_tpu", True))
    for each in (graph, meta.graph_def, *exported.values()):
        assert not [op for op in op_types(each) if op.startswith("Tf2Engine")]


def test_saved_models_have_ops_of_tensorflow_alone(job: Any) -> None:
    graphs = dict(saved_graphs(job))
    assert set(graphs) == {"eval", "serve"}
    for tag, graph in graphs.items():
        assert not [op for op in op_types(graph) if op.startswith("Tf2Engine")], tag
