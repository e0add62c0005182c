"""The map of a conversion: where each tensor of the new checkpoint comes from."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.convert import object_graph, variable_names
from estimator_bridge.convert.bundle import Reader, Tensor
from estimator_bridge.convert.contents import (
    GLOBAL_STEP,
    NAMES,
    OBJECT,
    VARIABLES,
    Contents,
    Found,
    Options,
    shapes_of,
)
from estimator_bridge.convert.layout import Layout
from estimator_bridge.convert.object_graph import Path
from estimator_bridge.convert.template import Template
from estimator_bridge.convert.variable_names import KnownTable
from tf2_engine import sharding
from tf2_engine.tables import PARAMETERS


@dataclasses.dataclass(frozen=True)
class Move:
    """A tensor of the new checkpoint.

    Attributes:
        target, source: the names; without a source it is filled with `fill`.
        what: how messages name it.
        path: its object, in an object checkpoint.
        stored, placed: how the rows of a table lie in the old and the new checkpoint; None copies
            a tensor as it is.
        kept: whether the source is in the checkpoint that the new one is to be like.
    """

    target: str
    source: str | None
    what: str
    shape: tuple[int, ...]
    dtype: Any
    path: Path | None = None
    stored: Layout | None = None
    placed: Layout | None = None
    fill: float = 0.0
    kept: bool = False

    def __str__(self) -> str:
        size = f"{self.dtype.name}[{', '.join(str(n) for n in self.shape)}]"
        source = self.source if self.source is not None else f"filled with {self.fill}"
        rows = f"  ({self.stored} -> {self.placed})" if self.stored and self.placed else ""
        return f"{self.what}: {source} -> {self.target}  {size}{rows}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A conversion.

    Attributes:
        to: the form of the new checkpoint, "names" or "object".
        moves: one for each tensor, tables first.
        left_out: tensors without a counterpart that the user allowed, and why they have none.
        step: the global step, None if there is none.
        root: the object to which the tables belong, in an object checkpoint.
        graph: the object graph, serialised; None if it is to be made.
        notes: what was taken for granted, a line each.
    """

    to: str
    moves: tuple[Move, ...]
    left_out: tuple[tuple[str, str], ...]
    step: int | None
    root: Path
    graph: bytes | None = None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the map, a line for each tensor, then what to know of it."""
        return [
            *(str(move) for move in self.moves),
            *(f"left out: {name} ({why})" for name, why in self.left_out),
            *(f"note: {note}." for note in self.notes),
        ]


def make(reader: Reader, options: Options, like: Reader | None = None) -> Plan:
    """Returns the map of a conversion.

    Args:
        like: what the new checkpoint is to be like; see `conversion.convert`.

    Raises:
        Unmatched: something has no counterpart and is not allowed to; the message lists it.
        InvalidInput: the options do not fit the checkpoint.
    """
    old = Contents(reader, options)
    to = options.to or (OBJECT if old.form == NAMES else NAMES)
    template = Template(like, options) if to == OBJECT and like is not None else None
    _check_forms(old.form, to, options)
    old.settle_layout()
    unmatched = [*old.unmatched, *old.strays()]
    root: Path = tuple((options.root or "embedding").split("/")) if to == OBJECT else ()
    moves: list[Move] = []
    for table in old.tables:
        if template is None:
            moves += _table_moves(table, old, to, root, options, like)
        else:
            moves += _template_moves(table, old, template, unmatched)
    names = {} if to != NAMES or like is None else shapes_of(like)
    step = old.step(reader)
    if step is None and to == NAMES:
        unmatched.append((GLOBAL_STEP, "an estimator needs it; give `global_step`"))
    for name, variable in old.others():
        if template is not None:
            moves += _into_template(old, name, variable, template, unmatched)
            continue
        variable = variable or old.name_like(name, names)
        if variable is None:
            unmatched.append((name, "no variable of a name-based checkpoint is known for it"))
            continue
        if variable == GLOBAL_STEP and options.global_step is not None:
            continue
        moves.append(_dense(old.tensors[name], options.rename.get(variable, variable), to))
    doubtful = list(old.doubtful())
    allowed = _allowed([*unmatched, *doubtful], options.allow)
    left_out = tuple(each for each in allowed if each not in doubtful)
    notes = (f"{name!r} looks like a table and is carried as it is" for name, _ in doubtful)
    targets = [move.target for move in moves]
    twice = sorted({name for name in targets if targets.count(name) > 1})
    if twice:
        raise errors.InvalidInput(f"{twice} would be written twice. Change `tables` or `rename`.")
    graph = None
    if template is not None:
        graph = template.graph
        moves += [_kept(tensor) for tensor in template.others(set(targets))]
    return Plan(to, tuple(moves), left_out, step, root, graph, (*old.notes, *notes))


def _template_moves(
    table: Found, old: Contents, template: Template, unmatched: list[tuple[str, str]]
) -> Iterator[Move]:
    """Yields where a table goes; what the old checkpoint lacks stays as the template has it."""
    parameters = table.parts[PARAMETERS]
    assert parameters is not None
    shape = old.tensors[parameters].shape
    for part, source in table.parts.items():
        target = template.place_of_part(table, part, shape)
        if target is None and source is not None:
            what = f"the table {table.known.name!r}" if part == PARAMETERS else f"a slot {part!r}"
            unmatched.append((source, f"`like` has no place for {what}"))
        if target is None or source is None:
            continue
        yield Move(
            target=target,
            source=source,
            what=f"table {table.known.name!r}, {part}",
            shape=shape,
            dtype=tf.float32,
            stored=old.layout(shape[0]),
            placed=Layout(shape[0]),
        )


def _into_template(
    old: Contents,
    name: str,
    variable: str | None,
    template: Template,
    unmatched: list[tuple[str, str]],
) -> Iterator[Move]:
    """Yields where a variable goes."""
    tensor = old.tensors[name]
    if variable is None:
        target = template.place_of_object(tensor, old.name_of(name))
    else:
        target = template.place_of_variable(old.options.rename.get(variable, variable), tensor)
    if target is None:
        why = "`like` has no variable of its name and shape; --rename NAME=PATH says which"
        unmatched.append((name, why))
        return
    yield dataclasses.replace(_kept(tensor), target=target, what="variable", kept=False)


def _kept(tensor: Tensor) -> Move:
    """Returns a tensor of the template that stays as it is."""
    return Move(
        target=tensor.name,
        source=tensor.name,
        what="as in `like`",
        shape=tensor.shape,
        dtype=tensor.dtype,
        kept=True,
    )


def _check_forms(old: str, to: str, options: Options) -> None:
    if to not in (NAMES, OBJECT):
        raise errors.InvalidInput(f"`to` must be 'names' or 'object', got {to!r}.")
    if old == OBJECT and to == OBJECT and options.like is None:
        raise errors.InvalidInput(
            "The old checkpoint is an object checkpoint already, which any number of hosts reads. "
            "For other objects, give a checkpoint that has them (`like`)."
        )
    if to == OBJECT and (options.to_partition == "mod" or options.to_hosts != 1):
        raise errors.InvalidInput(
            "`to_partition` and `to_hosts` are for name-based checkpoints; an object checkpoint "
            "has its rows in the order of the ids, and any number of hosts reads it."
        )
    for name, value in (
        ("from_partition", options.from_partition),
        ("to_partition", options.to_partition),
    ):
        if value not in (None, *sharding.STRATEGIES):
            raise errors.InvalidInput(f"`{name}` must be 'div' or 'mod', got {value!r}.")
    for name, hosts in (("from_hosts", options.from_hosts), ("to_hosts", options.to_hosts)):
        if hosts is not None and hosts < 1:
            raise errors.InvalidInput(f"`{name}` must be positive, got {hosts}.")
    if options.slots not in ("tpu", "cpu"):
        raise errors.InvalidInput(f"`slots` must be 'tpu' or 'cpu', got {options.slots!r}.")


def _table_moves(
    table: Found, old: Contents, to: str, root: Path, options: Options, like: Reader | None
) -> Iterator[Move]:
    name = table.known.name
    parameters = table.parts[PARAMETERS]
    assert parameters is not None
    shape = old.tensors[parameters].shape
    stored = old.layout(shape[0])
    strategy = options.to_partition or str(
        getattr(options.spec, "partition_strategy", stored.strategy)
    )
    placed = Layout(shape[0], options.to_hosts, strategy) if to == NAMES else Layout(shape[0])
    targets: dict[str, str] = {}
    if to == NAMES:
        variable = (
            parameters if old.form == NAMES else _new_variable(table.known, shape, options, like)
        )
        slots = variable_names.slot_variables(table.kind, variable, options.slots)
        targets = {PARAMETERS: variable, **slots}
    for part, source in table.parts.items():
        path = None
        if to == OBJECT:
            path = (*root, name if part == PARAMETERS else f"{name}/{part}")
        fill = 0.0
        if source is None:
            if part not in table.known.slot_values:
                raise errors.InvalidInput(
                    f"Table {name!r} lacks the slot {part!r}; what it starts with is known from a "
                    "spec alone. Give it."
                )
            fill = table.known.slot_values[part]
        yield Move(
            target=object_graph.key_of(path) if path else targets[part],
            source=source,
            what=f"table {name!r}, {part}",
            shape=shape,
            dtype=tf.float32,
            path=path,
            stored=stored,
            placed=placed,
            fill=fill,
        )


def _new_variable(
    table: KnownTable, shape: tuple[int, ...], options: Options, like: Reader | None
) -> str:
    """Returns what the variable of a table is called in a name-based checkpoint."""
    if table.name in options.tables:
        return options.tables[table.name]
    own = variable_names.own_names(table)
    if like is not None:
        shapes = {n: s for n, s in shapes_of(like).items() if s == shape}
        found = variable_names.variable_of(table, shapes)
        if found is None:
            raise errors.Unmatched(
                f"Table {table.name!r}: {like.prefix} has no variable of it. Say which with "
                f"--table {table.name}=VARIABLE."
            )
        return found
    if not table.scoped and len(own) == 1:
        return own[0]
    if options.scope is None or len(own) > 1:
        raise errors.InvalidInput(
            f"Table {table.name!r}: its variable may be in a scope that the model gave it, as in "
            f"dense_features/{own[-1]}. With a spec, give the `scope`, or a checkpoint to take it "
            f"from (`like`), or --table {table.name}=VARIABLE."
        )
    return f"{options.scope}/{own[0]}" if options.scope else own[0]


def _dense(tensor: Tensor, variable: str, to: str) -> Move:
    path = None
    if to == OBJECT:
        path = (GLOBAL_STEP,) if variable == GLOBAL_STEP else (VARIABLES, variable)
    return Move(
        target=object_graph.key_of(path) if path else variable,
        source=tensor.name,
        what="variable",
        shape=tensor.shape,
        dtype=tensor.dtype,
        path=path,
    )


def _allowed(unmatched: Iterable[tuple[str, str]], allow: Iterable[str]) -> list[tuple[str, str]]:
    patterns = tuple(allow)
    left_out: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for name, why in unmatched:
        fits = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        (left_out if fits else refused).append((name, why))
    if refused:
        lines = "\n".join(f"  {name}: {why}" for name, why in refused)
        raise errors.Unmatched(
            f"No counterpart was found for\n{lines}\nAllow it by name (--allow NAME), which leaves "
            "it out, fills a missing slot with what it starts with, and carries as it is what only "
            "looks like a table; or say what it is with --table or --rename."
        )
    return left_out
