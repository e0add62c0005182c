"""Large variables are stored in slices, which each server writes and reads itself."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from compat_tests.cluster.tables_on_servers import LARGE, estimator, input_fn, start_cluster
from estimator_bridge import errors
from estimator_bridge.runtime.cluster import tasks
from estimator_bridge.runtime.saving import job_saver
from estimator_bridge.runtime.saving.job_saver import add_job_saver, cut, rows_at_once
from estimator_bridge.runtime.step.model_step import new_graph
from tf2_engine import sharding, tf_compat
from tf2_engine.placement import LAYOUTS, TableSize, place_tables

v1 = tf.compat.v1
SLICE_BYTES = 40_000
SERVERS = 3


@given(
    st.integers(1, 5000),
    st.sampled_from([4, 20, 64, 1000]),
    st.integers(1, 5),
    st.sampled_from(LAYOUTS[::2]),
)
def test_slices_are_small_and_have_every_row_once(
    rows: int, row_bytes: int, servers: int, layout: Any
) -> None:
    """Slices of div and octaves cover the table, and never pass for the parts of hosts."""
    placement = place_tables([TableSize("t", rows, 1)], servers, layout=layout, whole_up_to=0)
    ranges = [(each.first, each.rows) for each in placement.tables["t"].ranges]
    count = rows_at_once(ranges, row_bytes, 5000)
    if count is None:
        assert max(rows for _, rows in ranges) * row_bytes <= 5000
        return
    pieces = list(cut(ranges, count))
    np.testing.assert_array_equal(
        np.concatenate([np.arange(first, first + n) for first, n in pieces]), np.arange(rows)
    )
    assert max(n for _, n in pieces) * row_bytes <= 5000
    counts = tuple(n for _, n in pieces)
    assert counts != sharding.shard_rows(rows, len(counts)) or max(counts) == 1


def test_slices_of_equal_parts_are_cut_otherwise() -> None:
    """Rows that so many bytes divide would be taken for those of hosts."""
    assert rows_at_once([(0, 4096)], 64, 64 * 1024) == 1024 - 16
    assert rows_at_once([(0, 4100)], 64, 64 * 1024) == 1024
    assert rows_at_once([(0, 1024)], 64, 64 * 1024) is None


def of_all_outputs(metadata: Any) -> Iterator[tuple[str, str, int]]:
    """Yields the task, the op and the number of elements of each tensor that a run has made."""
    for device in metadata.step_stats.dev_stats:
        task = device.device.partition("/device:")[0].replace("/replica:0", "")
        for node in device.node_stats:
            for output in node.output:
                sizes = [each.size for each in output.tensor_description.shape.dim]
                yield task, node.node_name, int(np.prod(sizes)) if sizes else 1


@pytest.mark.full
@pytest.mark.parametrize("layout", ["div", "octaves"])
def test_no_table_passes_through_one_place(
    layout: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server saves and restores its rows, and reads no more than a slice at a time.

    Measured by a trace of the ops that ran: on which task, and of what size their results are.
    """
    start_cluster(monkeypatch, SERVERS)
    monkeypatch.setattr(job_saver, "SLICE_BYTES", SLICE_BYTES)
    job = estimator(tmp_path, layout=layout)._job("train", input_fn, None, None)
    traces = {}
    with new_graph(None, job.device_fn()):
        add_job_saver(job.build(), job)
        (saver,) = v1.get_collection(v1.GraphKeys.SAVERS)
        saver.build()
        names = saver.saver_def
        table = [v for v in v1.global_variables() if "videos_embedding" in v.op.name]
        cluster = tasks.cluster_of(job.config)
        assert cluster is not None
        with v1.Session(cluster.target()) as session:
            session.run(v1.global_variables_initializer())
            before = session.run(table)
            feed = {names.filename_tensor_name: str(tmp_path / "model.ckpt")}
            for fetch in (names.save_tensor_name, names.restore_op_name):
                traces[fetch] = v1.RunMetadata()
                options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
                session.run(fetch, feed, options=options, run_metadata=traces[fetch])
            after = session.run(table)
    assert len(table) == 2 * SERVERS  # with a slot each
    np.testing.assert_equal(after, before)

    whole, slice_size = LARGE[0] * LARGE[1], SLICE_BYTES // 4
    for fetch, trace in traces.items():
        outputs = list(of_all_outputs(trace))
        assert {task for task, _, _ in outputs} >= {f"/job:ps/task:{n}" for n in range(SERVERS)}
        elsewhere = [each for each in outputs if "/job:ps" not in each[0]]
        assert max((size for *_, size in elsewhere), default=0) < 1000, fetch
        # Octaves have some more rows on one server than on another.
        assert max(size for *_, size in outputs) <= 1.01 * whole / SERVERS, fetch
    read = [each for each in of_all_outputs(traces[names.restore_op_name]) if "Restore" in each[1]]
    assert sum(size for *_, size in read) >= 2 * whole
    assert max(size for *_, size in read) <= slice_size
    # What a Saver stores is a view of the variable, and no copy of it.
    stored = [each for each in of_all_outputs(traces[names.save_tensor_name]) if "Slice" in each[1]]
    assert sum(size for *_, size in stored) >= 2 * whole
    assert max(size for *_, size in stored) <= slice_size


def test_a_checkpoint_in_one_piece_is_read_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large tensor that another Saver stored whole is restored in one go, and then in slices."""
    from estimator_bridge.runtime.saving.job_saver import JobSaver

    monkeypatch.setattr(job_saver, "SLICE_BYTES", 256)
    values = np.arange(400.0, dtype=np.float32).reshape(100, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=values, use_resource=True)
        session.run(v1.global_variables_initializer())
        whole = v1.train.Saver().save(session, str(tmp_path / "whole"))
        saver = JobSaver({"table": (100, 4)}, in_one_piece=True, sharded=True)
        saver.build()
        in_slices = saver.save(session, str(tmp_path / "slices"))
        for path, restores in ((whole, 1), (in_slices, 7)):
            session.run(table.assign(tf.zeros([100, 4])))
            counted = count_restores(session, saver, path, monkeypatch)
            np.testing.assert_array_equal(session.run(table), values)
            assert counted == restores


def count_restores(session: Any, saver: Any, path: str, patch: pytest.MonkeyPatch) -> int:
    """Restores a checkpoint; returns the number of RestoreV2 ops that ran."""
    metadata, run = v1.RunMetadata(), session.run

    def traced(fetches: Any, feed: Any = None) -> Any:
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        return run(fetches, feed, options=options, run_metadata=metadata)

    with patch.context() as context:
        context.setattr(session, "run", traced)
        saver.restore(session, path)
    nodes = [node.node_name for each in metadata.step_stats.dev_stats for node in each.node_stats]
    return sum("RestoreV2" in os.path.basename(name.partition(":")[0]) for name in nodes)


def test_what_takes_parts_for_blocks_of_rows_is_refused(tmp_path: pathlib.Path) -> None:
    """A Saver of TensorFlow, and a warm start, would put the rows of octaves in another order."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("table", [12, 4], use_resource=True)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default():
        parts = []
        for number, ranges in enumerate([[(0, 2), (8, 4)], [(2, 6)]]):
            parts.append(v1.get_variable(f"table/part_{number}", [6, 4], use_resource=True))
            of_part = tf_compat.RowRanges("table", (12, 4), ranges)
            tf_compat.set_row_ranges(parts[-1], of_part)
        assert tf_compat.checkpoint_shape(parts[0]) == (12, 4)
        with pytest.raises(errors.EngineError, match="'table': parameter servers hold its rows"):
            v1.train.Saver()
        with pytest.raises(errors.EngineError, match="'table': parameter servers hold its rows"):
            v1.train.warm_start(path, parts)
