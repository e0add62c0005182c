"""Conversion for SparseCores and back: no number is lost, in any layout."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import (
    END,
    OPTIMIZERS,
    OTHERS,
    SPARSE_CORE_SLOTS,
    TABLES,
    TPU_SLOTS,
    assert_same,
    old_checkpoint,
    spec_of,
    tables_of,
)
from compat_tests.support.legacy_specs import OURS
from compat_tests.support.sparsecore_tables import random_sparse_cores, random_tables, stacked
from estimator_bridge import convert, errors
from estimator_bridge.cli import main
from tf2_engine import sparsecore_layout
from tf2_engine.sparsecore_layout import SparseCores, StackableTable, stacks_of, table_layouts

LAYOUTS = f"embedding/_sparse_core_table_layouts{END}"


@dataclasses.dataclass(frozen=True)
class Program:
    """A legacy program's spec, its tables as SparseCores stack them, and all values of the tables.

    `kinds` maps each table to its optimizer, and `values` to a dict from slots to values, where ""
    means the table itself.
    """

    spec: Any
    tables: tuple[StackableTable, ...]
    kinds: Mapping[str, str]
    values: Mapping[str, Mapping[str, Any]]

    @property
    def samples(self) -> dict[str, int]:
        return {table.name: table.samples for table in self.tables if table.samples}

    def by_name(self) -> dict[str, Any]:
        """Maps names in a legacy checkpoint to values."""
        return {
            f"{table}/{TPU_SLOTS[self.kinds[table]][part]}" if part else table: value
            for table, parts in self.values.items()
            for part, value in parts.items()
        }

    def by_object(self) -> dict[str, Any]:
        """Maps keys below a TPUEmbedding to values."""
        return {
            f"{table}.S{part}" if part else table: value
            for table, parts in self.values.items()
            for part, value in parts.items()
        }


def random_program(rng: np.random.Generator, strategy: str = "div") -> Program:
    """Creates 1 to 9 tables, each with one of two optimizers, and random values."""
    tables = random_tables(rng)
    chosen = rng.permutation(list(SPARSE_CORE_SLOTS))[:2].tolist()
    kinds = {table.name: chosen["ab".index(str(table.group))] for table in tables}
    spec = OURS.EmbeddingConfigSpec(
        table_to_config_dict={
            table.name: OURS.TableConfig(
                table.rows, table.dim, optimization_parameters=OPTIMIZERS[kinds[table.name]]
            )
            for table in tables
        },
        feature_to_config_dict={
            table.name: OURS.FeatureConfig(table_id=table.name) for table in tables
        },
        optimization_parameters=OPTIMIZERS["Adagrad"],
        partition_strategy=strategy,
    )
    tables = [
        dataclasses.replace(table, samples=64 * (number == 0), features=int(number == 0))
        for number, table in enumerate(tables)
    ]
    values = {
        table.name: {
            part: rng.normal(size=(table.rows, table.dim)).astype(np.float32)
            for part in ("", *SPARSE_CORE_SLOTS[kinds[table.name]])
        }
        for table in tables
    }
    return Program(spec, tuple(tables), kinds, values)


@pytest.mark.parametrize(
    "seeds",
    [
        range(2),
        pytest.param(range(2, 100), marks=pytest.mark.full),
        pytest.param(range(100, 500), marks=pytest.mark.soak),
    ],
)
def test_generated_layouts(seeds: range, tmp_path: pathlib.Path) -> None:
    """A chain of conversions between names, SparseCores and objects keeps every bit.

    On the way each stack is what its layout says, by whichever way it was made.
    """
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        round_trip(np.random.default_rng(seed), tmp_path / str(seed))


def round_trip(rng: np.random.Generator, folder: pathlib.Path) -> None:
    """Converts a random program's checkpoint there and back."""
    hosts, strategy = int(rng.integers(1, 6)), ("div", "mod")[rng.integers(2)]
    program = random_program(rng, strategy)
    one, other = random_sparse_cores(rng), random_sparse_cores(rng)
    old = legacy_checkpoints.write(str(folder / "m"), program.by_name(), OTHERS, hosts, strategy)
    to = functools.partial(converted, program.spec, folder, samples=program.samples)

    assert_stacks(program, one, to(old, "one", one))
    by_detour = to(folder / "one", "other", other)
    assert_stacks(program, other, by_detour)
    objects = to(folder / "other", "objects")
    assert_same(
        {f"embedding/{key}{END}": value for key, value in program.by_object().items()},
        {key: value for key, value in objects.items() if key.startswith("embedding/")},
    )
    assert_same(numbers(by_detour), numbers(to(folder / "objects", "again", other)))
    convert.convert(str(folder / "again"), str(folder / "names"), spec=program.spec)
    names = legacy_checkpoints.read(str(folder / "names"))
    for name in program.by_name():
        names[name] = legacy_checkpoints.by_id(names[name], 1, strategy)
    assert_same({**program.by_name(), **OTHERS}, names)


def converted(
    spec: Any,
    folder: pathlib.Path,
    old: pathlib.Path | str,
    name: str,
    sparse_cores: SparseCores | None = None,
    samples: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Converts to objects, or for SparseCores; returns all tensors."""
    layout: dict[str, Any] = {"to": "object"}
    if sparse_cores is not None:
        cores, per_core = sparse_cores.cores, sparse_cores.per_core
        layout = {"to": "sparsecore", "to_cores": cores, "to_sparse_cores": per_core}
        layout["samples"] = samples
    convert.convert(str(old), str(folder / name), spec=spec, **layout)
    return legacy_checkpoints.read(str(folder / name))


def numbers(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors without the object graph, which depends on the way."""
    return {key: value for key, value in tensors.items() if not key.startswith("_CHECKPOINT")}


def assert_stacks(program: Program, sparse_cores: SparseCores, tensors: Mapping[str, Any]) -> None:
    """Checks all tensors below the TPUEmbedding against the layout of the program's tables."""
    layouts = table_layouts(program.tables, sparse_cores)
    wanted: dict[str, Any] = {LAYOUTS: sparsecore_layout.serialized(layouts.values())}
    for name, stack in stacks_of(layouts.values()).items():
        for slot, initial in {"": 0.0, **SPARSE_CORE_SLOTS[program.kinds[stack[0].table]]}.items():
            values = {each.table: program.values[each.table][slot] for each in stack}
            key = f"embedding/{name}{f'.S{slot}' if slot else ''}{END}"
            wanted[key] = stacked(stack, values, initial)
    assert_same(wanted, {key: tensors[key] for key in tensors if key.startswith("embedding/")})


def test_memory_does_not_decide(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of a few rows the result is the same as in one piece."""
    program = random_program(np.random.default_rng(3))
    old = legacy_checkpoints.write(str(tmp_path / "m"), program.by_name(), OTHERS)
    whole = converted(program.spec, tmp_path, old, "whole", SparseCores(2, 4))
    monkeypatch.setattr("estimator_bridge.convert.moves.CHUNK", 1024)
    assert_same(whole, converted(program.spec, tmp_path, old, "parts", SparseCores(2, 4)))
    assert_same(
        converted(program.spec, tmp_path, tmp_path / "whole", "a"),
        converted(program.spec, tmp_path, tmp_path / "parts", "b"),
    )


def test_without_a_spec(tmp_path: pathlib.Path) -> None:
    """Tables are found by their slots, and a note says what is assumed of their optimizers."""
    old, values = old_checkpoint(tmp_path)
    tables = {name: variable for name, (variable, _) in TABLES["dict"].items()}

    plan = convert.convert(old, str(tmp_path / "new"), to="sparsecore", tables=tables)
    convert.convert(str(tmp_path / "new"), str(tmp_path / "back"))

    assert any("assumed to have the same settings" in note for note in plan.notes)
    assert any("restore after its `build()`" in note for note in plan.notes)
    assert_same({**values, **OTHERS}, legacy_checkpoints.read(str(tmp_path / "back")))


def test_inspect_and_the_command(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`convert` and `inspect` have the layout; rows of padding that were trained are counted."""
    values, _ = tables_of()
    old, new = legacy_checkpoints.write(str(tmp_path / "m"), values, OTHERS), str(tmp_path / "new")
    arguments = ["--to=sparsecore", "--to_cores=2", "--to_sparse_cores=4", "--samples=few=16"]
    tables = [text for name in TABLES["dict"] for text in ("--table", f"{name}={name}")]
    assert main.main(["convert", old, new, *tables, *arguments]) == 0
    assert "stack 'few_users', accumulators" in capsys.readouterr().out
    assert main.main(["inspect", new]) == 0
    text = capsys.readouterr().out
    assert "sparsecore checkpoint, step 77" in text
    assert "table users: [13, 4], Adagrad, stack 'few_users' on 2 × 4 SparseCores" in text
    assert "row 0 on SparseCore 4; in each shard rows 8 to 15 of 16, padded to [64, 8]" in text
    assert "silently resets all slots" in text
    assert "trained" not in text

    tensors = legacy_checkpoints.read(new)
    layouts = sparsecore_layout.parsed(tensors[LAYOUTS])
    assert layouts["few"].samples_per_sparse_core == 16 // 4
    tensors[f"embedding/few_users.Saccumulators{END}"][layouts["few"].stored(np.array([5]))] += 1
    report = convert.inspect(rewritten(tensors, {}, str(tmp_path / "trained")), initial=new)
    assert report["tables"][0]["sparse_cores"]["rotation"] == 0
    assert [table["rows_touched"] for table in report["tables"]] == [0, 0]
    assert "table 'few': 1 row(s) of its padding were trained" in report["notes"][1]


@pytest.mark.parametrize("optimizer", [n for n in OPTIMIZERS if n not in SPARSE_CORE_SLOTS])
def test_optimizers_without_a_counterpart(optimizer: str, tmp_path: pathlib.Path) -> None:
    """Each table whose optimizer SparseCores do not have is refused by name, before writing."""
    old, _ = old_checkpoint(tmp_path, optimizer)
    with pytest.raises(errors.Unmatched, match="table 'users': SparseCores have no") as raised:
        convert.convert(
            old, str(tmp_path / "new"), spec=spec_of(optimizer, "dict"), to="sparsecore"
        )
    assert "table 'few'" in str(raised.value)
    assert not (tmp_path / "new").exists()


def test_layouts_of_a_damaged_file(tmp_path: pathlib.Path) -> None:
    """Layouts that cannot be, or do not fit the stacks, are an error that names the checkpoint."""
    old, _ = old_checkpoint(tmp_path)
    spec = spec_of()
    converted(spec, tmp_path, old, "new", SparseCores(1, 4))
    good = legacy_checkpoints.read(str(tmp_path / "new"))
    layouts = sparsecore_layout.parsed(good[LAYOUTS])
    for number, data in enumerate(
        [b"", b"\xff", *map(sparsecore_layout.serialized, bad_layouts(layouts))]
    ):
        path = rewritten(good, {LAYOUTS: data}, str(tmp_path / f"bad{number}"))
        with pytest.raises(ValueError, match=r"layout|must be float32"):
            convert.convert(path, str(tmp_path / "never"), tables={"users": "users"})


def bad_layouts(layouts: Mapping[str, Any]) -> list[Any]:
    """Returns the layouts of both tables with one number, or name, that cannot be."""
    users = layouts["users"]
    changes = [{"row_offset": 1}, {"rotation": 4}, {"padded_rows": 33}, {"rows": 33}, {"dim": 9}]
    changes += [{"stack_rows": 2**40}, {"padded_dim": 16}, {"stack": ""}, {"row_offset": -1}]
    return [[layouts["few"], dataclasses.replace(users, **change)] for change in changes]


def rewritten(tensors: Mapping[str, Any], changes: Mapping[str, bytes], path: str) -> str:
    """Writes tensors, some of them changed, as they are; returns the path."""
    values = {**tensors, **changes}
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.constant(value) for value in values.values()],
    )
    return path
