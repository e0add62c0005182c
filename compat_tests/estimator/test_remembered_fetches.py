"""A session that fetches the same again is faster, and otherwise behaves as in TensorFlow."""

from __future__ import annotations

import collections
import gc
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses
from compat_tests.support import base_jobs
from estimator_bridge.runtime.input.feeding import NewSessionHook
from tf2_engine import tf_compat


class Pair(NamedTuple):
    first: Any
    second: Any


class Calls:
    """A context that counts the calls of TensorFlow's own `Session._run`."""

    def __enter__(self) -> Calls:
        self.number = 0
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "_run" and code.co_filename.endswith("session.py"):
            self.number += 1


@pytest.fixture
def session() -> Iterator[tf.Session]:
    """A session that remembers, in a graph of its own."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf_compat.remember_fetches(session)
        yield session


FETCHES: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda t: t.one,
    "an op": lambda t: t.one.op,
    "a variable": lambda t: t.variable,
    "a list": lambda t: [t.one, t.variable, t.text],
    "a tuple": lambda t: (t.one, t.one.op),
    "one tensor twice": lambda t: [t.one, {"again": t.one}],
    "a nest": lambda t: {"a": [t.one, (t.variable,)], t.text: {"b": t.text}, 3: []},
    "an ordered dict": lambda t: collections.OrderedDict([("b", t.one), ("a", [t.variable])]),
    "an empty list beside a tensor": lambda t: [[], t.one],
    "nothing": lambda t: [],
    "nothing in a nest": lambda t: {"a": [], "b": ({},)},
}
OF_TENSORFLOW: dict[str, Callable[[Any], Any]] = {
    "a name": lambda t: t.one.name,
    "a sparse tensor": lambda t: [t.sparse, t.one],
    "a named tuple": lambda t: Pair(t.one, [t.text]),
    "a handle": lambda t: tf.get_session_handle(t.one),
}


class Tensors(NamedTuple):
    """One tensor or variable of each kind, to fetch."""

    one: Any
    variable: Any
    text: Any
    sparse: Any


def make_tensors(session: tf.Session) -> Tensors:
    variable = tf.get_variable("v", [2], initializer=tf.ones_initializer(), use_resource=True)
    session.run(variable.initializer)
    sparse = tf.SparseTensor([[0, 1]], [5], [1, 2])
    return Tensors(tf.constant([1.0, 2.0]) + 1, variable, tf.constant("words"), sparse)


def equal(left: Any, right: Any) -> bool:
    """Returns whether two results are the same, their types included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and equal(list(left.values()), list(right.values()))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(np.array_equal(left, right))


@pytest.mark.parametrize("kind", FETCHES)
def test_results_are_those_of_tensorflow_and_worked_out_once(kind: str, session: Any) -> None:
    """Structures, types and values are the same; only the first call is TensorFlow's."""
    fetches = FETCHES[kind](make_tensors(session))
    expected = tf.Session.run(session, fetches)
    with Calls() as calls:
        results = [session.run(fetches) for _ in range(3)]
    assert calls.number == 1
    for result in results:
        assert equal(result, expected)


@pytest.mark.parametrize("kind", OF_TENSORFLOW)
def test_what_is_not_known_is_left_to_tensorflow(kind: str, session: Any) -> None:
    """Other kinds of fetches have TensorFlow's results in each call."""
    fetches = OF_TENSORFLOW[kind](make_tensors(session))
    for _ in range(3):
        expected, result = tf.Session.run(session, fetches), session.run(fetches)
        if kind == "a handle":  # An object of Python, a new one in each call.
            expected, result = expected.eval(), result.eval()
        assert equal(result, expected)


def test_structures_of_the_same_tensors_are_told_apart(session: Any) -> None:
    """A call gives its own structure, not that of an earlier one; two readers share an array."""
    t = make_tensors(session)
    for fetches in ([t.one, t.text], {"a": t.one, "b": t.text}, (t.one, [t.text]), [t.text, t.one]):
        for _ in range(2):
            assert equal(session.run(fetches), tf.Session.run(session, fetches))
    for _ in range(2):
        first, second = session.run([t.one, t.one])
        assert first is second


def test_state_moves_and_feeds_are_taken(session: Any) -> None:
    """Each call runs the ops again, also those that are added later; one with feeds uses them."""
    variable = make_tensors(session).variable
    fed = tf.placeholder_with_default(1.0, [])
    moved = tf.assign_add(variable, [1.0, 2.0]) * fed
    assert [session.run(moved).tolist() for _ in range(3)] == [[2, 3], [3, 5], [4, 7]]
    assert session.run(moved, {fed: 2.0}).tolist() == [10, 18]
    assert session.run(moved).tolist() == [6, 11]
    for number in range(3):
        added = variable + number
        for _ in range(2):
            assert session.run([variable, added])[1].tolist() == [6 + number, 11 + number]


@pytest.mark.parametrize("good_calls", [0, 1])
def test_an_error_names_its_op_each_time(good_calls: int, session: Any) -> None:
    """Its class, op and words are TensorFlow's, also after a call without an error."""
    value = tf.get_variable("x", [], initializer=tf.ones_initializer(), use_resource=True)
    session.run(value.initializer)
    checked = tf.debugging.check_numerics(tf.log(value), "of a log", name="checked")
    for _ in range(good_calls):
        assert session.run(checked) == 0
    session.run(value.assign(-1.0))
    errors, numbers = [], []
    for run in (session.run, session.run, session.run, lambda t: tf.Session.run(session, t)):
        with Calls() as calls, pytest.raises(tf.errors.InvalidArgumentError, match="log") as caught:
            run(checked)
        errors.append(caught.value)
        numbers.append(calls.number)
    assert {error.op for error in errors} == {checked.op}
    assert len({error.message for error in errors}) == 1
    assert "of a log" in errors[0].message
    assert not good_calls or numbers[:3] == [0, 0, 0]


def test_fetches_that_cannot_be_fetched_fail_as_ever(session: Any) -> None:
    make_tensors(session)
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be interpreted as a Tensor"):
            session.run([foreign])
        with pytest.raises(TypeError, match="None"):
            session.run([None])


def test_a_closed_session_says_so(session: Any) -> None:
    """Also for fetches that it knows."""
    one = tf.constant(1.0)
    assert [session.run(one), session.run(one)] == [1.0, 1.0]
    session.close()
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(one)


def test_options_are_taken_and_metadata_is_of_its_call(session: Any) -> None:
    """A traced call has a trace; metadata of one that is not traced is empty."""
    one = make_tensors(session).one
    metadata = tf.RunMetadata()
    for _ in range(2):
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        session.run(one, options=options, run_metadata=metadata)
        assert metadata.step_stats.dev_stats
        session.run(one, options=tf.RunOptions(), run_metadata=metadata)
        assert metadata == tf.RunMetadata()


def test_a_cost_model_is_handed_back_in_each_call() -> None:
    """A session that builds one is left as it is."""
    config = tf.ConfigProto(graph_options=tf.GraphOptions(build_cost_model=1))
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tf_compat.remember_fetches(session)
        one = tf.constant(1.0) + 1
        for _ in range(3):
            metadata = tf.RunMetadata()
            session.run(one, run_metadata=metadata)
            assert metadata.cost_graph.node


def test_a_method_that_is_replaced_sees_each_call(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profilers put their own in the place of the class's."""
    one = make_tensors(session).one
    session.run(one)
    seen, plain = [], tf.Session.run

    def run(self: Any, fetches: Any, *arguments: Any, **named: Any) -> Any:
        seen.append(fetches)
        return plain(self, fetches, *arguments, **named)

    monkeypatch.setattr(tf.Session.__mro__[1], "run", run)
    assert session.run(one).tolist() == [2, 3]
    assert seen == [one]
    monkeypatch.undo()
    with Calls() as calls:
        session.run(one)
    assert (len(seen), calls.number) == (1, 0)


def test_a_session_is_freed_with_its_last_reference() -> None:
    """A session holds the memory of its variables; nothing that is remembered keeps it.

    The keys of what a session with hooks fetches are the hooks, and hooks keep their session.
    """

    class Hook:
        session: Any = None

    gc.collect()
    gc.disable()
    try:
        with tf.Graph().as_default():
            hook, session = Hook(), tf.Session()
            hook.session = session
            tf_compat.remember_fetches(session)
            one = tf.constant(1.0)
            for _ in range(3):
                session.run({hook: one})
            ends = weakref.ref(session)
            del hook, session
            assert ends() is None
    finally:
        gc.enable()


def test_fetches_that_never_come_again_are_forgotten(session: Any) -> None:
    """Many different fetches leave at most a hundred plans in memory."""
    tensors = [tf.constant(float(number)) for number in range(120)]
    memory = session.run.__self__._plans
    for number, tensor in enumerate(tensors):
        assert session.run([tensor]) == [number]
        assert len(memory) <= 100
    assert [session.run([tensors[0]]), session.run([tensors[0]])] == [[0.0], [0.0]]


def test_estimators_work_out_their_fetches_once(tmp_path: Any) -> None:
    """Ten more steps of training, evaluation or prediction cause at most three calls of `_run`.

    The rest are the calls at the beginning, and those of hooks that are due now and then.
    """
    job = base_jobs.make(tmp_path, config={"save_summary_steps": None})
    more = {}
    for name, act in {
        "train": lambda steps: job.train(houses.data, steps=steps),
        "evaluate": lambda steps: job.evaluate(houses.data, steps=steps),
        "predict": lambda steps: [*itertools.islice(job.predict(houses.data), 4 * steps)],
    }.items():
        numbers = []
        for steps in (5, 15):
            with Calls() as calls:
                act(steps)
            numbers.append(calls.number)
        more[name] = numbers[1] - numbers[0]
    # The second training restores: its beginning has one call more or less.
    assert {name: abs(number) <= 3 for name, number in more.items()} == dict.fromkeys(more, True)


def test_the_hook_prepares_each_session() -> None:
    """One that is created anew, too."""
    with tf.Graph().as_default():
        one, hook = tf.constant(1.0), NewSessionHook(tf_compat.remember_fetches)
        for _ in range(2):
            with tf.train.MonitoredSession(hooks=[hook]) as session:
                session.run(one)
                with Calls() as calls:
                    session.run(one)
                assert calls.number == 0
