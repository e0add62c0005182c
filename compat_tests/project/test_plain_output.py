"""Names from other people's checkpoints and programs are never output as escape sequences."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import logging
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compat_tests.support import legacy_checkpoints
from compat_tests.support.paths import ROOT
from compat_tests.verify.test_verify_command import run_verify
from compat_tests.verify.test_verify_page import NAMES
from estimator_bridge import errors
from estimator_bridge.cli import main, output
from estimator_bridge.run import install
from estimator_bridge.verification.watch.watcher import WatchReport
from tf2_engine import errors as engine_errors
from tf2_engine import log, plain_text

FORGED = "FORGED LINE"
NAME = "".join(name for name in NAMES if name.isascii() or "\u202e" in name)
NAME += f"\x00\x1b[2Jn\n{FORGED}\r\n{FORGED}\u2028{FORGED} n"
"""The name of everything, where the place allows it."""
FILE = NAME.translate({0: None, ord("/"): None})
"""The name of files, which may hold line breaks, too."""
PROGRAM = """
import tensorflow as tf
t = tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec(
    feature_columns=[], optimization_parameters=
    tf.compat.v1.tpu.experimental.AdagradParameters(0.1), clipping_limit="{name}")  # {name}
tf.compat.v1.estimator.tpu.TPUEstimator(model_fn="{name}", use_tpu=True, train_batch_size="{name}")
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A checkpoint, a program and a folder whose names, and the names in them, are hostile."""
    folder = tmp_path_factory.mktemp("hostile") / FILE
    folder.mkdir()
    checkpoint = str(folder / "model.ckpt-1")
    write_checkpoint(checkpoint)
    program = folder / f"{FILE}.py"
    text = PROGRAM.format(name=NAME.translate({0: None, 10: "\\n", 13: "\\r"}))
    program.write_text(text, encoding="utf-8", errors="surrogatepass")
    quiet = folder / f"{FILE}-quiet.py"
    quiet.write_text("import sys\n")
    return {
        "folder": str(folder),
        "checkpoint": checkpoint,
        "program": str(program),
        "quiet": str(quiet),
    }


def write_checkpoint(path: str) -> None:
    """Writes a table, its slot and a variable of hostile names, which TensorFlow would refuse."""
    of_table = f"input_layer/{NAME}_embedding/embedding_weights"
    tables = dict.fromkeys((of_table, f"{of_table}/Adagrad"), np.ones([4, 2], np.float32))
    others = {f"{NAME}/kernel": np.ones([3], np.float32), "global_step": np.int64(1)}
    legacy_checkpoints.write_whole(path, {**tables, **others})


CALLS: dict[str, list[list[str]]] = {
    "audit": [
        ["{program}"],
        ["--json", "{program}"],
        ["--model_dir", "{checkpoint}"],
        ["--json", "--model_dir", "{checkpoint}"],
        ["--spec", "{folder}:x"],
        ["--target", "v5p", "{program}"],
        ["{folder}/none"],
    ],
    "build-native": [],
    "completion": [],
    "convert": [
        ["{checkpoint}", "{folder}/new"],
        ["{checkpoint}", "{folder}/names", "--to", "names", "--dry_run", "--allow", "*"],
        ["{folder}/none", "{folder}/new"],
        ["{checkpoint}", "{folder}/new", "--table", "{folder}"],
        ["{checkpoint}", "{folder}/new", "--table", "a={folder}"],
    ],
    "inspect": [["{checkpoint}"], ["--json", "{checkpoint}"], ["{folder}/none"]],
    "migrate": [
        ["--check", "{program}"],
        ["--json", "--check", "{program}"],
        ["--form", "tf2", "--check", "{program}"],
        ["--form", "keras", "--check", "{program}"],
        ["--only", "{folder}", "{program}"],
        ["--undo", "{folder}/none"],
        ["{program}"],
        ["{program}"],
    ],
    "plan": [["{folder}/none"], ["--spec", "{folder}:x", "--batch_size", "8"]],
    "run": [["{quiet}"], ["{folder}/none"], ["--show-names", "{quiet}"]],
    "serve": [],
    "verify": [
        ["{folder}/none"],
        ["--keep", "{folder}", "{program}"],
        ["--json", "{folder}/none/a", "{program}"],
        ["--python-a", "{folder}/none", "--python-b", "{folder}/none", "{program}"],
    ],
}
"""The calls of commands that need particular ones; those without a call print no name."""


def calls_of(command: str) -> list[list[str]]:
    """Returns the calls of a command: those of the list, or one with a hostile name everywhere."""
    parser = main.parsers()[1][command]
    return CALLS.get(command, [call_with("{folder}/none", parser)])


def call_with(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Returns a call in which a name stands for every text that the command takes."""
    call: list[str] = []
    for action in parser._actions:
        if action.nargs != 0 and not action.choices and action.type in (None, str):
            call += [*action.option_strings[:1], name]
    return call


@pytest.mark.parametrize("command", [name for name in main.parsers()[1] if CALLS.get(name) != []])
def test_no_command_prints_what_acts(
    command: str,
    hostile: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every command prints plain text, whatever a checkpoint, a program or a name is called."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    all_told: list[str] = []
    try:
        calls = calls_of(command)
        for call in calls:
            arguments = [each.format(**hostile) for each in call]
            with contextlib.suppress(SystemExit):
                main.main([command, *arguments])
            printed = "".join(capfd.readouterr())
            all_told.append(printed)
            assert printed, arguments
            assert_plain(printed, f"{command} {call}")
            if "--json" in call and printed.startswith(("[", "{")):
                assert all(text.replace("\n", "").isprintable() for text in texts(printed))
    finally:
        install.uninstall()
    names_something = any("{" in argument for call in calls for argument in call)
    assert not names_something or "\\x1b" in "".join(all_told)


def texts(written: str) -> Iterator[str]:
    """Yields all texts in JSON, keys too, as they are once it is read."""

    def of(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, part in value.items():
                yield key
                yield from of(part)
        elif isinstance(value, list):
            for part in value:
                yield from of(part)
        elif isinstance(value, str):
            yield value

    return of(json.JSONDecoder().raw_decode(written)[0])


def assert_plain(text: str, where: str) -> None:
    """Fails for a character that is not seen; lines may end."""
    hidden = sorted({one for one in text if one != "\n" and not one.isprintable()})
    # The tabs of a traceback or of a table are no names.
    assert not hidden, f"{where} prints {hidden} in {text[:2000]!r}"
    forged = [line for line in text.split("\n") if line.strip().startswith(FORGED)]
    assert not forged, f"{where} prints a line that a name forges in {text[:2000]!r}"


def test_wrong_arguments_are_plain(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [NAME],
        ["convert", "a", "b", "--to", NAME],
        ["inspect", NAME, NAME],
        ["run", "--cores", NAME, "x"],
    ):
        with pytest.raises(SystemExit) as ended:
            main.main(arguments)
        assert ended.value.code == 2
        assert_plain("".join(capfd.readouterr()), str(arguments))


def test_errors_are_plain() -> None:
    """The text of every error of the packages is plain, whatever is named in it."""
    classes = {
        kind
        for module in (errors, engine_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, engine_errors.EngineError)
    }
    assert len(classes) > 20
    for kind in classes - {errors.UnsupportedImport}:
        assert str(kind(f"{NAME} is\nunknown")) == plain_text.plain(f"{NAME} is\nunknown"), kind
        lines = str(kind(plain_text.Lines("Two lines:", NAME)))
        assert lines == f"Two lines:\n{plain_text.plain(NAME)}", kind
    assert_plain(str(errors.UnsupportedImport(NAME, name=NAME)), "UnsupportedImport")


@pytest.mark.parametrize("logger", [log, log.PlainLogger("tf2_engine.some")])
def test_logs_are_plain(logger: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Names in logs are plain, and the line that is named is that of the caller."""
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "tensorflow"):
        logger.warning("table %s of %d", NAME, 3)
        logger.info("100 %")

    first, second = caplog.records
    assert first.getMessage() == f"table {plain_text.plain(NAME)} of 3"
    assert second.getMessage() == "100 %"
    assert pathlib.Path(first.pathname) == pathlib.Path(__file__)
    assert first.funcName == "test_logs_are_plain"


def test_a_watch_report_is_plain() -> None:
    report = WatchReport(None, 1, [], [f"{NAME} is not checked"], NAME)
    written = output.as_json(report.as_dict(), indent=1)
    assert all(text.replace("\n", "").isprintable() for text in texts(written))
    assert_plain(str(report), "a watch report")


def test_a_diff_can_be_applied(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diff that is piped keeps the source as it is; a terminal shows it as plain text."""
    line = f"+\t{NAME.replace(chr(10), '')}\n"
    output.show_source([line])
    assert capsys.readouterr().out == line
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.show_source([line])
    assert_plain(capsys.readouterr().out, "a diff")


ALLOWED = {
    "estimator_bridge/cli/output.py",
    "estimator_bridge/progress_line.py",
    "tf2_engine/log.py",
}
"""The modules that print and log, and make plain what they do."""


def test_nothing_else_prints_or_logs() -> None:
    """`print`, writes to the standard streams, and loggers are in those modules alone."""
    looked_at = 0
    for package in ("estimator_bridge", "tf2_engine"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name in ALLOWED:
                continue
            looked_at += 1
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    assert called != "print", f"{name}:{node.lineno} prints; use cli.output"
                    parts = called.split(".")
                    wrong = {"stdout", "stderr"} & set(parts) and parts[-1].startswith("write")
                    wrong = wrong or (parts[-1] in ("getLogger", "get_logger"))
                    wrong = wrong or ("logging" in parts and parts[-1] != "set_verbosity")
                    assert not wrong, f"{name}:{node.lineno} calls {called}; use log or cli.output"
    assert looked_at > 100


@pytest.mark.full
def test_a_program_of_verify_is_plain(tmp_path: pathlib.Path) -> None:
    """A program that prints and raises hostile names ends `verify` with plain text and JSON."""
    program = tmp_path / f"{FILE}.py"
    program.write_text(f"print({NAME!r})\nraise ValueError({NAME!r})\n")
    ran = run_verify("--a", "bridge", "--json", str(tmp_path / "out.json"), str(program), cwd=ROOT)
    assert ran.returncode == 2
    assert_plain(ran.stdout + ran.stderr, "verify")
    assert all(
        text.replace("\n", "").isprintable() for text in texts((tmp_path / "out.json").read_text())
    )
