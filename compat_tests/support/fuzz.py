"""Damages programs, checkpoints, configs and batches at random, and lets the project read them.

    TF_USE_LEGACY_KERAS=1 python -m compat_tests.support.fuzz KIND SEED COUNT

KIND is a name in `KINDS`. Prints how many cases were accepted and how many were refused. The first
case that is neither (a traceback, an error of another class than the project's, a row with NaN or
infinity) raises an AssertionError with the seed of the case. Add this seed to `FOUND`, which quick
tests repeat.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.support import legacy_checkpoints, wrong_arguments
from compat_tests.support.paths import SUITE
from estimator_bridge.cli import main
from estimator_bridge.errors import EngineError
from tf2_engine import SGD, Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding

Chance = np.random.Generator

PROGRAMS = ("tiny", "clicks", "census", "dicts", "houses", "jobs")
READERS = (
    ("audit",),
    ("audit", "--target", "v5p"),
    ("migrate", "--check"),
    ("migrate", "--form", "tf2", "--check"),
    ("migrate", "--form", "keras", "--check"),
)
"""The commands that read a source."""
TOKENS = (
    *(b"(", b")", b"[", b"]", b":", b",", b"=", b"*", b"**", b"\n", b"    ", b"\t", b"'", b'"""'),
    *(b"lambda ", b"def ", b"class ", b"import ", b"from . import *\n", b"async ", b"yield "),
    *(b"\\\n", b"None", b"-1", b"1e999", b"{**", b"f'{x!r}'", b":=", b"\xff", b"\x00", b"#"),
    *(b"return ", b";"),
)
LINES = (b"pass\n", b"import os\n", b"x = None\n", b"return 3\n", b"raise ValueError\n", b"\n")


def damaged_lines(data: bytes, chance: Chance) -> bytes:
    """Deletes, repeats, copies or replaces some lines. The source may still be valid Python."""
    lines = data.splitlines(keepends=True)
    for _ in range(int(chance.integers(1, 4))):
        where, other = chance.integers(0, len(lines), 2).tolist()
        line = lines[where]
        indent = line[: len(line) - len(line.lstrip())]
        new = indent + LINES[int(chance.integers(len(LINES)))]
        lines[where : where + 1] = ([], [line] * 2, [new], [line, lines[other]])[
            int(chance.integers(4))
        ]
    return b"".join(lines)


def damaged(data: bytes, chance: Chance, pieces: tuple[bytes, ...]) -> bytes:
    for _ in range(int(chance.integers(1, 6))):
        first, last = sorted(chance.integers(0, len(data) + 1, 2).tolist())
        last = min(last, first + int(chance.integers(1, 400)))
        part, piece = data[first:last], pieces[int(chance.integers(len(pieces)))]
        middle = (b"", part * 2, piece, part[::-1])[int(chance.integers(4))]
        data = data[:first] + middle + data[last:]
    return data


def fuzz_sources(chance: Chance, place: pathlib.Path) -> str:
    name = PROGRAMS[int(chance.integers(len(PROGRAMS)))]
    program = place / "program.py"
    source = (SUITE / "programs" / f"{name}.py").read_bytes()
    in_lines = chance.random() < 0.7
    source = damaged_lines(source, chance) if in_lines else damaged(source, chance, TOKENS)
    program.write_bytes(source)
    command = READERS[int(chance.integers(len(READERS)))]
    return run([*command, str(program)])


def fuzz_checkpoints(chance: Chance, place: pathlib.Path) -> str:
    """Damages one file of a checkpoint, and runs a command that reads the checkpoint."""
    folder = place / "model"
    folder.mkdir()
    write_checkpoint(folder)
    files = sorted(folder.iterdir())
    path = files[int(chance.integers(len(files)))]
    noise = tuple(chance.bytes(size) for size in (1, 2, 4, 8, 64))
    path.write_bytes(damaged(path.read_bytes(), chance, noise))
    commands = (
        ["inspect", str(folder)],
        ["inspect", "--json", str(folder)],
        ["audit", "--model_dir", str(folder)],
        ["convert", str(folder), str(place / "new"), "--allow", "*"],
    )
    return run(commands[int(chance.integers(len(commands)))])


def write_checkpoint(folder: pathlib.Path) -> None:
    """Writes a table, its slot and a variable."""
    table = "input_layer/words_embedding/embedding_weights"
    shapes = {table: (9, 4), f"{table}/Adagrad": (9, 4), "dense/kernel": (4, 1)}
    values = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    legacy_checkpoints.write_whole(
        str(folder / "model.ckpt-3"), {**values, "global_step": np.int64(3)}
    )
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')


def run(arguments: list[str]) -> str:
    """Runs a command; returns "taken" or "refused"."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main.main(arguments)
    stderr = err.getvalue()
    # `migrate` ends with 3 if it leaves parts of the program to a person.
    assert status in ((0, 2, 3) if arguments[0] == "migrate" else (0, 2)), (arguments, status)
    assert "Traceback" not in stderr, stderr
    assert "internal error" not in stderr, stderr
    assert status != 2 or stderr.startswith("estimator-bridge: "), stderr
    return "refused" if status == 2 else "taken"


def fuzz_configs(chance: Chance, place: pathlib.Path) -> str:
    """Calls a constructor with several wrong arguments at once."""
    constructors = wrong_arguments.constructors()
    constructor, valid = constructors[str(chance.choice(list(constructors)))]
    names = list(wrong_arguments.arguments_of(constructor))
    chosen = chance.choice(names, min(len(names), int(chance.integers(1, 4))), replace=False)
    wrong = {
        str(name): wrong_arguments.WRONG[str(chance.choice(list(wrong_arguments.WRONG)))]
        for name in chosen
    }
    try:
        constructor(**{**valid, **wrong})
    except EngineError:
        return "refused"
    return "taken"


class _Engine:
    """An engine for the batches of `fuzz_batches`."""

    def __init__(self) -> None:
        self.embedding = TPUEmbedding(
            EngineSpec(
                (TableSpec("a", 7, 2, "sum", Adagrad(0.1)), TableSpec("b", 5, 3, "mean", SGD(0.1))),
                (FeatureSpec("x", "a"), FeatureSpec("y", "b"), FeatureSpec("z", "b", 2)),
            )
        )
        self.embedding.build_for([(4,), (4,), (4, 2)])


_engines: list[_Engine] = []


def fuzz_batches(chance: Chance, place: pathlib.Path) -> str:
    """Runs a step with random inputs. Afterwards a correct step must look up finite rows."""
    if not _engines:
        _engines.append(_Engine())
    embedding = _engines[0].embedding
    right = {
        "x": tf.constant([1, 2, 3, 4]),
        "y": tf.constant([1, 2, 3, 4]),
        "z": tf.sparse.from_dense([[1, 2], [1, 0], [2, 2], [1, 1]]),
    }
    outcome = "taken"
    try:
        with embedding.step():
            features = {
                name: _ids(chance) if chance.random() < 0.3 else values
                for name, values in right.items()
            }
            if chance.random() < 0.1:
                features.pop("x")
            weights = dict.fromkeys(features)
            if chance.random() < 0.3:
                weights["y"] = _ids(chance)
            embedding.enqueue(features, weights)
            activations = embedding.dequeue()
            gradients = dict(activations)
            if chance.random() < 0.2:
                gradients["x"] = _ids(chance)
            embedding.apply_gradients(gradients)
    except (EngineError, tf.errors.InvalidArgumentError):
        outcome = "refused"
    embedding.enqueue(right)
    looked_up = embedding.dequeue()
    embedding.apply_gradients({name: tf.zeros_like(value) for name, value in looked_up.items()})
    assert all(np.isfinite(value).all() for value in looked_up.values()), "a row is not finite"
    return outcome


def _ids(chance: Chance) -> Any:
    """Creates random ids or weights of a random kind."""
    dtype = (np.int64, np.int32, np.float32, np.int8, np.float64)[int(chance.integers(5))]
    dtype = np.int64 if chance.random() < 0.6 else dtype
    largest = 5 if chance.random() < 0.8 else 9
    shape = ((4,), (4, 2), (3,), (), (4, 0), (4, 2, 2))[
        int(chance.choice(6, p=[0.5, 0.2, *[0.075] * 4]))
    ]
    values = chance.integers(0 if chance.random() < 0.9 else -1, largest, shape).astype(dtype)
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: tf.constant(values),
        lambda: tf.sparse.from_dense(values),
        lambda: tf.RaggedTensor.from_row_lengths(values.reshape(-1), [values.size, 0, 0, 0]),
        lambda: tf.SparseTensor([[9, 9]], np.ones(1, dtype), [4, 2]),
        lambda: values,
        lambda: "words",
    )
    return kinds[int(chance.choice(6, p=[0.4, 0.2, 0.2, 0.05, 0.1, 0.05]))]()


KINDS: dict[str, Callable[[Chance, pathlib.Path], str]] = {
    "sources": fuzz_sources,
    "checkpoints": fuzz_checkpoints,
    "configs": fuzz_configs,
    "batches": fuzz_batches,
}
FOUND: dict[str, tuple[int, ...]] = {
    "sources": (12296324,),
    "checkpoints": (),
    "configs": (),
    "batches": (),
}
"""The seeds of cases that were once neither accepted nor refused; see also `odd_sources`."""


def case(kind: str, seed: int) -> str:
    """Runs the case of a seed, and returns "taken" or "refused"."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        return KINDS[kind](np.random.default_rng(seed), place)
    except Exception as error:
        raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(place)


def main_(kind: str, seed: int, count: int) -> None:
    outcomes = collections.Counter(case(kind, number) for number in range(seed, seed + count))
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main_(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
