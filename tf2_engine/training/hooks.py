"""Runs hooks of `tf.compat.v1.train` around the steps of a tf.function.

While the step is traced, `begin` and `before_run` of each hook are called, and the tensors that the
hook requests become outputs of the step. Hooks that need a session or a graph raise an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf2_engine import errors, log, tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

v1 = tf.compat.v1

_NEED_A_SESSION = (v1.train.CheckpointSaverHook, v1.train.FinalOpsHook)


class _Session:
    """A session for hooks. It can only read variables and the tensors that hooks requested.

    If a hook asks for a tensor after the last step, as a LoggingTensorHook does, a real session
    would compute the tensor from the next batch. This class returns the value of the last step.
    """

    graph = None

    def __init__(self, step: Variable) -> None:
        self._step = step
        self.step_read: Tensor | None = None
        self.computed: dict[int, Tensor] = {}

    def run(self, fetches: Nest, feed_dict: Object = None) -> Nest:
        values = tf.nest.map_structure(self._value, fetches)
        if feed_dict or any(each is None for each in tf.nest.flatten(values)):
            raise errors.OutOfOrder(
                f"A hook runs {fetches!r} in a session, but TensorFlow 2 has no sessions. Return "
                "the tensors from `before_run`, or write a callback; see docs/training.md."
            )
        return values

    def _value(self, fetch: Object) -> Object:
        source = self._step if fetch is self.step_read else self.computed.get(id(fetch), fetch)
        read = getattr(source, "numpy", None)  # Tensors of a graph have no values.
        return None if read is None else read()


class HookRunner:
    """Runs hooks around the steps of one call to train, evaluate or predict.

    `trace` adds the hooks of the model_fn to those of the call.
    """

    def __init__(self, step: Variable, hooks: Sequence[Object] = ()) -> None:
        self._hooks_of_call = _without_profilers(hooks)
        self._hooks: list[Object] = []
        self._fetched: list[dict[int, int]] = []
        self._ops: list[Op] = []
        self._step = step
        self._context = v1.train.SessionRunContext(v1.train.SessionRunArgs(None), _Session(step))
        self._check(self._hooks_of_call)

    @property
    def stopped(self) -> bool:
        return self._context.stop_requested

    def trace(
        self, of_model: Sequence[Object] | None, step_before: Tensor
    ) -> list[list[Tensor | None]]:
        """Begins the hooks while a step is traced, and returns the tensors that each hook requests.

        Hooks read the step from `step_before`, because the train_op may increment the step's
        variable before the hooks run.
        """
        self._check(of_model or ())
        self._hooks = [*self._hooks_of_call, *_without_profilers(of_model or ())]
        self._fetched, self._ops = [], []
        outputs = []
        with v1.name_scope(None):
            step_read = tf.identity(step_before, name="global_step")
        self._context.session.step_read = step_read
        tf_compat.set_global_step_read(step_read)
        for hook in self._hooks:
            tf_compat.read_logged_variables(hook)
            with self._global_step():
                hook.begin()
                tensors = tf.nest.flatten(_fetches(hook.before_run(self._context)))
            self._fetched.append({id(each): place for place, each in enumerate(tensors)})
            outputs.append([self._computed(each) for each in tensors])
        return outputs

    def with_ops(self, results: Nest) -> Nest:
        if not self._ops:
            return results
        with tf.control_dependencies(self._ops):
            return tf.nest.map_structure(tf.identity, results, expand_composites=True)

    def _computed(self, fetch: Object) -> Tensor | None:
        if isinstance(fetch, str):
            fetch = v1.get_default_graph().as_graph_element(fetch)
        if isinstance(fetch, tf.Operation):
            self._ops.append(fetch)
            return None
        tensor: Tensor | None = None if fetch is None else tf.identity(fetch)
        return tensor

    def start(self) -> None:
        with self._global_step():
            for hook in self._hooks:
                hook.after_create_session(self._context.session, None)

    def before(self) -> list[Nest]:
        with self._global_step():
            return [_fetches(hook.before_run(self._context)) for hook in self._hooks]

    def after(self, asked: list[Nest], values: list[list[Tensor]]) -> None:
        for hook, fetches, places, computed in zip(
            self._hooks, asked, self._fetched, values, strict=True
        ):
            self._context.session.computed.update((key, computed[at]) for key, at in places.items())
            flat = []
            for each in () if fetches is None else tf.nest.flatten(fetches):
                if id(each) not in places:
                    raise errors.OutOfOrder(
                        f"{type(hook).__name__} requests {each!r}, which it did not request before "
                        "the first step. A step of TensorFlow 2 computes only tensors that were "
                        "requested by then. Return the tensor from every `before_run`."
                    )
                flat.append(computed[places[id(each)]])
            arrays = [None if each is None else each.numpy() for each in flat]
            results = None if fetches is None else tf.nest.pack_sequence_as(fetches, arrays)
            with self._global_step():
                hook.after_run(self._context, v1.train.SessionRunValues(results, None, None))

    def end(self) -> None:
        with self._global_step():
            for hook in self._hooks:
                hook.end(self._context.session)

    @contextlib.contextmanager
    def _global_step(self) -> Iterator[None]:
        """Makes `get_global_step` return a traced tensor, because hooks read the name of its op."""
        steps = v1.get_collection_ref(v1.GraphKeys.GLOBAL_STEP)
        read = self._context.session.step_read
        before = list(steps)
        steps[:] = before if read is None else [read]
        try:
            yield
        finally:
            steps[:] = before

    def _check(self, hooks: Sequence[Object]) -> None:
        for hook in hooks:
            if isinstance(hook, _NEED_A_SESSION):
                raise errors.InvalidInput(
                    f"{type(hook).__name__} needs a session, but TensorFlow 2 has no sessions. "
                    "Trainer writes checkpoints as its RunConfig says; leave the hook out."
                )


def _without_profilers(hooks: Sequence[Object]) -> list[Object]:
    kept = [each for each in hooks if not isinstance(each, v1.train.ProfilerHook)]
    if len(kept) < len(hooks):
        log.warning(
            "A ProfilerHook profiles sessions, but TensorFlow 2 has no sessions. Use tf.profiler."
        )
    return kept


def _fetches(asked: Object) -> Nest:
    if asked is None:
        return None
    if asked.feed_dict:
        raise errors.InvalidInput(
            "A hook feeds tensors, but a step of TensorFlow 2 has no feeds. Pass the values to the "
            "model in the dataset, or in variables that a callback assigns."
        )
    return asked.fetches
