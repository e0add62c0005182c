"""Conversion to PyTorch files and back, without PyTorch: keys, bytes and refusals."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import (
    OTHERS,
    TPU_SLOTS,
    assert_same,
    convert_and_read,
    old_checkpoint,
    spec_of,
    tables_of,
)
from estimator_bridge import convert, errors
from estimator_bridge.cli import main
from estimator_bridge.convert.formats import torch_format

FILES = ("model", "optimizer", "variables")
STATES = {
    "Adagrad": {"accumulators": "momentum1"},
    "ProximalAdagrad": {"accumulators": "momentum1"},
    "Adam": {"momenta": "momentum1", "velocities": "exp_avg_sq"},
}


def stored(path: pathlib.Path) -> dict[str, Any]:
    """Reads a safetensors file as its specification says."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert header.pop("__metadata__")["format"] == "pt"
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32}
    tensors = {}
    for name, each in header.items():
        first, last = each["data_offsets"]
        values = np.frombuffer(data[begin + first : begin + last], types[each["dtype"]])
        tensors[name] = values.reshape(each["shape"])
    return tensors


def write(path: pathlib.Path, tensors: Mapping[str, Any]) -> str:
    """Writes a safetensors file as a PyTorch program does."""
    types = {"float32": "F32", "int64": "I64"}
    header, data = {}, b""
    for name, value in tensors.items():
        content = np.asarray(value)
        end = len(data) + content.nbytes
        header[name] = {
            "dtype": types[content.dtype.name],
            "shape": content.shape,
            "data_offsets": [len(data), end],
        }
        data += content.tobytes()
    text = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_format, "has_torch", lambda: False)


@pytest.mark.parametrize(
    "optimizer, form, hosts, strategy",
    [
        ("StochasticGradientDescent", "dict", 1, "div"),
        ("Adagrad", "columns", 5, "mod"),
        ("Adam", "dict", 5, "div"),
        ("Ftrl", "columns", 2, "mod"),
        ("AdagradMomentum", "dict", 5, "mod"),
        ("ProximalAdagrad", "dict", 2, "div"),
    ],
)
def test_a_round_trip_keeps_every_bit(
    optimizer: str, form: str, hosts: int, strategy: str, tmp_path: pathlib.Path
) -> None:
    """Tables are whole and in the order of ids in PyTorch, and come back as they were."""
    values, _ = tables_of(optimizer, form)
    # Two kinds of NaN, a negative zero, and a number below the normal ones.
    odd = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 1], np.uint32).view(np.float32)
    for value in values.values():
        value[1] = odd
    old = legacy_checkpoints.write(
        str(tmp_path / "old/model.ckpt-77"), values, OTHERS, hosts, strategy
    )
    spec = spec_of(optimizer, form, strategy)

    plan = convert.convert(old, str(tmp_path / "torch"), spec=spec, to="torch")

    files = {name: stored(tmp_path / "torch" / f"{name}.safetensors") for name in FILES}
    for variable, table in _tables(form).items():
        key = f"embedding_bags.{table}.weight"
        assert files["model"].pop(key).tobytes() == values[variable].tobytes()
        for slot, suffix in TPU_SLOTS[optimizer].items():
            name = STATES.get(optimizer, {}).get(slot, slot)
            state = files["optimizer"].pop(f"state.{key}.{table}.{name}")
            assert state.tobytes() == values[f"{variable}/{suffix}"].tobytes()
    assert_same(OTHERS, files.pop("variables"))
    assert files == {"model": {}, "optimizer": {}}
    assert (tmp_path / "torch/report.txt").read_text().splitlines() == plan.lines()

    # The files say the rest: neither the spec nor the names of variables are needed.
    back = convert_and_read(tmp_path / "torch", tmp_path / "back")
    assert back.keys() == {*values, *OTHERS}
    for name, value in {**values, **OTHERS}.items():
        assert back[name].tobytes() == value.tobytes(), name


def _tables(form: str) -> dict[str, str]:
    if form == "dict":
        return {"users": "users", "few": "few"}
    return {"dense_features/users_embedding/embedding_weights": "tbl_users", "both": "tbl_both"}


def test_slots_that_fbgemm_lacks_are_noted(tmp_path: pathlib.Path) -> None:
    """The plan names the tables whose optimizer has no counterpart; `no_tables` copies all."""
    old, values = old_checkpoint(tmp_path, "Ftrl")
    plan = convert.convert(old, str(tmp_path / "torch"), spec=spec_of("Ftrl", "dict"), to="torch")
    assert [each for each in plan.notes if "'few': FBGEMM has no Ftrl, so the slots keep" in each]

    back = convert_and_read(
        tmp_path / "torch", tmp_path / "back", no_tables=True, allow=["state.*"]
    )
    tables = {f"embedding_bags.{name}.weight": values[name] for name in ("users", "few")}
    assert_same({**tables, **OTHERS}, back)


@pytest.mark.parametrize("form", ["object", "sparsecore"])
def test_objects_go_to_pytorch_and_back(form: str, tmp_path: pathlib.Path) -> None:
    """Tables of objects, and stacks of SparseCores, are written as tables and come back."""
    old, values = old_checkpoint(tmp_path, "Adam")
    spec = spec_of("Adam", "dict")
    cores: Any = {"to_cores": 2, "samples": {"few": 4}} if form == "sparsecore" else {}
    convert.convert(old, str(tmp_path / "objects"), spec=spec, to=form, **cores)

    convert.convert(str(tmp_path / "objects"), str(tmp_path / "torch"), spec=spec, to="torch")

    model = stored(tmp_path / "torch/model.safetensors")
    assert_same({f"embedding_bags.{name}.weight": values[name] for name in ("users", "few")}, model)
    convert.convert(str(tmp_path / "torch"), str(tmp_path / "again"), spec=spec, to=form, **cores)
    assert_same(
        {**values, **OTHERS}, convert_and_read(tmp_path / "again", tmp_path / "back", spec=spec)
    )


def test_states_by_other_names(tmp_path: pathlib.Path) -> None:
    """The slots are found by the names of unsharded modules, of FBGEMM and of torch.optim."""
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    names = {
        "a": ["few.weight.momentum_1", "few.weight.momentum_2"],
        "b": ["embedding_bags.few.weight.exp_avg", "embedding_bags.few.weight.exp_avg_sq"],
        "c": ["embedding_bags.few.weight.few.momentum1", "few.weight.few.momentum2"],
    }
    names["a"] = [f"few.weight.{name}" for name in names["a"]]
    for case, (first, second) in names.items():
        path = write(
            tmp_path / case / "model.safetensors",
            {
                "embedding_bags.few.weight": table,
                f"state.{first}": table + 1,
                f"state.{second}": table + 2,
            },
        )
        back = convert_and_read(
            path, tmp_path / f"{case} back", global_step=1, tables={"few": "few"}
        )
        wanted = {"few": table, "few/Adam/m": table + 1, "few/Adam/v": table + 2}
        assert_same({**wanted, "global_step": np.int64(1)}, back)


def test_a_row_wise_state_is_named_and_can_be_left_out(tmp_path: pathlib.Path) -> None:
    """One number per row is no slot of TensorFlow; with --allow the slot starts anew."""
    values, _ = tables_of()
    tensors = {}
    for name in ("users", "few"):
        key = f"embedding_bags.{name}.weight"
        tensors[key] = values[name]
        tensors[f"state.{key}.{name}.momentum1"] = values[name][:, 0]
    path = write(tmp_path / "model.safetensors", tensors)
    options: Any = {"spec": spec_of(), "global_step": 1}
    with pytest.raises(errors.Unmatched) as caught:
        convert.convert(path, str(tmp_path / "a"), **options)
    rows = "state.embedding_bags.few.weight.few.momentum1: table 'few': it has one number per row"
    assert rows in str(caught.value)

    back = convert_and_read(path, tmp_path / "b", allow=["state.*"], **options)
    np.testing.assert_array_equal(back["users"], values["users"])
    np.testing.assert_array_equal(back["few/Adagrad"], np.full([3, 4], np.float32(0.25)))


def test_other_keys(tmp_path: pathlib.Path) -> None:
    """`root` and `rename` give tables other keys, and read them again."""
    old, values = old_checkpoint(tmp_path)
    renamed = "tower.embedding_bags.users.weight", "users.weight"
    options: Any = {"root": "tower", "spec": spec_of()}

    convert.convert(old, str(tmp_path / "torch"), to="torch", rename=dict([renamed]), **options)

    model = stored(tmp_path / "torch/model.safetensors")
    assert set(model) == {"users.weight", "tower.embedding_bags.few.weight"}
    slots = stored(tmp_path / "torch/optimizer.safetensors")
    assert "state.users.weight.users.momentum1" in slots
    assert_same(
        {**values, **OTHERS},
        convert_and_read(
            tmp_path / "torch", tmp_path / "back", rename=dict([renamed[::-1]]), **options
        ),
    )


def test_variables_that_files_cannot_hold_are_named(tmp_path: pathlib.Path) -> None:
    """Strings and slices of columns have no place, and --allow leaves them out."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("words", initializer=tf.constant(["a"]))
        tf.compat.v1.get_variable(
            "wide", [2, 4], partitioner=tf.compat.v1.fixed_size_partitioner(2, axis=1)
        )
        tall = tf.compat.v1.get_variable(
            "tall", [4, 2], partitioner=tf.compat.v1.fixed_size_partitioner(2)
        )
        session.run(tf.compat.v1.global_variables_initializer())
        whole = session.run(tf.concat(list(tall), 0))
        old = tf.compat.v1.train.Saver().save(session, str(tmp_path / "old"))
    options: Any = {"to": "torch", "no_tables": True}
    with pytest.raises(errors.Unmatched) as caught:
        convert.convert(old, str(tmp_path / "new"), **options)
    assert "words: safetensors files have no type string" in str(caught.value)
    assert "wide: its slices are not blocks of rows" in str(caught.value)

    convert.convert(old, str(tmp_path / "new"), allow=["words", "wide"], **options)

    assert_same({"tall": whole}, stored(tmp_path / "new/variables.safetensors"))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[:-1],
    "too long": lambda data: data + b"\0",
    "a huge header": lambda data: (1 << 60).to_bytes(8, "little") + data[8:],
    "no JSON": lambda data: data[:8] + b"[" + data[9:],
    "a negative dimension": lambda data: data.replace(b"[3, 4]", b"[-3,4]"),
    "a hole": lambda data: data.replace(b"[0, 48]", b"[1, 48]"),
    "a byte": lambda data: b"1",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named(damage: Any, tmp_path: pathlib.Path) -> None:
    """Nothing is allocated for a file whose header does not fit it."""
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = pathlib.Path(write(tmp_path / "model.safetensors", {"embedding_bags.few.weight": table}))
    assert damage(path.read_bytes()) != path.read_bytes()
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(errors.UnreadableCheckpoint, match=r"model\.safetensors"):
        convert.convert(str(path), str(tmp_path / "new"))


def test_a_state_dict_needs_pytorch(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(errors.InvalidInput, match="Install torch"):
        convert.convert(str(tmp_path / "model.pt"), str(tmp_path / "new"))


def test_a_directory_without_files_of_pytorch_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        errors.UnreadableCheckpoint, match=r"neither checkpoint\.pt nor one of model"
    ):
        convert.convert(str(tmp_path), str(tmp_path / "new"), from_form="torch")


def test_two_modules_with_a_table_of_one_name(tmp_path: pathlib.Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    keys = [f"{module}.embedding_bags.few.weight" for module in ("a", "b")]
    path = write(tmp_path / "model.safetensors", {keys[0]: table, keys[1]: table + 1})
    options: Any = {"global_step": 1, "tables": {"few": "few"}}
    with pytest.raises(errors.InvalidInput, match="Give the path of the module"):
        convert.convert(path, str(tmp_path / "new"), **options)

    convert.convert(path, str(tmp_path / "new"), root="b", **options)

    wanted = {"few": table + 1, keys[0]: table, "global_step": np.int64(1)}
    assert_same(wanted, legacy_checkpoints.read(str(tmp_path / "new")))


def test_the_command_goes_both_ways(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The notes tell what was not written and what keeps its axes; `inspect` reads the result."""
    old, values = old_checkpoint(tmp_path)
    new, back = str(tmp_path / "new"), str(tmp_path / "back")
    tables = ["--table", "users=users", "--table", "few=few"]
    assert main.main(["convert", old, new, "--to", "torch", *tables]) == 0
    out = capsys.readouterr().out
    assert "table 'users', parameters: users -> embedding_bags.users.weight  float32[13, 4]" in out
    assert "note: checkpoint.pt is not written, because PyTorch is not installed here" in out

    assert main.main(["inspect", new]) == 0
    assert "table users: [13, 4], Adagrad, whole" in capsys.readouterr().out
    assert main.main(["convert", new, back, "--from", "torch"]) == 0
    assert_same({**values, **OTHERS}, legacy_checkpoints.read(back))
