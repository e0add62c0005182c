"""Turns a model's functions into methods; `__init__` creates the layers that these call."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Sequence

from estimator_bridge.migrate.keras_form.model_class import layers
from estimator_bridge.migrate.keras_form.model_class.layers import LayerCall
from estimator_bridge.migrate.keras_form.program_text.modes import read_by
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    Text,
    all_names,
    bound_in,
    call_text,
    every_argument,
    is_docstring,
    names_in,
    nodes_in,
)

_RESERVED = frozenset(
    (
        *("output", "input", "name", "loss", "metrics", "optimizer", "layers", "weights", "call"),
        *("variables", "losses", "dtype", "inputs", "outputs", "state", "path", "built", "build"),
        *("trainable", "embedding", "fit", "evaluate", "predict", "compile", "optimizers"),
    )
)
"""Attributes that Keras models already have."""

Roles = dict[str, tuple[str, ast.expr]]
"""Maps parameters of a function to their role ("tensor", "training" or "config") and argument."""

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
_WITHOUT_VARIABLES = frozenset(
    ["dropout", "flatten", "activation", "max_pooling1d", "max_pooling2d", "average_pooling2d"]
)
_OF_COLUMNS = ("dense_features", "sequence_features", "input_layer")


@dataclasses.dataclass
class ClassText:
    """A class that is being written.

    Attributes:
        config: maps the names that may become arguments of the class to the code of their values in
            `__init__`.
        forbidden: parameters of the model_fn, such as `mode`, whose values the class cannot get.
    """

    source: Source
    config: dict[str, Text]
    used: dict[str, None] = dataclasses.field(default_factory=dict)
    stored: dict[str, None] = dataclasses.field(default_factory=dict)
    init: list[Text] = dataclasses.field(default_factory=list)
    methods: list[Text] = dataclasses.field(default_factory=list)
    taken: set[str] = dataclasses.field(default_factory=lambda: set(_RESERVED))
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    forbidden: set[str] = dataclasses.field(default_factory=set)

    def attribute(self, wanted: str) -> str:
        name = re.sub(r"\W+", "_", wanted).strip("_") or "layer"
        name = f"{name}_layer" if name in _RESERVED else name
        unused, number = name, 1
        while unused in self.taken:
            unused, number = f"{name}_{number}", number + 1
        self.taken.add(unused)
        return unused

    def counted(self, kind: str) -> str:
        """Returns the name that the legacy program gives an unnamed layer."""
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        return f"{kind}_{number}" if number else kind


def layered_functions(source: Source, roots: Iterable[ast.AST]) -> dict[str, ast.FunctionDef]:
    """Returns functions that call layers, by name, but not `roots` and functions around them."""
    skipped = {*roots}.union(*map(source.above, roots))
    functions = [each for each in nodes_in(source.tree, ast.FunctionDef) if each not in skipped]
    calls = {each: [*nodes_in(each, ast.Call)] for each in functions}
    direct = {each for each in functions if any(layers.read(source, node) for node in calls[each])}
    layered: dict[str, ast.FunctionDef] = {}
    for _ in functions:
        for each in functions:
            inner = {node.func.id for node in calls[each] if isinstance(node.func, ast.Name)}
            if each in direct or inner & layered.keys():
                layered[each.name] = each
    return layered


class Body:
    """The statements of one method of a class.

    Args:
        tensors: names of values that are computed from a batch.
        training: names of flags that are true while the model trains.
        classes: the layer classes written so far, by name. The body adds those that it needs.
    """

    def __init__(
        self,
        text: ClassText,
        tensors: Iterable[str],
        training: Iterable[str] = (),
        helpers: dict[str, ast.FunctionDef] | None = None,
        classes: dict[str, Text] | None = None,
    ) -> None:
        self._text, self._source = text, text.source
        self.tensors, self._training = {*tensors}, {*training}
        self._helpers, self._classes = helpers or {}, classes
        self._in_init: set[str] = set()
        self._hoisted: set[ast.AST] = set()
        self._local: set[str] = set()
        self.lines: list[Text] = []

    def text(self) -> str:
        return _joined(self.lines)

    def write(self, items: Sequence[ast.stmt], indent: int = 4) -> None:
        for item in items:
            for layer in layers.below(self._source, item):
                self._in_init.update(*map(names_in, layer.config))
        for item in items:
            if is_docstring(item) or isinstance(item, ast.Delete):
                continue
            if self._moves(item):
                self._move(item)
            else:
                self._statement(item, indent)

    def _moves(self, item: ast.stmt) -> bool:
        if not isinstance(item, ast.Assign) or read_by(item) & self.tensors:
            return False
        if any(layers.below(self._source, item)):
            return False
        return bool(set(bound_in(item)) & self._in_init)

    def _move(self, item: ast.stmt) -> None:
        self.contextualize(item, in_init=True)
        self._text.init.append(lambda: self._source.block(item, 4))
        for name in bound_in(item):
            self._text.config[name] = lambda name=name: name  # type: ignore[misc]

    def _statement(self, item: ast.stmt, indent: int) -> None:
        has_layers = self._has_layers(item)
        targets = bound_in(item)
        if isinstance(item, ast.For) and has_layers:
            self._loop(item)
        elif has_layers and not isinstance(item, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
            raise NotSimple(item, "it makes layers under a condition")
        else:
            self._calls(item, targets[0] if len(targets) == 1 else "")
        if has_layers or read_by(item) & self.tensors:
            self.tensors.update(targets)
        self._local.update(targets)
        self.contextualize(item)
        spaced = self._source.is_spaced(item) and (self.lines or isinstance(item, ast.FunctionDef))
        blank = "\n" if spaced else ""
        self.lines.append(lambda: blank + self._source.block(item, indent))

    def _has_layers(self, item: ast.AST) -> bool:
        helpers = map(self._helper, ast.walk(item))
        return any(layers.below(self._source, item)) or any(helpers)

    def _helper(self, node: ast.AST) -> ast.FunctionDef | None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._helpers.get(node.func.id)
        return None

    def _calls(self, item: ast.AST, hint: str) -> None:
        for call in sorted(nodes_in(item, ast.Call), key=_order):
            layer, helper = layers.read(self._source, call), self._helper(call)
            if layer is None and helper is None:
                continue
            if any(isinstance(up, _COMPREHENSIONS) for up in self._source.above(call)):
                raise NotSimple(call, "it makes layers in a comprehension")
            if layer is not None:
                self._layer(layer, hint)
            elif helper is not None:
                self._as_layer(call, helper, self.roles(call, helper))

    # Layers.

    def _layer(self, layer: LayerCall, hint: str) -> None:
        name = self._name(layer)
        attribute = self._text.attribute(self._wanted(layer, hint, name))
        self._hoist(layer.config)
        construction = self._construction(layer, name)
        self._text.init.append(lambda: f"    self.{attribute} = {construction()}\n")
        self._replace(layer, f"self.{attribute}")

    def _hoist(self, nodes: Iterable[ast.expr]) -> None:
        for node in nodes:
            if names_in(node) & self.tensors:
                raise NotSimple(node, "the arguments of a layer are computed from tensors")
            self._hoisted.add(node)
            self.contextualize(node, in_init=True)

    def _replace(self, layer: LayerCall, called: str) -> None:
        source = self._source

        def write() -> str:
            parts = []
            for key, value in layer.inputs:
                is_training = key == "training" and self._is_training(value)
                text = "training" if is_training else source.code(value)
                parts.append(f"{key}={text}" if key else text)
            parts += [layer.extra] if layer.extra else []
            return f"{called}({', '.join(parts)})"

        source.replace(layer.call, write)

    def _is_training(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Compare):
            is_equal = isinstance(value.ops[0], ast.Eq)
            return is_equal and self._source.short(value.comparators[0]).endswith("ModeKeys.TRAIN")
        return isinstance(value, ast.Name) and value.id in self._training

    def _construction(self, layer: LayerCall, name: Text | None) -> Text:
        if layer.kind == "batch_normalization":
            raise NotSimple(
                layer.call, "an op updates the moving averages of a batch normalization"
            )
        new, config = layer.construction

        def write() -> str:
            code = self._source.code
            parts = [f"{key}={code(value)}" if key else code(value) for key, value in config]
            parts += [layer.options] if layer.options else []
            parts += [f"name={name()}"] if name is not None else []
            return call_text(new, parts, 4, "self.attribute = ")

        return write

    def _name(self, layer: LayerCall) -> Text | None:
        if layer.name is not None:
            node = layer.name
            return lambda: self._source.code(node)
        counted = self._text.counted(layer.kind)
        has_variables = layer.kind not in _OF_COLUMNS
        if has_variables and layer.kind not in _WITHOUT_VARIABLES:
            return lambda: repr(counted)
        if not has_variables and self._source.calls("feature_column.embedding_column"):
            raise NotSimple(layer.call, "the columns of an input layer have variables")
        return None

    def _wanted(self, layer: LayerCall, hint: str, name: Text | None) -> str:
        if isinstance(layer.name, ast.Constant):
            return str(layer.name.value)
        if layer.kind in _OF_COLUMNS:
            return f"{hint}_features" if hint else layer.kind
        return name().strip("'") if name is not None and layer.name is None else layer.kind

    def _loop(self, loop: ast.For) -> None:
        source = self._source
        found = (layers.read(source, node) for node in sorted(ast.walk(loop), key=_order))
        variables: list[str] = []
        attributes: list[str] = []
        header = source.text[slice(*source.span(loop.target))]
        for layer in filter(None, found):
            if layer.name is None and layer.kind not in _WITHOUT_VARIABLES:
                raise NotSimple(layer.call, "the layers that a loop makes have no name")
            attributes.append(self._text.attribute(f"{layer.kind}_layers"))
            variables.append(layer.kind)
            self._hoist(layer.config)
            self._append_list(attributes[-1], self._construction(layer, self._name(layer)), loop)
            self._replace(layer, layer.kind)
        if any(map(self._helper, ast.walk(loop))) or len({*variables}) < len(variables):
            raise NotSimple(
                loop, "a loop calls a function with layers, or several layers of one kind"
            )
        rest = set().union(*map(self._names_left, loop.body))
        if rest & all_names(loop.target) or {*variables} & {*self._text.config, *rest}:
            raise NotSimple(loop, f"in a loop that makes layers, other code reads {header}")
        self._hoist([loop.iter])
        called = f"zip({', '.join(f'self.{each}' for each in attributes)})"
        called = called if len(attributes) > 1 else f"self.{attributes[0]}"
        start, end = source.span(loop.target)[0], source.span(loop.iter)[1]
        source.replace_span(start, end, f"{', '.join(variables)} in {called}")

    def _append_list(self, attribute: str, construction: Text, loop: ast.For) -> None:
        source = self._source
        header = source.text[slice(*source.span(loop.target))]
        self._text.init.append(
            lambda: (
                f"    self.{attribute} = [\n        {construction()}\n"
                f"        for {header} in {source.code(loop.iter)}]\n"
            )
        )

    def _names_left(self, node: ast.AST) -> set[str]:
        if node in self._hoisted:
            return set()
        names = names_in(node) if isinstance(node, ast.Name) else set()
        return names.union(*(self._names_left(each) for each in ast.iter_child_nodes(node)))

    # Functions that call layers.

    def roles(self, call: ast.Call, function: ast.FunctionDef) -> Roles:
        roles = {}
        parameters = [each.arg for each in function.args.args]
        for name, value in every_argument(call, parameters).items():
            if self._is_training(value):
                role = "training"
            else:
                role = "tensor" if names_in(value) & self.tensors else "config"
            roles[name] = (role, value)
        if {*roles} != {*parameters}:
            raise NotSimple(call, "a function with layers is called without some of its arguments")
        return roles

    def write_method(
        self, function: ast.FunctionDef, roles: Roles, name: str, before: str = ""
    ) -> None:
        config, tensors, training = _by_role(roles)
        for parameter in config:
            value = roles[parameter][1]
            self._hoist([value])
            self._text.config[parameter] = lambda value=value: self._source.code(value)  # type: ignore[misc]
        body = Body(self._text, tensors, training, self._helpers, self._classes)
        body.write(function.body)
        doc = docstring(self._source, function, 4, config)
        parameters = [f"{each}=False" if each in training else each for each in tensors]
        parameters += [] if training else ["training=False"]
        self._text.methods.append(
            lambda: f"  def {name}(self, {', '.join(parameters)}):\n{doc}{before}{body.text()}"
        )

    def _as_layer(self, call: ast.Call, function: ast.FunctionDef, roles: Roles) -> None:
        source = self._source
        kind = "".join(part.capitalize() for part in function.name.strip("_").split("_"))
        config, tensors, training = _by_role(roles)
        statements = [each for each in function.body if not is_docstring(each)]
        scope = statements[0]
        if self._classes is None or training or not _is_of_name(source, scope) or statements[1:]:
            raise NotSimple(
                call,
                f"{function.name} has layers, but is not one `with tf.variable_scope(name)` block "
                "for its argument `name`",
            )
        if kind not in self._classes:
            self._classes[kind] = _layer_class(source, kind, function, roles, self._helpers)
        values = [roles[each][1] for each in config]
        attribute = self._text.attribute(ast.unparse(roles["name"][1]))
        self._hoist(values)
        self._text.init.append(
            lambda: f"    self.{attribute} = {kind}({', '.join(map(source.code, values))})\n"
        )
        inputs = [roles[each][1] for each in tensors]
        source.replace(
            call, lambda: f"self.{attribute}({', '.join(source.code(each) for each in inputs)})"
        )

    # Names.

    def contextualize(self, node: ast.AST, in_init: bool = False) -> None:
        """Replaces each name of `config`: in `__init__` by its code, elsewhere by an attribute."""
        if not in_init and node in self._hoisted:
            return
        key = _params_key(node)
        if key is not None and key in self._text.config:
            self._mention(node, key, in_init)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._name_in_context(node, in_init)
            return
        if isinstance(node, ast.Compare) and self._is_training(node) and not in_init:
            self._source.replace(node, "training")
            return
        for child in ast.iter_child_nodes(node):
            self.contextualize(child, in_init)

    def _name_in_context(self, node: ast.Name, in_init: bool) -> None:
        if node.id in self._training and in_init:
            raise NotSimple(node, "an argument of a layer depends on the mode")
        if node.id in self._training and node.id != "training":
            self._source.replace(node, "training")
        elif node.id in self.tensors or node.id in self._local:
            return
        elif node.id in self._text.config:
            self._mention(node, node.id, in_init)
        elif node.id in self._text.forbidden:
            raise NotSimple(
                node, f"it uses its argument {node.id}, which a Keras model does not get"
            )

    def _mention(self, node: ast.AST, key: str, in_init: bool) -> None:
        text = self._text
        text.used[key] = None
        if in_init:
            self._source.replace(node, text.config[key])
            return
        text.stored[key] = None
        text.taken.add(key)
        self._source.replace(node, f"self.{key}")


def _layer_class(
    source: Source,
    kind: str,
    function: ast.FunctionDef,
    roles: Roles,
    helpers: dict[str, ast.FunctionDef],
) -> Text:
    config, tensors, _ = _by_role(roles)
    text = ClassText(source, {each: (lambda each=each: each) for each in config})  # type: ignore[misc]
    body = Body(text, tensors, (), helpers)
    (scope,) = [each for each in function.body if not is_docstring(each)]
    source.done.update(ast.walk(scope.items[0]))  # type: ignore[attr-defined]
    body.write(scope.body)  # type: ignore[attr-defined]
    doc = docstring(source, function, 2, config)

    def write() -> str:
        stored = "".join(f"    self.{each} = {each}\n" for each in text.stored)
        return (
            f"class {kind}(tf.keras.layers.Layer):\n{doc}\n"
            f"  def __init__(self, {', '.join(config)}):\n    super().__init__(name=name)\n{stored}"
            f"{_joined(text.init)}\n  def call(self, {', '.join(tensors)}):\n{body.text()}"
        )

    return write


def _is_of_name(source: Source, statement: ast.stmt) -> bool:
    calls = statement.items if isinstance(statement, ast.With) else []
    return [source.called(each.context_expr) for each in calls] == ["variable_scope"] and (
        ast.unparse(calls[0].context_expr).endswith("(name)")
    )


def _by_role(roles: Roles) -> tuple[list[str], list[str], list[str]]:
    config = [each for each, (role, _) in roles.items() if role == "config"]
    training = [each for each, (role, _) in roles.items() if role == "training"]
    return config, [each for each in roles if each not in config], training


def _joined(texts: Iterable[Text]) -> str:
    return "".join(each() for each in texts)


def docstring(
    source: Source, function: ast.FunctionDef, indent: int, gone: Sequence[str] = ()
) -> str:
    first = function.body[0]
    text = source.block(first, indent) if is_docstring(first) else ""
    for name in gone:
        text = re.sub(rf"(?m)^( +){re.escape(name)}: .*\n(\1 +.*\n)*", "", text)
    return re.sub(r"(?m)^ *Args:\n(?=\s*\n)\s*\n", "", text)


def _params_key(node: ast.AST) -> str | None:
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "params"
        and isinstance(node.slice, ast.Constant)
    ):
        return str(node.slice.value)
    return None


def _order(node: ast.AST) -> tuple[int, int]:
    return (getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0)
