"""Turns training hooks into Keras callbacks or options of `fit`, or refuses them."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import config_arguments
from estimator_bridge.migrate.keras_form.call_sites.sites import Site, followed
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    arguments,
    bound_in,
    call_text,
    is_none,
    nodes_in,
    renamed,
)

_LOSS = re.compile(r"(\w+/)*weighted_loss/(value|Sum)(:0)?")
"""Names of the loss tensor in the graphs of canned estimators."""
_STEP = re.compile(r"global_step(:0)?")

_STOPS = "min_steps run_every_secs run_every_steps"


@dataclasses.dataclass(frozen=True)
class HookRow:
    """A kind of hook, and the callback that replaces it.

    Attributes:
        names: the hook's arguments, in order.
        carried: the arguments to keep: "name" under this name, "old=new" under a new name, and
            "old=" without a name.
        callback: a class of `tf2_engine.keras`; "" stands for `tf.keras.callbacks.TensorBoard`.
        default: an argument to write if the program omits it.
        note: the line of the report that says what changes for the user.
    """

    names: str
    carried: str
    callback: str = ""
    dropped: str = ""
    required: str = ""
    options: str = ""
    default: str = ""
    note: str = ""
    evaluates: bool = False


def _stop(callback: str, limit: str) -> HookRow:
    return HookRow(
        f"estimator metric_name {limit} eval_dir {_STOPS}",
        f"metric_name= {limit}= min_steps run_every_secs=every_secs run_every_steps=every_steps",
        callback,
        dropped="estimator",
        required=f"metric_name {limit}",
        evaluates=True,
    )


_SUMMARIES = "TensorBoard gets the loss, and no summaries of the graph"
_PROFILE = "only one step is profiled for TensorBoard, not one in every N steps"

HOOKS: Mapping[str, HookRow] = {
    "StopAtStepHook": HookRow("num_steps last_step", "num_steps last_step", "StopAtStep"),
    "make_stop_at_checkpoint_step_hook": HookRow(
        "estimator last_step wait_after_file_check_secs",
        "last_step",
        "StopAtStep",
        dropped="estimator wait_after_file_check_secs",
        required="last_step",
    ),
    "make_early_stopping_hook": HookRow(
        "estimator should_stop_fn run_every_secs run_every_steps",
        "should_stop_fn= run_every_secs=every_secs run_every_steps=every_steps",
        "StopWhen",
        dropped="estimator",
        required="should_stop_fn",
    ),
    "stop_if_no_decrease_hook": _stop("StopIfNoDecrease", "max_steps_without_decrease"),
    "stop_if_no_increase_hook": _stop("StopIfNoIncrease", "max_steps_without_increase"),
    "stop_if_higher_hook": _stop("StopIfHigher", "threshold"),
    "stop_if_lower_hook": _stop("StopIfLower", "threshold"),
    "NanTensorHook": HookRow(
        "loss_tensor fail_on_nan_loss",
        "fail_on_nan_loss=fail",
        "StopIfNaN",
        dropped="loss_tensor",
        required="loss_tensor",
    ),
    "LoggingTensorHook": HookRow(
        "tensors every_n_iter every_n_secs at_end formatter",
        "every_n_iter=every_steps every_n_secs=every_secs at_end",
        "StepLog",
        dropped="tensors",
        required="tensors",
    ),
    "StepCounterHook": HookRow(
        "every_n_steps every_n_secs output_dir summary_writer",
        "output_dir= every_n_steps=update_freq",
        required="output_dir",
        options="write_graph=False write_steps_per_second=True",
        default="update_freq=100",
    ),
    "SummarySaverHook": HookRow(
        "save_steps save_secs output_dir summary_writer scaffold summary_op",
        "output_dir= save_steps=update_freq",
        dropped="scaffold summary_op",
        required="output_dir save_steps",
        options="write_graph=False",
        note=_SUMMARIES,
    ),
    "ProfilerHook": HookRow(
        "save_steps save_secs output_dir show_dataflow show_memory",
        "output_dir= save_steps=profile_batch",
        dropped="show_dataflow show_memory",
        required="output_dir save_steps",
        options="write_graph=False",
        note=_PROFILE,
    ),
}

OF_ESTIMATORS = [name for name, row in HOOKS.items() if "estimator" in row.names.split()]
"""Functions that take an estimator and make a hook for it."""

_SAVER = "CheckpointSaverHook"
_SAVER_NAMES = "checkpoint_dir save_secs save_steps saver checkpoint_basename scaffold listeners"

_WAY_OUT = (
    "Write a tf.keras.callbacks.Callback, whose on_train_batch_end is called after each step, or "
    "migrate to the tf2 form, which runs hooks"
)


class TrainingHooks:
    """Turns the hooks of a call that trains into callbacks and options of `fit`.

    Attributes:
        save_every: the number of steps between checkpoints. If it is None, no hook sets it, and the
            number in the RunConfig is used.
    """

    def __init__(
        self, source: Source, site: Site, node: ast.expr | None, evaluates: bool = False
    ) -> None:
        self._source, self._site, self._evaluates = source, site, evaluates
        self._column = 0
        self.save_every: ast.expr | None = None
        self._callbacks = [
            text for each in elements(source, node) if (text := self._read(each)) is not None
        ]

    def callbacks(self, column: int) -> list[str]:
        self._column = column
        return [text() for text in self._callbacks]

    def options(self) -> Iterator[str]:
        if self.save_every is not None:
            yield f"save_every={self._source.code(self.save_every)}"

    def _read(self, node: ast.expr) -> Text | None:
        source = self._source
        made_by = _made_by(source, node)
        name = source.called(made_by).rpartition(".")[2]
        if isinstance(made_by, ast.Call) and name == _SAVER:
            self._read_saver(node)
            return None
        if not isinstance(made_by, ast.Call) or name not in HOOKS:
            source.done.update(ast.walk(made_by))
            source.problem(
                *(
                    node,
                    "keras-hook",
                    "it runs before and after each session.run, and `fit` has no session",
                ),
                _WAY_OUT,
            )
            return None
        self._check(made_by, name)
        row = HOOKS[name]
        source.done.update(ast.walk(made_by.func))
        source.replace(made_by, lambda: self._text(made_by, row, made_by is node))
        if row.note:
            source.notes.append((made_by.lineno, f"{name}: {row.note}"))
        return lambda: source.code(node)

    def _text(self, call: ast.Call, row: HookRow, is_in_list: bool) -> str:
        source = self._source
        by_name, _ = arguments(call, row.names.split())
        parts = source.keywords(by_name, row.carried)
        is_given = any(part.startswith(f"{row.default.partition('=')[0]}=") for part in parts)
        parts += [row.default] if row.default and not is_given else []
        parts += row.options.split()
        name = row.callback or "tf.keras.callbacks.TensorBoard"
        column = self._column if is_in_list else source.statement_of(call).col_offset
        return call_text(name, parts, column)

    def _check(self, call: ast.Call, name: str) -> None:
        source, row = self._source, HOOKS[name]
        by_name = rules.known_arguments(source, call, row.names, row.required)
        known = {*renamed(row.carried), *row.dropped.split()}
        for key, value in by_name.items():
            if key not in known and not is_none(value):
                why = f"its argument {key} is not supported"
                source.problem(value, "keras-hook", f"{name}: {why}", f"Do without {key}")
            elif key in row.dropped.split():
                source.done.update(ast.walk(value))
        if row.callback:
            source.need(rules.KERAS, row.callback)
        for key in ("loss_tensor", "tensors"):
            if key in by_name:
                self._check_tensors(name, by_name[key])
        if row.evaluates:
            self._check_evaluates(call)

    def _check_tensors(self, name: str, node: ast.expr) -> None:
        value = _made_by(self._source, node)
        values = getattr(value, "values", None) or getattr(value, "elts", None) or [value]
        names = [each.value if isinstance(each, ast.Constant) else None for each in values]
        is_canned = self._site.canned is not None
        known = [_LOSS] * is_canned + [_STEP] * (name == "LoggingTensorHook")
        if all(any(each.fullmatch(str(tensor)) for each in known) for tensor in names):
            return
        self._source.problem(
            *(node, "keras-hook", f"{name}: a step of Keras does not return this tensor"),
            "Leave the hook out, or return the value in the dict of train_step and read it in a "
            "tf.keras.callbacks.Callback",
        )

    def _check_evaluates(self, call: ast.Call) -> None:
        if not self._evaluates:
            self._source.problem(
                *(call, "keras-hook", "this training evaluates no checkpoints"),
                "Use train_and_evaluate with max_steps, a RunConfig(save_checkpoints_steps=...), a "
                "model_dir, and an EvalSpec without a name",
            )

    def _read_saver(self, node: ast.expr) -> None:
        source = self._source
        hook = followed(source, node)
        assert isinstance(hook, ast.Call)
        source.done.update(ast.walk(hook.func))
        by_name = rules.known_arguments(source, hook, _SAVER_NAMES, "checkpoint_dir save_steps")
        folder = config_arguments.model_dir(self._site)
        is_other = (
            folder is None
            or ast.dump(by_name["checkpoint_dir"]) != ast.dump(folder)
            or bool(source.changed_names(folder, node))
        )
        if is_other or {*by_name} != {"checkpoint_dir", "save_steps"}:
            source.problem(
                *(
                    node,
                    "keras-hook",
                    "a Keras model saves checkpoints in one folder, every N steps",
                ),
                "Give CheckpointSaverHook the model_dir of the estimator and only save_steps, or "
                "write RunConfig(save_checkpoints_steps=...) in its place",
            )
        self.save_every = by_name["save_steps"]


def elements(source: Source, node: ast.expr | None) -> list[ast.expr]:
    if isinstance(node, ast.Name) and len(source.uses(node.id, source.function_of(node))) == 1:
        node = followed(source, node)
    if node is None or is_none(node):
        return []
    if isinstance(node, (ast.List, ast.Tuple)):
        return list(node.elts)
    source.problem(
        *(node, "keras-hook", "the source does not show which hooks these are"),
        "Write the list of hooks into the call",
    )
    return []


_LOGS = ("LoggingTensorHook", "StepCounterHook", "SummarySaverHook", "ProfilerHook")


def only_log(source: Source, node: ast.expr) -> bool:
    """Whether an expression creates only hooks that log. No rule is applied to their code."""
    made_by = _made_by(source, node)
    parts = (made_by.body, made_by.orelse) if isinstance(made_by, ast.IfExp) else (made_by,)
    lists = [each for each in parts if not is_none(each)]
    if not lists or not all(isinstance(each, (ast.List, ast.Tuple)) for each in lists):
        return False
    hooks = [_made_by(source, each) for of in lists for each in of.elts]  # type: ignore[attr-defined]
    if not all(source.called(each).rpartition(".")[2] in _LOGS for each in hooks):
        return False
    for each in (made_by, *hooks):
        source.done.update(ast.walk(each))
    return True


def refuse_all(source: Source, node: ast.expr | None, what: str) -> None:
    if node is not None and only_log(source, node):
        source.notes.append((node.lineno, f"{what} are left out: they only log"))
        config_arguments.leave_out(source, node)
        return
    for each in elements(source, node):
        source.done.update(ast.walk(each))
        source.problem(
            *(each, "keras-hook", f"{what} have no counterpart"),
            "Leave it out: fit takes tf.keras.callbacks, and code that runs after the call can be "
            "written after it",
        )


def _made_by(source: Source, node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Name):
        for each in nodes_in(source.function_of(node), ast.Assign):
            if bound_in(each) == [node.id]:
                return each.value
    return source.value_of(node) or node
