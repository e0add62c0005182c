"""Turns functions of a model into methods: `__init__` creates the layers, the methods call them."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Sequence

from estimator_bridge.migrate.keras_form.model_class import layers
from estimator_bridge.migrate.keras_form.model_class.layers import LayerCall
from estimator_bridge.migrate.keras_form.program_text.modes import (
    Bind,
    Item,
    is_docstring,
    item_names,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    all_names,
    bound_in,
    call_text,
    every_argument,
    names_in,
    nodes_in,
)
from estimator_bridge.migrate.syntax.edits import Span, spliced

_RESERVED = frozenset(
    (
        *("output", "input", "name", "loss", "metrics", "optimizer", "layers", "weights", "call"),
        *("variables", "losses", "dtype", "inputs", "outputs", "state", "path", "built", "build"),
        *("trainable", "embedding", "fit", "evaluate", "predict", "compile", "optimizers"),
    )
)
"""Attributes that Keras models already have."""

Roles = dict[str, tuple[str, ast.expr]]
"""For each parameter of a function, its role ("tensor", "training" or "config") and the argument.
"""

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_WITHOUT_VARIABLES = frozenset(
    ["dropout", "flatten", "activation", "max_pooling1d", "max_pooling2d", "average_pooling2d"]
)
_OF_COLUMNS = ("dense_features", "sequence_features", "input_layer")


@dataclasses.dataclass
class ClassText:
    """A class that is being written.

    Attributes:
        config: the code in `__init__` of each value that it may take, by name.
        used: the names of `config` that the class uses.
        names: the layer names in checkpoints, where they differ.
        forbidden: parameters of the model_fn that the model lacks.
    """

    source: Source
    config: dict[str, Text]
    used: dict[str, None] = dataclasses.field(default_factory=dict)
    stored: dict[str, None] = dataclasses.field(default_factory=dict)
    init: list[Text] = dataclasses.field(default_factory=list)
    methods: list[Text] = dataclasses.field(default_factory=list)
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    taken: set[str] = dataclasses.field(default_factory=lambda: set(_RESERVED))
    counts: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    forbidden: set[str] = dataclasses.field(default_factory=set)

    def attribute(self, wanted: str) -> str:
        name = re.sub(r"\W+", "_", wanted).strip("_") or "layer"
        name = f"{name}_layer" if name in _RESERVED else name
        unused, number = name, 1
        while unused in self.taken:
            unused, number = f"{name}_{number}", number + 1
        self.taken.add(unused)
        return unused

    def counted(self, scope: str, kind: str) -> str:
        """Returns the name that the legacy program gives an unnamed layer."""
        number = self.counts.get((scope, kind), 0)
        self.counts[scope, kind] = number + 1
        return f"{kind}_{number}" if number else kind

    def in_checkpoint(self, scope: str, name: str) -> str:
        """Returns a Keras name for a layer in a scope, and records its name in checkpoints."""
        if not scope:
            return name
        layer_name = f"{scope}_{name}".replace("/", "_")
        self.names[layer_name] = f"{scope}/{name}"
        return layer_name


def layered_functions(source: Source, roots: Iterable[ast.AST]) -> dict[str, ast.FunctionDef]:
    """Returns the functions that call layers, by name, except the roots and what encloses them."""
    skipped = {*roots}
    functions = [*nodes_in(source.tree, ast.FunctionDef)]
    layered: dict[str, ast.FunctionDef] = {}
    for _ in range(len(functions) + 1):
        before = len(layered)
        for each in functions:
            if each in skipped or any(each is up for root in roots for up in source.above(root)):
                continue
            calls = [*nodes_in(each, ast.Call)]
            inner = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
            if any(layers.read(source, node) for node in calls) or inner & layered.keys():
                layered[each.name] = each
        if len(layered) == before:
            break
    return layered


class Body:
    """The statements of one method of a class.

    Args:
        tensors: names that are computed from a batch.
        training: names that tell whether the model is training.
        helpers: functions that call layers.
    """

    def __init__(
        self,
        text: ClassText,
        tensors: Iterable[str],
        training: Iterable[str],
        helpers: dict[str, ast.FunctionDef],
        classes: dict[str, Text],
    ) -> None:
        self._text, self._source = text, text.source
        self.tensors, self._training = {*tensors}, {*training}
        self._helpers, self._classes = helpers, classes
        self._in_init: set[str] = set()
        self._hoisted: set[ast.AST] = set()
        self._local: set[str] = set()
        self.lines: list[Text] = []

    def text(self) -> str:
        return _joined(self.lines)

    def leave_out(self, nodes: Iterable[ast.AST]) -> None:
        """Marks nodes that are written elsewhere, so that the names in them stay unchanged."""
        self._hoisted.update(nodes)

    def write(self, items: Sequence[Item], indent: int = 4) -> None:
        for item in items:
            if not isinstance(item, Bind):
                for layer in layers.below(self._source, item):
                    self._in_init.update(*map(names_in, layer.config))
        self._statements(items, indent, "")

    def _statements(self, items: Sequence[Item], indent: int, scope: str) -> None:
        for item in items:
            if is_docstring(item) or isinstance(item, ast.Delete):
                continue
            if isinstance(item, Bind):
                self._bind(item, indent)
            elif isinstance(item, ast.With) and self._scope_of(item) is not None:
                inner = self._scope_of(item)
                joined = "/".join(filter(None, (scope, inner)))
                self._statements(item.body, indent, joined)
            elif self._moves(item):
                self._move(item)
            else:
                self._statement(item, indent, scope)

    def _scope_of(self, statement: ast.With) -> str | None:
        """Returns the variable scope that a `with` opens ("" for none); None for any other."""
        call = statement.items[0].context_expr
        called = self._source.called(call)
        if len(statement.items) > 1 or called not in ("variable_scope", "name_scope"):
            return None
        if called == "name_scope":
            return ""
        name = call.args[0] if isinstance(call, ast.Call) and call.args else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return name.value
        if isinstance(name, ast.Name) and name.id in self._text.config and name.id == "name":
            self._text.used["name"] = None
            return ""
        return None

    def _bind(self, item: Bind, indent: int) -> None:
        if names_in(item.value) & self.tensors:
            self.tensors.add(item.name)
        self._calls(item.value, "", item.name)
        self.contextualize(item.value)
        self.lines.append(lambda: f"{' ' * indent}{item.name} = {self._source.code(item.value)}\n")

    def _moves(self, item: ast.stmt) -> bool:
        if not isinstance(item, ast.Assign) or item_names(item) & self.tensors:
            return False
        if any(layers.below(self._source, item)):
            return False
        return bool(set(bound_in(item)) & self._in_init)

    def _move(self, item: ast.stmt) -> None:
        self.contextualize(item, in_init=True)
        self._text.init.append(lambda: self._source.block(item, 4))
        for name in bound_in(item):
            self._text.config[name] = lambda name=name: name  # type: ignore[misc]

    def _statement(self, item: ast.stmt, indent: int, scope: str) -> None:
        loop = isinstance(item, ast.For) and not names_in(item.iter) & self.tensors
        has_layers = self._has_layers(item)
        targets = bound_in(item)
        if loop and has_layers:
            assert isinstance(item, ast.For)
            self._loop(item, scope)
        else:
            hint = targets[0] if len(targets) == 1 else ""
            self._calls(item, scope, hint)
        if has_layers or item_names(item) & self.tensors:
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

    def _calls(self, item: ast.AST, scope: str, hint: str) -> None:
        for call in sorted(nodes_in(item, ast.Call), key=_order):
            layer, helper = layers.read(self._source, call), self._helper(call)
            if layer is not None:
                self._layer(layer, scope, hint)
            elif helper is not None:
                self._call_helper(call, helper)

    # Layers.

    def _layer(self, layer: LayerCall, scope: str, hint: str) -> None:
        for config in layer.config:
            if names_in(config) & self.tensors:
                self._source.problem(
                    *(layer.call, "keras-layer-of-tensors", "a layer is made of computed values"),
                    "Make the layer of what is known before the first batch",
                )
        name = self._name(layer, scope)
        attribute = self._text.attribute(self._wanted(layer, scope, hint, name))
        self._hoist(layer.config)
        comprehension = self._comprehension(layer)
        construction = self._construction(layer, name)
        if comprehension is not None:
            self._list(comprehension, attribute, construction)
            self._replace(layer, "layer")
            return
        self._text.init.append(lambda: f"    self.{attribute} = {construction()}\n")
        self._replace(layer, f"self.{attribute}")

    def _list(self, comprehension: Comprehension, attribute: str, construction: Text) -> None:
        """Creates a layer per item in `__init__`, and makes the comprehension loop over the layers.

        Loops over pairs of item and layer if other code reads the item.
        """
        source, generator = self._source, comprehension.generators[0]
        target, it = generator.target, generator.iter
        if it in self._hoisted:
            source.problem(
                *(comprehension, "keras-loop", "it makes several layers for each value"),
                "Write a comprehension for each of them",
            )
        old, bound = source.text[slice(*source.span(target))], all_names(target)
        elements = [each for each in ast.iter_child_nodes(comprehension) if each is not generator]
        elements += generator.ifs
        is_read = any(self._names_left(each) & bound for each in elements)
        self._hoisted.add(it)
        self.contextualize(it, in_init=not is_read)
        self._text.init.append(
            lambda: f"    self.{attribute} = [{construction()} for {old} in {source.code(it)}]\n"
        )
        # `__init__` has the iterable too; the loop here is replaced in the original text.
        start, end = source.span(target)[0], source.span(it)[1]
        if not is_read:
            source.replace_span(start, end, f"layer in self.{attribute}")
            return
        pair = f"({old})" if isinstance(target, ast.Tuple) and not old.startswith("(") else old
        source.replace_span(
            start, end, lambda: f"{pair}, layer in zip({source.code(it)}, self.{attribute})"
        )

    def _comprehension(self, layer: LayerCall) -> Comprehension | None:
        for up in self._source.above(layer.call):
            if isinstance(up, Comprehension) and len(up.generators) == 1:
                bound = all_names(up.generators[0].target)
                if any(names_in(config) & bound for config in layer.config):
                    return up
            if isinstance(up, ast.stmt):
                return None
        return None

    def _hoist(self, nodes: Iterable[ast.expr]) -> None:
        for node in nodes:
            self._hoisted.add(node)
            self.contextualize(node, in_init=True)

    def _replace(self, layer: LayerCall, called: str) -> None:
        source = self._source
        if layer.kind == layers.VARIABLE:
            source.replace(layer.call, called)
            return

        def write() -> str:
            parts = []
            for key, value in layer.inputs:
                text = source.code(value)
                if key == "training" and self._is_training(value):
                    text = "training"
                parts.append(f"{key}={text}" if key else text)
            parts += [layer.extra] if layer.extra else []
            return f"{called}({', '.join(parts)})"

        source.replace(layer.call, write)

    def _is_training(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Compare):
            return "ModeKeys" in self._source.short(value.comparators[0])
        return isinstance(value, ast.Name) and value.id in self._training

    def _construction(self, layer: LayerCall, name: Text | None) -> Text:
        new, config = layer.construction

        def write() -> str:
            code = self._source.code
            parts = [f"{key}={code(value)}" if key else code(value) for key, value in config]
            parts += [layer.options] if layer.options else []
            parts += [f"name={name()}"] if name is not None else []
            return call_text(new, parts, 4, "self.attribute = ")

        return write

    def _name(self, layer: LayerCall, scope: str) -> Text | None:
        text = self._text
        if layer.name is not None:
            if isinstance(layer.name, ast.Constant):
                layer_name = text.in_checkpoint(scope, str(layer.name.value))
                return lambda: repr(layer_name)
            if scope:
                self._source.problem(
                    *(layer.call, "keras-name", "its name in a variable scope is computed"),
                    "Write the name out",
                )
            node = layer.name
            return lambda: self._source.code(node)
        of_columns = layer.kind in _OF_COLUMNS
        counted = text.counted("" if of_columns else scope, layer.kind)
        has_variables = not of_columns or self._source.calls("feature_column.embedding_column")
        if layer.kind in _WITHOUT_VARIABLES or not has_variables:
            return None
        layer_name = text.in_checkpoint(scope, counted)
        return lambda: repr(layer_name)

    def _wanted(self, layer: LayerCall, scope: str, hint: str, name: Text | None) -> str:
        if isinstance(layer.name, ast.Constant):
            return str(layer.name.value)
        if layer.kind in _OF_COLUMNS:
            if hint:
                return f"{hint}_features"
            return f"{scope}_features" if scope else layer.kind
        return name().strip("'") if name is not None and layer.name is None else layer.kind

    # Loops.

    def _loop(self, loop: ast.For, scope: str) -> None:
        """Creates the layers of a loop as lists in `__init__`, and makes the loop run over them."""
        source = self._source
        readings = [layers.read(source, node) for node in sorted(ast.walk(loop), key=_order)]
        if any(self._helper(node) for node in ast.walk(loop)):
            source.problem(
                *(loop, "keras-loop", "it calls a function with layers"),
                "Write the layers into the loop",
            )
        variables: list[str] = []
        attributes: list[str] = []
        header = source.text[slice(*source.span(loop.target))]
        for layer in filter(None, readings):
            names = None if layer.name is not None else self._loop_names(layer, loop, scope)
            name: Text | None = None
            if layer.name is not None:
                node = layer.name
                name = lambda node=node: source.code(node)  # noqa: E731
            elif names is not None:
                name = lambda: "name"  # noqa: E731
            attribute = self._text.attribute(
                f"{'_'.join(filter(None, (scope, layer.kind)))}_layers".replace("/", "_")
            )
            self._hoist(layer.config)
            construction = self._construction(layer, name)
            self._append_list(attribute, construction, header, loop, names)
            variable = layer.kind if layer.kind not in self._text.config else f"{layer.kind}_layer"
            variable = variable if variable not in variables else f"{variable}_{len(variables)}"
            self._replace(layer, variable)
            variables.append(variable)
            attributes.append(f"self.{attribute}")
        rest = set().union(*map(self._names_left, loop.body))
        self._hoist([loop.iter])
        if rest & all_names(loop.target):
            variables.insert(0, header if "," not in header else f"({header})")
            attributes.insert(0, self._in_body(loop.iter))
        new_iter = attributes[0] if len(attributes) == 1 else f"zip({', '.join(attributes)})"
        start, end = source.span(loop.target)[0], source.span(loop.iter)[1]
        source.replace_span(start, end, f"{', '.join(variables)} in {new_iter}")

    def _append_list(
        self,
        attribute: str,
        construction: Text,
        header: str,
        loop: ast.For,
        names: list[str] | None,
    ) -> None:
        target = header if names is None else f"{header}, name"

        def write() -> str:
            iterable = self._source.code(loop.iter)
            iterable = iterable if names is None else f"zip({iterable}, {tuple(names)!r})"
            return (
                f"    self.{attribute} = [\n        {construction()}\n"
                f"        for {target} in {iterable}]\n"
            )

        self._text.init.append(write)

    def _in_body(self, node: ast.expr) -> str:
        new: dict[Span, str | Text] = {}
        for each in ast.walk(node):
            key = _params_key(each) or getattr(each, "id", "")
            if key in self._text.config:
                self._text.used[key] = self._text.stored[key] = None
                self._text.taken.add(key)
                new[self._source.span(each)] = f"self.{key}"
        return spliced(self._source.text, new, self._source.span(node))

    def _loop_names(self, layer: LayerCall, loop: ast.For, scope: str) -> list[str] | None:
        if layer.kind in _WITHOUT_VARIABLES or layer.kind in _OF_COLUMNS:
            return None
        if not isinstance(loop.iter, (ast.Tuple, ast.List)) or not isinstance(
            loop.target, ast.Name
        ):
            self._source.problem(
                *(layer.call, "keras-loop-name", "how many layers without a name a loop makes"),
                "Give the layer a name that is computed in the loop, such as name='dense_%d' % i",
            )
            return None
        return [
            self._text.in_checkpoint(scope, self._text.counted(scope, layer.kind))
            for _ in loop.iter.elts
        ]

    def _names_left(self, node: ast.AST) -> set[str]:
        if node in self._hoisted:
            return set()
        names = names_in(node) if isinstance(node, ast.Name) else set()
        return names.union(*(self._names_left(each) for each in ast.iter_child_nodes(node)))

    # Functions that call layers.

    def _call_helper(self, call: ast.Call, function: ast.FunctionDef) -> None:
        functions = [each.func for each in nodes_in(self._source.tree, ast.Call)]
        uses = [each for each in functions if getattr(each, "id", "") == function.name]
        write = self._as_method if len(uses) == 1 else self._as_layer
        write(call, function, self.roles(call, function))

    def roles(self, call: ast.Call, function: ast.FunctionDef) -> Roles:
        roles = {}
        parameters = [each.arg for each in function.args.args]
        for name, value in every_argument(call, parameters).items():
            if self._is_training(value):
                role = "training"
            else:
                role = "tensor" if names_in(value) & self.tensors else "config"
            roles[name] = (role, value)
        return roles

    def _as_method(self, call: ast.Call, function: ast.FunctionDef, roles: Roles) -> None:
        name = self._text.attribute(function.name)
        tensors = self.write_method(function, roles, name)
        source = self._source

        def write() -> str:
            parts = [
                "training" if roles[each][0] == "training" else source.code(roles[each][1])
                for each in tensors
            ]
            return f"self.{name}({', '.join(parts)})"

        source.replace(call, write)

    def write_method(
        self, function: ast.FunctionDef, roles: Roles, name: str, before: str = ""
    ) -> list[str]:
        config, tensors, training = _by_role(roles)
        for parameter in config:
            value = roles[parameter][1]
            self._hoist([value])
            self._text.config[parameter] = lambda value=value: self._source.code(value)  # type: ignore[misc]
        body = Body(self._text, tensors, training, self._helpers, self._classes)
        body.write(function.body)
        doc = docstring(self._source, function, 4, config)
        parameters = [
            ("training=False" if name == "call" else "training") if each in training else each
            for each in tensors
        ]
        if name == "call" and not training:
            parameters.append("training=False")
        self._text.methods.append(
            lambda: f"  def {name}(self, {', '.join(parameters)}):\n{doc}{before}{body.text()}"
        )
        return tensors

    def _as_layer(self, call: ast.Call, function: ast.FunctionDef, roles: Roles) -> None:
        source = self._source
        kind = "".join(part.capitalize() for part in function.name.strip("_").split("_"))
        config, tensors, _ = _by_role(roles)
        if kind not in self._classes:
            self._classes[kind] = layer_class(
                source, kind, function, roles, self._helpers, self._classes
            )
        values = [roles[each][1] for each in config]
        constants = [
            v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)
        ]
        attribute = self._text.attribute(constants[0] if constants else function.name)
        self._hoist(values)
        self._text.init.append(
            lambda: f"    self.{attribute} = {kind}({', '.join(map(source.code, values))})\n"
        )
        rest = [roles[each] for each in tensors]

        def write() -> str:
            parts = [
                "training=training" if role == "training" else source.code(v) for role, v in rest
            ]
            return f"self.{attribute}({', '.join(parts)})"

        source.replace(call, write)

    # Names.

    def contextualize(self, node: ast.AST, in_init: bool = False) -> None:
        """Replaces names of `config` by their code in `__init__`, or by attributes of the model."""
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
        if node.id in self._training and not in_init and node.id != "training":
            self._source.replace(node, "training")
        elif node.id in self.tensors or node.id in self._local:
            return
        elif node.id in self._text.config:
            self._mention(node, node.id, in_init)
        elif node.id in self._text.forbidden:
            self._source.problem(
                *(node, "keras-model-argument", f"the model uses {node.id} here"),
                "Use params['KEY'] with keys that the TPUEstimator's params have, and test the "
                "mode with `if mode == ...`, or migrate to the tf2 form",
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


def layer_class(
    source: Source,
    kind: str,
    function: ast.FunctionDef,
    roles: Roles,
    helpers: dict[str, ast.FunctionDef],
    classes: dict[str, Text],
) -> Text:
    config, tensors, training = _by_role(roles)
    text = ClassText(source, {each: (lambda each=each: each) for each in config})  # type: ignore[misc]
    body = Body(text, tensors, training, helpers, classes)
    body.write(function.body)
    named = "name=name" if "name" in config else ""
    doc = docstring(source, function, 2, config)
    parameters = ["training=False" if each in training else each for each in tensors]

    def write() -> str:
        stored = "".join(f"    self.{each} = {each}\n" for each in text.stored)
        return (
            f"class {kind}(tf.keras.layers.Layer):\n{doc}\n"
            f"  def __init__(self, {', '.join(config)}):\n    super().__init__({named})\n{stored}"
            f"{_joined(text.init)}\n  def call(self, {', '.join(parameters)}):\n{body.text()}"
            + "".join(f"\n{each()}" for each in text.methods)
        )

    return write


def _by_role(roles: Roles) -> tuple[list[str], list[str], list[str]]:
    """Returns the parameters of `__init__`, those of the call, and which of these are modes."""
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
    """Sorts calls in the order of execution: arguments before the call that takes them."""
    return (getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0)
