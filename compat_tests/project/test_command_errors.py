"""Whatever arguments a command gets, it ends with a correct status and a line with the cause."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from compat_tests.support import fresh, fuzz, odd_sources
from estimator_bridge import audit, errors
from estimator_bridge.cli import completion, doctor, main, output
from estimator_bridge.migrate import packages
from estimator_bridge.run import install, program_lines


def run(*arguments: str) -> int:
    """Runs a command in this process; returns its status."""
    path = list(sys.path)
    try:
        return main.main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.path[:] = path
        install.uninstall()


def assert_told(status: int, output: Any, what: str) -> None:
    """Fails unless a command did what was asked, or said in a line of its own why not.

    Status 3 is that of a program that was written with marks.
    """
    assert status in (0, 2, 3), (what, output)
    assert "Traceback" not in output.err + output.out, (what, output)
    assert "internal error" not in output.err, (what, output)
    if status == 2:
        lines = [line for line in output.err.splitlines() if line]
        assert any(line.startswith("estimator-bridge: ") for line in lines), (what, output)


@pytest.mark.parametrize("name", odd_sources.FOUND)
def test_an_odd_source_is_read_or_refused(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No source makes a command that reads it fail otherwise than with a line that says so."""
    program = tmp_path / "odd.py"
    program.write_bytes(odd_sources.FOUND[name])
    for command in fuzz.READERS:
        status = run(*command, str(program))
        assert_told(status, capsys.readouterr(), f"{command} of {name}")


def test_missing_places_are_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file or folder that is not there, or is of the other kind, is named by every command."""
    program = tmp_path / "program.py"
    program.write_text("x = 1\n")
    (tmp_path / "folder").mkdir()
    missing, folder = str(tmp_path / "none" / "deep"), str(tmp_path / "folder")
    calls = [
        ["audit", missing],
        ["audit", "--model_dir", missing],
        ["audit", "--spec", f"{missing}.py:x"],
        ["audit", "--spec", f"{program}:y"],
        ["audit", "--run", str(program)],
        ["convert", missing, folder],
        ["convert", folder, missing],
        ["inspect", missing],
        ["inspect", folder],
        ["inspect", str(program)],
        ["migrate", missing],
        ["migrate", "--output", missing, str(program)],
        ["migrate", "--output", folder, str(program)],
        ["migrate", "--undo", missing],
        ["migrate", "--undo", folder],
        ["run", missing],
        ["run", folder],
        ["verify", missing],
        ["verify", "--json", f"{missing}/x", str(program)],
        ["verify", "--html", folder, str(program)],
    ]
    for call in calls:
        status = run(*call)
        output = capsys.readouterr()
        assert_told(status, output, str(call))
        assert status == 2, call
        places = (os.path.dirname(missing), folder, program)
        assert any(str(place) in output.err for place in places), (call, output)


PROGRAM_ERRORS = {
    "an exception": (b"x = 1\nraise KeyError('colour')\n", "spec.py, line 2: KeyError: 'colour'"),
    "two lines": (b"raise ValueError('one\\ntwo')\n", "spec.py, line 1: ValueError: one two"),
    "syntax": (b"x = 1\ny = (\n", "spec.py, line 2: SyntaxError: '(' was never closed"),
    "a missing module": (
        b"\nimport none_such\n",
        "spec.py, line 2: ModuleNotFoundError: No module named 'none_such'",
    ),
    "a missing name": (b"from os import none_such\n", "spec.py, line 1: ImportError: cannot"),
    "an encoding": (b"x = '\xe9'\n", "spec.py, line 1: SyntaxError: (unicode error)"),
    "a module beside it": (
        b"import beside_spec\nbeside_spec.fail()\n",
        "beside_spec.py, line 3: OSError: no colour",
    ),
}
"""Programs that fail, and how the line begins that says so."""


@pytest.mark.parametrize("name", PROGRAM_ERRORS)
def test_what_a_program_raises_is_told(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the user's program is a line with the error, its file and its line.

    So it is in every command that imports or runs a program, whatever goes wrong in it.
    """
    program = tmp_path / "spec.py"
    (tmp_path / "beside_spec.py").write_text("\ndef fail():\n    raise OSError('no colour')\n")
    program.write_bytes(PROGRAM_ERRORS[name][0])
    where = str(tmp_path / PROGRAM_ERRORS[name][1])
    spec = f"{program}:x"
    for call in (
        ["audit", "--spec", spec],
        ["audit", "--run", str(program)],
        ["plan", str(program)],
        ["plan", "--spec", spec, "--batch_size", "8"],
        ["inspect", "--spec", spec, "nowhere"],
        ["convert", "--spec", spec, "nowhere", "new"],
    ):
        assert run(*call) == 2, call
        (line,) = (each for each in capsys.readouterr().err.splitlines() if str(tmp_path) in each)
        assert line.startswith(f"estimator-bridge: {where}"), call
        sys.modules.pop("beside_spec", None)


JOB = """import tensorflow.compat.v1 as tf

def input_fn(params):
    data = tf.data.Dataset.from_tensors(({"x": tf.ones([8, 1])}, tf.ones([8, 1])))
    AT_INPUT
    return data.repeat()

def model_fn(features, labels, mode, params):
    AT_MODEL
    y = tf.layers.dense(features["x"], 1)
    loss = tf.losses.mean_squared_error(labels, y)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

if __name__ == "__main__":
    job = tf.estimator.tpu.TPUEstimator(
        model_fn,
        config=tf.estimator.tpu.RunConfig(model_dir="PLACE"),
        use_tpu=False,
        train_batch_size=8,
        eval_batch_size=8,
    )
    job.train(input_fn, max_steps=1)
"""
"""A program in which a line of either function may fail."""

FAILING_LINES = {
    "the program's": ("AT_MODEL", 9, 'features["colour"]', "KeyError: 'colour'"),
    "TensorFlow's": ("AT_MODEL", 9, 'tf.reshape(features["x"], [3, 3])', "ValueError: "),
    "of the input": ("AT_INPUT", 5, 'open("/none/colour")', "FileNotFoundError: "),
}
"""Where a line fails, its number, the line, and its error."""


@pytest.mark.full
@pytest.mark.parametrize("what", FAILING_LINES)
@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["verify", "--a", "bridge"],
        ["verify", "--watch"],
        pytest.param(["verify", "--b", "bridge-cpu"], marks=pytest.mark.stock),
        ["record", "--side", "bridge", "--output", "new"],
        pytest.param(["record", "--output", "new"], marks=pytest.mark.stock),
        ["migrate", "--form", "tf2", "--check-run"],
    ],
    ids=" ".join,
)
def test_errors_in_functions_of_a_program_are_its_own(
    command: list[str], what: str, tmp_path: pathlib.Path
) -> None:
    """Every command that calls a model function or an input function names the line that fails."""
    function, number, line, error = FAILING_LINES[what]
    source = JOB.replace(function, line).replace("PLACE", str(tmp_path / "model"))
    program = tmp_path / "job.py"
    program.write_text(re.sub("AT_[A-Z]+", "pass", source))
    ran = fresh.python("-m", "estimator_bridge", *command, program, cwd=tmp_path)
    said = ran.stdout + ran.stderr
    assert ran.returncode
    assert "internal error" not in said, said
    assert error in said, said
    # `run` shows the traceback; the new program of `migrate` has lines of its own.
    wanted = (
        r"job\w*(\.new)?\.py\"?, line \d+"
        if "migrate" in command
        else rf"job\.py\"?, line {number}\b"
    )
    assert re.search(wanted, said), said


def test_a_module_of_a_spec_may_be_missing_or_exit(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing module is told from a module that lacks another one, and from one that exits."""
    program = tmp_path / "spec.py"
    assert run("audit", "--spec", "no_such_module:x") == 2
    assert "estimator-bridge: --spec: No module named 'no_such_module'" in capsys.readouterr().err
    program.write_text("import sys\nsys.exit('no flags')\n")
    assert run("audit", "--spec", f"{program}:x") == 2
    assert f"--spec: {program} exits with 'no flags' when" in capsys.readouterr().err


@pytest.mark.parametrize("read", [["audit"], ["migrate", "--check"], ["audit", "--run"]])
def test_a_defect_of_a_command_is_none_of_the_program(
    read: list[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where no code of the program runs, an unexpected error is called one of the command."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by chance")

    # The test is no code of a package, and would pass for a program's.
    monkeypatch.setattr(program_lines, "is_of_program", lambda name: name.endswith("job.py"))
    monkeypatch.setattr(audit, "audit_run", fail)
    monkeypatch.setattr(audit, "audit_script", fail if read == ["audit"] else lambda *_: None)
    monkeypatch.setattr(packages, "read", fail)
    program = tmp_path / "job.py"
    program.write_text("x = 1\n")
    assert run(*read, str(program)) == 2
    assert "internal error: ZeroDivisionError: by chance" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source, line, status",
    [
        ("raise KeyError('colour')", "KeyError: 'colour'", 1),
        ("x = (", "SyntaxError", 1),
        ("import sys; sys.exit(7)", "", 7),
        ("raise KeyboardInterrupt", "estimator-bridge: Ctrl-C.", 130),
        ("import estimator_bridge.errors as e; raise e.InvalidInput('no ids')", "no ids", 1),
    ],
)
def test_a_program_fails_as_by_itself(
    source: str, line: str, status: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` has the status that Python would have, and no frame of its own in the traceback."""
    program = tmp_path / "program.py"
    program.write_text(f"{source}\n")
    argv = sys.argv
    try:
        assert run("run", str(program)) == status
    finally:
        sys.argv = argv
    stderr = capsys.readouterr().err
    assert line in stderr
    assert "runpy" not in stderr
    assert "estimator_bridge/cli" not in stderr


INTERNAL = {
    "a defect": (ZeroDivisionError("division"), "internal error: ZeroDivisionError: division"),
    "a full disk": (OSError(28, "No space left on device", "/x/y"), "/x/y: No space left on"),
    "nesting": (RecursionError("maximum"), "nested too deeply"),
    "memory": (MemoryError(), "not enough memory"),
    "an error of ours": (errors.InvalidInput("a is b."), "estimator-bridge: a is b."),
}


@pytest.mark.parametrize("what", INTERNAL)
def test_any_error_is_a_line(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a command raises is a line and status 2; a variable shows where a defect is."""
    error, line = INTERNAL[what]

    def execute(options: Any) -> None:
        raise error

    monkeypatch.setattr(doctor, "execute", execute)
    assert run("doctor") == 2
    stderr = capsys.readouterr().err
    assert line in stderr
    assert stderr.count("\n") == 1
    monkeypatch.setenv(output.TRACEBACK, "1")
    assert run("doctor") == 2
    assert ("Traceback" in capsys.readouterr().err) == (what != "an error of ours")


@pytest.mark.parametrize("command", ["run", "record"])
def test_a_program_needs_no_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a program, the error asks for the program, and not for its arguments."""
    with pytest.raises(SystemExit):
        main.main([command])
    required = capsys.readouterr().err.rpartition("required: ")[2].strip().split(", ")
    assert required[-1] == "script"


def test_a_pipe_that_nobody_reads_is_no_error() -> None:
    """`... | head` ends without a traceback."""
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-m", "estimator_bridge", "migrate", "--list-rules"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert ran.stderr == ""
    assert ran.returncode == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    "words, expected",
    [
        (["in"], {"inspect"}),
        (["migrate", "--ch"], {"--check", "--check-run"}),
        (["migrate", "--form", ""], {"bridge", "tf2", "keras"}),
        (["run", "--quirks", "d"], {"documented"}),
        (["run", ""], set()),
    ],
)
def test_a_shell_completes(words: list[str], expected: set[str]) -> None:
    """Commands, options and choices are completed; elsewhere the shell completes files."""
    script = completion.script(main.parsers()[1])
    line = " ".join(f"'{word}'" for word in ["estimator-bridge", *words])
    asked = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _estimator_bridge\n"
    ran = subprocess.run(
        ["bash", "-c", asked + 'printf "%s\\n" "${COMPREPLY[@]}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(ran.stdout.split()) == expected, ran.stderr


def test_the_completion_knows_everything() -> None:
    script = completion.script(main.parsers()[1])
    for command, parser in main.parsers()[1].items():
        (line,) = [each for each in script.splitlines() if each.lstrip().startswith(f"{command}) ")]
        for action in parser._actions:
            assert all(option in line for option in action.option_strings), (command, action)


def test_a_package_installed_as_symbolic_links_is_not_the_programs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file counts as a package's if it is reached through site-packages or lies there."""
    cache, packages = tmp_path / "cache", tmp_path / "site-packages"
    for folder in (cache, packages):
        folder.mkdir()
    (cache / "ops.py").touch()
    (packages / "ops.py").symlink_to(cache / "ops.py")
    monkeypatch.setattr(program_lines, "_python_and_bridge", lambda: (f"{packages}/",))
    assert not program_lines.is_of_program(str(packages / "ops.py"))
    assert program_lines.is_of_program(str(cache / "ops.py"))
    monkeypatch.chdir(packages)
    assert not program_lines.is_of_program("ops.py")
