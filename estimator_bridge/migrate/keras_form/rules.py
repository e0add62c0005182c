"""Defines the Keras form's rules for names and calls that may occur anywhere in a program.

A name without a rule stays if TensorFlow 2 has the same object under this name. Otherwise it is
refused.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping

from estimator_bridge.migrate.keras_form.optimizer_counterparts import KERAS, OF_TABLES
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    arguments,
    nodes_in,
    renamed,
    short_name,
)
from estimator_bridge.run import public_names
from estimator_bridge.run.public_names import Upgrade

RuleWriter = Callable[[Source, ast.Call], str | None]
"""A function that returns the code that replaces a call, or None if the call stays."""

PREPROCESSING = "preprocessing"
TRAINING = "tf2_engine.training"
EMB = "tf.tpu.experimental.embedding"

_SAME_NUMBERS = (
    *("where", "lookup.StaticHashTable", "name_scope", "device", "map_fn", "hessians", "size"),
    *("zeros_initializer", "ones_initializer", "zeros_like", "ones_like"),
)
"""Functions that TensorFlow's upgrade tables map to `tf.compat.v1`.

They are not replaced, because TensorFlow 2's functions of these names do the same.
"""

_WITH_STATE = re.compile(
    r"(train|tpu|layers|metrics|summary|saved_model(?!\.signature_constants)|estimator"
    r"|feature_column|test|queue|nn\.rnn_cell)\."
    r"|losses\.(get|add)_|(get_|add_to_|update_)?(Graph|Session|[gG]lobal|[lL]ocal|[vV]ariable|assign"
    r"|collection|get_variable|placeholder|initialize|tables_init|model_variables|feature_column)"
    r"|nn\.(static|dynamic|bidirectional|raw)_"
)
"""TensorFlow 1 names that need a graph or a session."""

WITHOUT_IT = "Do without it, or migrate to the tf2 form"

_OF_CONTRIB = ("tf_slim.", "estimator_bridge.run.tf1.", "tf2_engine.tf_compat.")
"""Modules that replace `tf.contrib` in a ported program; they need a graph."""

_ASSIST = "Write what it does with ops or layers of TensorFlow 2, or migrate to the tf2 form"


def refused(source: Source, node: ast.AST, short: str) -> None:
    why = "TensorFlow 2 and Keras have nothing that is known to do the same"
    reason = ("keras-no-counterpart", why, _ASSIST)
    for patterns, of_patterns in _REASONS.items():
        if any(fnmatch.fnmatchcase(short, f"{start}*") for start in patterns.split()):
            reason = of_patterns
    source.problem(node, *reason)


_COLUMNS = "feature_column"
_OF_COLUMNS = ("keras.layers.DenseFeatures", "keras.experimental.SequenceFeatures")
"""Names that create or accept TensorFlow's feature columns."""

_REASONS: Mapping[str, tuple[str, str, str]] = {
    "estimator.": (
        "keras-of-estimator",
        "it belongs to the estimator, which the new program does not have",
        WITHOUT_IT,
    ),
    **dict.fromkeys(
        (_COLUMNS, *_OF_COLUMNS),
        (
            "keras-no-counterpart",
            "it is for feature columns, and the new program has those of tf2_engine",
            "Use a column that has a counterpart, or migrate to the tf2 form",
        ),
    ),
    "summary.": (
        "keras-summary",
        "summaries of TensorFlow 2 need a writer and a step",
        "Leave it out; `fit(callbacks=[tf.keras.callbacks.TensorBoard(...)])` writes the metrics",
    ),
    "metrics.": (
        "keras-metric",
        "it is not in the dict that a metric_fn of the model returns",
        "Let eval_metrics be (metric_fn, [tensors]), and metric_fn return a dict of metrics, or "
        "migrate to the tf2 form",
    ),
    "train.": (
        "keras-of-train",
        "it belongs to the training loop of TensorFlow 1, which the new program does not have",
        WITHOUT_IT,
    ),
    "train.*Optimizer": (
        "keras-of-train",
        "no Keras optimizer is known to compute the same numbers",
        "Use another optimizer, or migrate to the tf2 form",
    ),
    **dict.fromkeys(
        ("layers.", "nn.rnn_cell.", "nn.dynamic_rnn", "nn.bidirectional"),
        ("keras-layer", "no Keras layer is known to do the same", _ASSIST),
    ),
    "get_variable Variable": (
        "keras-variable",
        "the variables of a Keras model belong to layers",
        "Make a layer of it that has the variable, or migrate to the tf2 form",
    ),
}


_OF_GRAPHS = frozenset(
    ["train.ExponentialMovingAverage", "Variable", "trainable_variables", "gradients"]
)
"""Names that create variables outside of the model's layers, or find variables in a graph."""


def counterpart(full: str) -> Upgrade | None:
    short = short_name(full)
    if short in _OF_GRAPHS or short.split(".")[0] in ("estimator", _COLUMNS):
        return None
    if short in _OF_COLUMNS:
        return None
    tf, old = public_names.listed(), ".compat.v1" in full or not short
    parts = short.split(".")
    starts = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    start = next((each for each in starts if each in public_names.upgrades()), short)
    upgrade = public_names.upgrades().get(start, Upgrade(start))
    if start in _SAME_NUMBERS or (not old and public_names.has(tf, short)):
        upgrade = Upgrade(start)
    if old and _WITH_STATE.match(short) and _object(tf, short) is not _object(tf.compat.v1, short):
        return None
    if upgrade.name.startswith("compat.v1.") or not public_names.has(tf, upgrade.name):
        if _WITH_STATE.match(short) or not public_names.has(tf.compat.v1, short):
            return None
        upgrade = Upgrade(f"compat.v1.{start}")
    return upgrade._replace(name=upgrade.name + short.removeprefix(start))


def _object(module: object, name: str) -> object:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def apply(source: Source, skip: Callable[[ast.AST], bool]) -> None:
    for call in nodes_in(source.tree, ast.Call):
        if not skip(call):
            short = source.called(call)
            if short in WRITERS:
                write(source, call, WRITERS[short])
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and not skip(node):
            _name(source, node)


def write(source: Source, call: ast.Call, writer: RuleWriter) -> None:
    source.replace(call, lambda: writer(source, call) or source.text[slice(*source.span(call))])
    writer(source, call)  # reports problems and adds imports before anything is written


def _upgrade_arguments(source: Source, call: ast.Call, upgrade: Upgrade) -> None:
    for number, each in enumerate(call.args):
        name = upgrade.order[number] if number < len(upgrade.order) else ""
        if name and not isinstance(each, ast.Starred):
            start, _ = source.span(each)
            source.replace_span(start, start, f"{upgrade.keywords.get(name) or name}=")
    for keyword in call.keywords:
        new = upgrade.keywords.get(str(keyword.arg))
        start, end = source.span(keyword)
        if new:
            source.replace_span(start, start + len(str(keyword.arg)), new)
        elif new is not None:
            rest = re.match(r"\s*,?\s*", source.text[end:])
            source.replace_span(start, end + (rest.end() if rest else 0), "")


def _name(source: Source, node: ast.Attribute | ast.Name) -> None:
    parent = source.parent(node)
    is_part = isinstance(parent, ast.Attribute) and source.full(parent)
    if not is_part and isinstance(node.ctx, ast.Load):
        _whole_name(source, node, parent)


def _whole_name(source: Source, node: ast.Attribute | ast.Name, parent: ast.AST | None) -> None:
    if source.full(node).startswith(_OF_CONTRIB):
        source.problem(node, "keras-no-counterpart", "it belongs to tf.contrib", _ASSIST)
    short = source.short(node)
    if not short:
        return
    called = isinstance(parent, ast.Call) and parent.func is node
    if called and short in WRITERS:
        return
    if short.endswith("CrossShardOptimizer") and not called:
        source.replace(node, "(lambda optimizer: optimizer)")
        return
    upgrade = counterpart(source.full(node))
    if upgrade is None:
        refused(source, node, short)
        return
    if called and isinstance(parent, ast.Call):
        _upgrade_arguments(source, parent, upgrade)
    if ast.unparse(node) != f"tf.{upgrade.name}":
        source.replace(node, f"tf.{upgrade.name}")


# Columns.


def args_of(source: Source, call: ast.Call) -> str:
    if not call.args and not call.keywords:
        return ""
    start = source.span(call.func)[1] + 1
    return source.render(start, source.span(call)[1] - 1)


def _with_function(new: str, module: str = KERAS) -> RuleWriter:
    return lambda source, call: f"{source.need(module, new)}({args_of(source, call)})"


def _preprocessing(new: str) -> RuleWriter:
    return lambda source, call: _column(source, new, args_of(source, call))


def _column(source: Source, new: str, arguments_of_column: str) -> str:
    return f"{source.need('tf2_engine', PREPROCESSING)}.{new}({arguments_of_column})"


def _sequence(writer: RuleWriter) -> RuleWriter:
    return lambda source, call: _column(source, "Sequence", writer(source, call) or "")


def known_arguments(
    source: Source,
    call: ast.Call,
    names: Iterable[str],
    required: str = "",
    unused: str = "name",
    lost: str = "",
) -> dict[str, ast.expr]:
    """Returns the arguments of a call by name; reports those that are missing or would be lost.

    Args:
        unused: arguments that are not reported, because they make no difference.
        lost: arguments in `names` that are reported, because they are not carried over.
    """
    by_name, others = arguments(call, names.split() if isinstance(names, str) else names)
    others = [each for each in others if getattr(each, "arg", None) not in unused.split()]
    not_carried = [key for key in by_name if key in lost.split()]
    not_carried += [getattr(each, "arg", None) or ast.unparse(each) for each in others]
    for key in not_carried:
        why = f"its argument {key} is not supported"
        source.problem(call, "keras-argument", why, f"Do without {key}")
    for key in required.split():
        if key not in by_name:
            source.problem(
                call, "keras-argument", f"its argument {key} is missing", f"Write {key}=..."
            )
            by_name[key] = (
                call.func
            )  # a placeholder that nothing uses, because the program is refused
    return by_name


def _vocabulary(source: Source, call: ast.Call) -> str:
    names = "key vocabulary_list dtype default_value num_oov_buckets"
    by_name = known_arguments(source, call, names, "key vocabulary_list")
    parts = [source.code(by_name["key"]), f"tuple({source.code(by_name['vocabulary_list'])})"]
    parts += source.keywords(by_name, "num_oov_buckets default_value")
    return _column(source, "VocabularyList", ", ".join(parts))


def _vocabulary_file(source: Source, call: ast.Call) -> str:
    names = "key vocabulary_file vocabulary_size num_oov_buckets default_value dtype"
    by_name = known_arguments(source, call, names, "key vocabulary_file vocabulary_size")
    return _column(source, "VocabularyFile", ", ".join(source.keywords(by_name)))


def _crossed(source: Source, call: ast.Call) -> str:
    by_name = known_arguments(
        source, call, "keys hash_bucket_size hash_key", "keys hash_bucket_size"
    )
    keys = by_name["keys"]
    inner = [source.code(each) for each in getattr(keys, "elts", ())]
    listed = f"({', '.join(inner)},)" if len(inner) == 1 else f"({', '.join(inner)})"
    first = listed if inner else f"tuple({source.code(keys)})"
    others = [
        source.code(by_name[key]) for key in ("hash_bucket_size", "hash_key") if key in by_name
    ]
    return _column(source, "Crossed", ", ".join([first, *others]))


def _numeric(source: Source, call: ast.Call) -> str:
    by_name = known_arguments(source, call, _STEPS, unused="")
    source.need(KERAS, "Numeric")
    if len(call.args) < 2:
        return f"Numeric({args_of(source, call)})"
    return f"Numeric({', '.join(source.keywords(by_name))})"


def _only(new: str, names: str) -> RuleWriter:
    return lambda source, call: (
        f"{source.need(KERAS, new)}({_renamed_arguments(source, call, names)})"
    )


def _renamed_arguments(source: Source, call: ast.Call, names: str) -> str:
    """Returns the code of a call's arguments, named as in the new program.

    Args:
        names: all arguments of the new call, in the syntax of `renamed`.
    """
    new = renamed(names)
    by_name = known_arguments(source, call, new, unused="")
    if all(new.get(str(each.arg)) == each.arg for each in call.keywords):
        return args_of(source, call)  # With its comments and line breaks.
    return ", ".join(source.keywords(by_name, names))


def _weighted(source: Source, call: ast.Call) -> str:
    names = "categorical_column= weight_feature_key= dtype"
    return _column(source, "Weighted", _renamed_arguments(source, call, names))


# Table optimizers.

_CLIPPING = (
    "use_gradient_accumulation clip_weight_min clip_weight_max weight_decay_factor "
    "multiply_weight_decay_factor_by_learning_rate"
)


def table_optimizer(source: Source, call: ast.Call, rate: str | None = None) -> str:
    row = OF_TABLES[source.called(call).rpartition(".")[2]]
    if "." not in row.new:
        source.need("tf2_engine", row.new)
    by_name = known_arguments(source, call, row.names, unused=_CLIPPING)
    kept = [each for each in call.keywords if each.arg in _CLIPPING.split()]
    parts = row.parts(source, by_name, rate or "")
    parts += [f"{each.arg}={source.code(each.value)}" for each in kept]
    return f"{row.new}({', '.join(parts)})"


# Rates, losses and others.

SCHEDULES: Mapping[str, tuple[str, str]] = {
    "train.cosine_decay": ("CosineDecay", "learning_rate global_step decay_steps alpha"),
    "train.exponential_decay": (
        "ExponentialDecay",
        "learning_rate global_step decay_steps decay_rate staircase",
    ),
    "train.polynomial_decay": (
        "PolynomialDecay",
        "learning_rate global_step decay_steps end_learning_rate power cycle",
    ),
    "train.cosine_decay_restarts": (
        "CosineDecayRestarts",
        "learning_rate global_step first_decay_steps t_mul m_mul alpha",
    ),
    "train.inverse_time_decay": (
        "InverseTimeDecay",
        "learning_rate global_step decay_steps decay_rate staircase",
    ),
}


def schedule(source: Source, call: ast.Call) -> tuple[str, ast.expr | None]:
    name, names = SCHEDULES[source.called(call)]
    by_name = known_arguments(source, call, names, unused="")
    step = by_name.pop("global_step", None)
    parts, keyed = [], False
    for key in names.replace("global_step ", "").split():
        if key not in by_name:
            keyed = True
            continue
        value = source.code(by_name[key])
        if name == "PolynomialDecay" and key == "end_learning_rate" and not keyed:
            parts.append(value)
        else:
            parts.append(f"{key}={value}" if keyed else value)
    if name == "PolynomialDecay" and "end_learning_rate" not in by_name:
        parts.append("end_learning_rate=0.0001")
    return f"tf.keras.optimizers.schedules.{name}({', '.join(parts)})", step


def write_schedules(source: Source, below: ast.AST) -> None:
    for call in nodes_in(below, ast.Call):
        if source.called(call) in SCHEDULES:
            source.done.update((call, call.func))
            source.replace(call, lambda call=call: schedule(source, call)[0])  # type: ignore[misc]


def _schedule_at_step(source: Source, call: ast.Call) -> str:
    code, step = schedule(source, call)
    return f"{code}({source.code(step)})" if step is not None else code


def _piecewise(source: Source, call: ast.Call) -> str:
    by_name = known_arguments(source, call, "x boundaries values", "x boundaries values")
    step, boundaries, values = (source.code(by_name[key]) for key in ("x", "boundaries", "values"))
    new = "tf.keras.optimizers.schedules.PiecewiseConstantDecay"
    return f"{new}({boundaries}, {values})({step})"


def _mean_of(written: str, names: str) -> RuleWriter:
    def write(source: Source, call: ast.Call) -> str:
        by_name, others = arguments(call, names.split())
        if len(by_name) != len(names.split()):
            source.problem(call, "keras-loss", "it lacks an argument", "Write both arguments")
            return ""
        if others:
            return f"tf.compat.v1.{source.called(call)}({args_of(source, call)})"
        pad = " " * (source.statement_of(call).col_offset + 4)
        code = {key: source.code(value) for key, value in by_name.items()}
        return written.format(pad=pad, **code)

    return write


def _by_name(new: str, names: str) -> RuleWriter:
    def write(source: Source, call: ast.Call) -> str:
        return f"{new}({', '.join(source.keywords(known_arguments(source, call, names)))})"

    return write


def _in_top_k(source: Source, call: ast.Call) -> str:
    by_name = known_arguments(source, call, "predictions targets k", "predictions targets k")
    order = [source.code(by_name[key]) for key in ("targets", "predictions", "k")]
    return f"tf.math.in_top_k({', '.join(order)})"


def _initializer(new: str, names: str, **defaults: str) -> RuleWriter:
    def write(source: Source, call: ast.Call) -> str:
        by_name = known_arguments(source, call, names, unused="")
        parts = {key: source.code(value) for key, value in by_name.items() if key != "dtype"}
        written = {**{key: v for key, v in defaults.items() if key not in parts}, **parts}
        return f"{new}({', '.join(f'{key}={value}' for key, value in written.items())})"

    return write


def placeholder(source: Source, call: ast.Call) -> str:
    by_name = known_arguments(source, call, "dtype shape name", "dtype")
    shape = source.code(by_name["shape"]) if "shape" in by_name else "None"
    parts = [shape, *source.keywords(by_name, "dtype= name")]
    return f"tf.TensorSpec({', '.join(parts)})"


def _input(source: Source, call: ast.Call) -> str:
    """Replaces `Input(tensor=x)` by `x`, because Keras layers take any tensor."""
    names, lost = "shape batch_size name dtype sparse tensor", "shape batch_size dtype sparse"
    by_name = known_arguments(source, call, names, "tensor", lost=lost)
    return source.code(by_name["tensor"]) if "tensor" in by_name else ""


def _string_split(source: Source, call: ast.Call) -> str:
    """Keeps the old op, because `tf.strings.split` keeps empty words and splits differently."""
    by_name = known_arguments(source, call, "source sep skip_empty delimiter input")
    strings = by_name.get("source") or by_name.get("input")
    if strings is None:
        source.problem(call, "keras-argument", "its argument source is missing", "Write source=...")
        return ""
    separators = by_name.get("sep") or by_name.get("delimiter")
    parts = [source.code(strings)] + ([source.code(separators)] if separators else [])
    if "skip_empty" in by_name:
        parts.append(f"keep_empty=not {source.code(by_name['skip_empty'])}")
    return _column(source, "split_words", ", ".join(parts))


WARM_START = (
    "ckpt_to_initialize_from vars_to_warm_start var_name_to_vocab_info var_name_to_prev_var_name"
)


WARM_CARRIED = (
    "ckpt_to_initialize_from= vars_to_warm_start=names var_name_to_prev_var_name=old_names"
)
"""The arguments of WarmStartSettings that are carried over, in the syntax of `renamed`."""


def _warm_start(source: Source, call: ast.Call) -> str:
    by_name = known_arguments(source, call, WARM_START, unused="", lost="var_name_to_vocab_info")
    parts = source.keywords(by_name, WARM_CARRIED)
    return f"{source.need(KERAS, 'WarmStart')}({', '.join(parts)})"


_PLAIN_COLUMN = "categorical_column dimension combiner initializer"
_TPU_COLUMN = f"{_PLAIN_COLUMN} max_sequence_length"
_SHARED = (
    "categorical_columns dimension combiner initializer shared_embedding_collection_name "
    "max_sequence_lengths"
)

_RECEIVER = "features receiver_tensors"
_STEPS = "key shape default_value dtype normalizer_fn"

_FC = "feature_column"

_CATEGORICAL: Mapping[str, RuleWriter] = {
    "categorical_column_with_identity": _preprocessing("Identity"),
    "categorical_column_with_hash_bucket": _preprocessing("Hashed"),
    "categorical_column_with_vocabulary_list": _vocabulary,
    "categorical_column_with_vocabulary_file": _vocabulary_file,
}
"""Writers of the categorical columns that also exist for sequences."""

WRITERS: dict[str, RuleWriter] = {
    **{f"{_FC}.{name}": writer for name, writer in _CATEGORICAL.items()},
    **{f"{_FC}.sequence_{name}": _sequence(writer) for name, writer in _CATEGORICAL.items()},
    f"{_FC}.weighted_categorical_column": _weighted,
    f"{_FC}.crossed_column": _crossed,
    f"{_FC}.bucketized_column": _with_function("bucketized_column"),
    f"{_FC}.numeric_column": _numeric,
    f"{_FC}.sequence_numeric_column": _only("SequenceNumeric", _STEPS),
    f"{_FC}.make_parse_example_spec": _only("parse_example_spec", "feature_columns="),
    "estimator.build_parsing_serving_input_receiver_fn": _with_function("parsing_receiver"),
    "estimator.build_raw_serving_input_receiver_fn": _with_function("raw_receiver"),
    "estimator.ServingInputReceiver": _only("ServingInputReceiver", _RECEIVER),
    "estimator.TensorServingInputReceiver": _only("TensorServingInputReceiver", _RECEIVER),
    f"{_FC}.indicator_column": _only("Indicator", "categorical_column="),
    f"{_FC}.embedding_column": _only("PlainEmbedding", _PLAIN_COLUMN),
    "tpu.experimental.embedding_column": _only("embedding_column", _TPU_COLUMN),
    "tpu.experimental.shared_embedding_columns": _only("shared_embedding_columns", _SHARED),
    **dict.fromkeys(SCHEDULES, _schedule_at_step),
    "train.piecewise_constant": _piecewise,
    "train.piecewise_constant_decay": _piecewise,
    "losses.mean_squared_error": _mean_of(
        "tf.reduce_mean(tf.square({predictions} - {labels}))", "labels predictions"
    ),
    "losses.absolute_difference": _mean_of(
        "tf.reduce_mean(tf.abs({predictions} - {labels}))", "labels predictions"
    ),
    "losses.sigmoid_cross_entropy": _mean_of(
        "tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(\n"
        "{pad}labels={multi_class_labels}, logits={logits}))",
        "multi_class_labels logits",
    ),
    "losses.sparse_softmax_cross_entropy": _mean_of(
        "tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(\n"
        "{pad}labels={labels}, logits={logits}))",
        "labels logits",
    ),
    "losses.softmax_cross_entropy": _mean_of(
        "tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(\n"
        "{pad}labels={onehot_labels}, logits={logits}))",
        "onehot_labels logits",
    ),
    "estimator.WarmStartSettings": _warm_start,
    "distribute.cluster_resolver.TPUClusterResolver": _with_function(
        "TPUClusterResolver", TRAINING
    ),
    "nn.in_top_k": _in_top_k,
    "pad": _by_name("tf.pad", "tensor paddings mode name constant_values"),
    "nn.rnn_cell.GRUCell": _only("GRUCell", "num_units"),
    "constant_initializer": _initializer("tf.constant_initializer", "value dtype"),
    "glorot_uniform_initializer": _initializer("tf.keras.initializers.GlorotUniform", "seed dtype"),
    "glorot_normal_initializer": _initializer("tf.keras.initializers.GlorotNormal", "seed dtype"),
    "random_normal_initializer": _initializer(
        "tf.random_normal_initializer", "mean stddev seed dtype", stddev="1.0"
    ),
    "truncated_normal_initializer": _initializer(
        "tf.keras.initializers.TruncatedNormal", "mean stddev seed dtype", stddev="1.0"
    ),
    "random_uniform_initializer": _initializer(
        "tf.random_uniform_initializer", "minval maxval seed dtype", minval="0.0", maxval="1.0"
    ),
    **{
        f"{start}{old}{end}": _initializer(f"tf.keras.initializers.{new}", "seed dtype")
        for old, new in (
            ("lecun_uniform", "LecunUniform"),
            ("lecun_normal", "LecunNormal"),
            ("he_uniform", "HeUniform"),
            ("he_normal", "HeNormal"),
            ("glorot_uniform", "GlorotUniform"),
            ("glorot_normal", "GlorotNormal"),
        )
        for start, end in (("initializers.", ""), ("initializers.", "_initializer"))
    },
    "placeholder": placeholder,
    "keras.Input": _input,
    "keras.layers.Input": _input,
    "string_split": _string_split,
}
"""Functions that write the replacement of a call, keyed by the called name without
"tensorflow.".
"""

for _name_of_optimizer in OF_TABLES:
    for _prefix in ("tpu.experimental.", "tpu_embedding."):
        WRITERS[_prefix + _name_of_optimizer] = table_optimizer
