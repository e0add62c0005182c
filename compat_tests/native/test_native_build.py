"""Native libraries are compiled once, by a single process; the engine also works without them."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from estimator_bridge.cli import main as cli
from tf2_engine import errors, soft_tpu
from tf2_engine.native import build, cache, loading

HERE = str(ROOT)

COMPILER = """#!{sh}
# Notes each compilation, and does it, slowly on request.
for argument in "$@"; do
  if [ "$argument" = -shared ]; then echo compiled >> {log}; {sleep} ${{SECONDS_MORE:-0}}; fi
done
exec {g++} "$@"
"""


class Tiny(NamedTuple):
    """A cache and a compiler of a test's own, and sources that compile quickly, of `tiny.cc`.

    Attributes:
        folder: has the cache, and a log with a line per compilation.
    """

    folder: pathlib.Path

    @property
    def sources(self) -> pathlib.Path:
        return self.folder / "sources"

    @property
    def compilations(self) -> int:
        log = self.folder / "log"
        return len(log.read_text().split()) if log.exists() else 0


@pytest.fixture
def tiny(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    programs = {name: shutil.which(name) for name in ("sh", "sleep", "g++")}
    text = COMPILER.format(log=tmp_path / "log", **programs)
    monkeypatch.setenv("CXX", str(script(tmp_path / "noting", text)))
    one = Tiny(tmp_path)
    one.sources.mkdir()
    (one.sources / "tiny.cc").write_text('#include "tiny.h"\nint tiny() { return kTiny; }\n')
    (one.sources / "tiny.h").write_text("constexpr int kTiny = 1;\n")
    monkeypatch.setattr(build, "SOURCES", one.sources)
    return one


def script(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_library_is_compiled_once(tiny: Tiny) -> None:
    """What is in the cache is taken from there; `again` makes it anew, in the same place."""
    first = build.library("tiny.cc")
    assert first == build.library("tiny.cc")
    assert tiny.compilations == 1
    assert os.access(first, os.X_OK)
    assert build.library("tiny.cc", again=True) == first
    assert tiny.compilations == 2
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".lock", ".sha256", ".so"]


def test_a_change_makes_another_library(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another header, compiler, flag, processor or TensorFlow leads to another file."""
    paths = {build.library_path("tiny.cc")}
    (tiny.sources / "tiny.h").write_text("constexpr int kTiny = 2;\n")
    paths.add(build.library_path("tiny.cc"))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    paths.add(build.library_path("tiny.cc"))
    other = script(tiny.folder / "other", f"#!{shutil.which('sh')}\necho another compiler\n")
    monkeypatch.setenv("CXX", str(other))
    paths.add(build.library_path("tiny.cc"))
    monkeypatch.setattr(build, "_processor", lambda: "another processor")
    paths.add(build.library_path("tiny.cc"))
    monkeypatch.setattr(build.tf.version, "VERSION", "9.9.9")
    paths.add(build.library_path("tiny.cc"))

    assert len(paths) == 6


TWO = """
import os, pathlib, sys
from tf2_engine.native import build
build.SOURCES = pathlib.Path(sys.argv[1])
gate, opener = os.pipe()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        os.close(opener)
        os.read(gate, 1)  # returns when nobody can write
        print(build.library("tiny.cc"), flush=True)
        os._exit(0)
    children.append(child)
os.close(opener)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_processes_that_start_together_compile_once(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that find nothing one compiles, for a second; the other waits for it."""
    monkeypatch.setenv("SECONDS_MORE", "1")
    paths = fresh.code(TWO, tiny.sources, cwd=HERE, check=True).stdout.split()

    assert len(paths) == 2
    assert paths[0] == paths[1]
    assert pathlib.Path(paths[0]).exists()
    assert tiny.compilations == 1


@pytest.mark.full
def test_a_process_that_is_killed_keeps_nobody_waiting(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it compiles, it leaves the lock open and no half of a library."""
    monkeypatch.setenv("SECONDS_MORE", "1")
    process = subprocess.Popen(
        [sys.executable, "-c", TWO, str(tiny.sources)],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    deadline = time.monotonic() + 120
    while not tiny.compilations:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    path = build.library_path("tiny.cc")
    assert not path.exists()

    assert build.library("tiny.cc") == path
    assert path.stat().st_size > 0


def test_what_does_not_compile_is_said(tiny: Tiny) -> None:
    """The complaint of the compiler is in the message, and nothing is left in the cache."""
    (tiny.sources / "tiny.cc").write_text("no code\n")

    with pytest.raises(build.CannotBuild, match=r"cannot compile tiny.cc: .*error"):
        build.library("tiny.cc")
    assert [path.suffix for path in cache.folder().iterdir()] == [".lock"]


def test_the_cache_belongs_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is in the folder of the variable, else in XDG_CACHE_HOME, else in ~/.cache."""
    monkeypatch.setenv(cache.VARIABLE, "~/mine")
    assert cache.folder() == pathlib.Path.home() / "mine"
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == pathlib.Path("/somewhere/estimator-bridge")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == pathlib.Path.home() / ".cache" / "estimator-bridge"


@pytest.mark.full
def test_the_program_for_the_thread_sanitizer_fits_the_sources(tmp_path: pathlib.Path) -> None:
    """What `make sanitize-threads` compiles with the sanitizer runs without one, too."""
    threads, program = pathlib.Path(HERE, "compat_tests", "threads"), tmp_path / "threads"
    command = [
        *(*build.compiler(), "-O1", "-w", f"-I{threads}", f"-I{build.SOURCES}"),
        str(threads / "threads.cc"),
        *tf.sysconfig.get_compile_flags(),
        *tf.sysconfig.get_link_flags(),
        *(f"-Wl,-rpath,{tf.sysconfig.get_lib()}", "-pthread", "-o", str(program)),
    ]
    subprocess.run(command, check=True)
    ran = subprocess.run([program], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "threads: nothing found"


WITHOUT = """
import logging
import sys
import tensorflow as tf
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding

logging.basicConfig(level=logging.INFO, format="LOG %(name)s %(message)s", stream=sys.stdout)
for _ in range(2):
    table = TableSpec("table", 4, 2, "sum", Adagrad(0.5), tf.ones_initializer())
    embedding = TPUEmbedding(EngineSpec((table,), (FeatureSpec("ids", "table"),)))
    embedding.enqueue({"ids": tf.constant([1, 1])})
    embedding.dequeue()
    embedding.apply_gradients({"ids": tf.ones([2, 2])})
    print(repr(embedding), embedding.tables["table"].variables["parameters"][0][1, 0].numpy())
"""


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"PATH": ""}, "there is no C\\+\\+ compiler 'g\\+\\+' in the PATH"),
        ({cache.VARIABLE: "/proc/cache"}, "the cache cannot be written"),
    ],
    ids=["no compiler", "no cache"],
)
def test_without_native_ops_one_line_says_so(changes: dict[str, str], reason: str) -> None:
    """Two engines run on TensorFlow's ops, and the log says why, once."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", loading.SETTING)}
    done = fresh.code(WITHOUT, cwd=HERE, env={**environment, **changes}, check=True)
    lines = done.stdout.splitlines()
    messages = [line for line in lines if line.startswith("LOG tf2_engine")]

    assert len(messages) == 1, done.stdout
    assert "run on TensorFlow's ops" in messages[0]
    assert re.search(reason, messages[0]), messages[0]
    expected = 1 - 0.5 * 2 / (0.1 + 4) ** 0.5  # the initial value, and six operations: 7 roundings
    results = [line for line in lines if line.startswith("<TPUEmbedding")]
    assert len(results) == 2
    assert all("TensorFlow's ops" in line for line in results)
    assert all(abs(float(line.split()[-1]) - expected) <= 7 * 2**-24 for line in results)


def test_a_software_tpu_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft_tpu, "_library", None)
    monkeypatch.setattr(soft_tpu, "ops_with_kernels", list)
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = "A software TPU cannot be made: there is no C\\+\\+ compiler 'no-such-compiler'"
    with pytest.raises(build.CannotBuild, match=message):
        soft_tpu.start()


def test_the_setting_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 uses TensorFlow's ops, 1 insists on native ones, an argument goes before both."""
    monkeypatch.setattr(loading, "load", lambda: loading.Loaded(None, "the moon is full"))
    monkeypatch.setenv(loading.SETTING, "0")
    assert loading.host_ops() is None
    with pytest.raises(errors.InvalidSpec, match="the moon is full"):
        loading.host_ops(True)
    monkeypatch.setenv(loading.SETTING, "1")
    with pytest.raises(errors.InvalidSpec, match=f"{loading.SETTING}=1.*the moon is full"):
        loading.host_ops()
    assert loading.host_ops(False) is None
    monkeypatch.setenv(loading.SETTING, "perhaps")
    with pytest.raises(errors.InvalidSpec, match="must be auto, 0 or 1, got 'perhaps'"):
        loading.host_ops()


def test_a_gpu_leaves_tables_to_tensorflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a machine with a GPU the native ops are used only on request, as by a parameter server."""
    monkeypatch.delenv(loading.SETTING, raising=False)
    monkeypatch.setattr(loading, "on_gpu", lambda: True)
    loading._warn_once.cache_clear()  # a test before may have been told
    with caplog.at_level(logging.WARNING):
        assert loading.host_ops() is None
    assert "there is a GPU" in caplog.text
    assert loading.host_ops(True) is loading.load().ops
    monkeypatch.setenv(loading.SETTING, "1")
    assert loading.host_ops() is loading.load().ops


def test_the_doctor_says_what_is_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`estimator-bridge doctor` names TensorFlow, cache, compiler, and where the ops are from."""
    monkeypatch.delenv(loading.SETTING, raising=False)
    reason = loading.load().reason
    soft_tpu.start()

    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    for words in ("TensorFlow:", str(cache.folder()), *build.compiler(), f"loaded from {reason}"):
        assert words in output
    assert f"software TPU: loaded on request from {build.library_path(soft_tpu.SOURCE)}" in output
    monkeypatch.setattr(soft_tpu, "is_loaded", lambda: False)
    assert cli.main(["doctor"]) == 0
    assert "not possible, because this TensorFlow has TPU kernels" in capsys.readouterr().out
    monkeypatch.setenv(loading.SETTING, "0")
    assert cli.main(["doctor"]) == 0
    assert "not used, because the environment variable turns them off" in capsys.readouterr().out
    monkeypatch.delenv(loading.SETTING)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cli.main(["doctor"]) == 0
    assert "not used, because there is no C++ compiler" in capsys.readouterr().out


def test_the_ops_are_built_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`estimator-bridge build-native` prints the library; it fails without a compiler."""
    assert cli.main(["build-native"]) == 0
    assert capsys.readouterr().out.strip() == loading.load().reason
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cli.main(["build-native"]) == 2
    assert "no C++ compiler 'no-such-compiler'" in capsys.readouterr().err


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "truncated": lambda code: code[: len(code) // 2],
    "empty": lambda code: b"",
    "flipped": lambda code: bytes([*code[:5000], *(byte ^ 0xFF for byte in code[5000:])]),
    "longer": lambda code: code + b"\0",
    "without its digest": None,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_library_is_compiled_again(
    name: str,
    tiny: Tiny,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A damaged library, or one that may be, is never loaded; a line says that it is damaged."""
    path = build.library("tiny.cc")
    damage = DAMAGES[name]
    if damage is None:
        path.with_name(f"{path.name}.sha256").unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))

    assert build.library("tiny.cc") == path
    assert tiny.compilations == 2
    assert (f"{path} is damaged" in caplog.text) == (damage is not None)
    assert build.library("tiny.cc") == path
    assert tiny.compilations == 2


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
@pytest.mark.parametrize("what", ["folder", "library"])
def test_what_others_may_write_to_is_refused(what: str, mode: int, tiny: Tiny) -> None:
    path = build.library("tiny.cc")
    place = path if what == "library" else path.parent
    before = stat.S_IMODE(place.stat().st_mode)
    assert before == 0o700
    place.chmod(mode)

    for again in (False, True) if what == "folder" else (False,):
        with pytest.raises(build.CannotBuild, match=rf"{place} has mode {mode:o}.*chmod go-w"):
            build.library("tiny.cc", again=again)
    place.chmod(before)
    assert build.library("tiny.cc") == path
    assert tiny.compilations == 1


@pytest.mark.parametrize("what", ["folder", "library"])
def test_what_belongs_to_another_user_is_refused(
    what: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.library("tiny.cc")
    place = path if what == "library" else path.parent
    stock = pathlib.Path.stat

    def stat_of(one: pathlib.Path, **kwargs: Any) -> Any:
        status = stock(one, **kwargs)
        return _of_owner(status, 4711) if one == place else status

    monkeypatch.setattr(pathlib.Path, "stat", stat_of)

    with pytest.raises(build.CannotBuild, match=rf"{place} belongs to uid 4711.*remove it"):
        build.library("tiny.cc")


def _of_owner(status: os.stat_result, uid: int) -> os.stat_result:
    fields = list(status)
    fields[stat.ST_UID] = uid
    return os.stat_result(fields)


def test_a_user_without_a_home_has_a_line(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home directory TensorFlow's ops are used, and a line says why."""
    for name in ("HOME", "XDG_CACHE_HOME", cache.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(loading, "SOURCE", "tiny.cc")

    with pytest.raises(build.CannotBuild, match=r"no home folder.*ESTIMATOR_BRIDGE_CACHE"):
        build.library("tiny.cc")
    assert "no home folder" in loading._load.__wrapped__().reason


def test_the_compiler_may_have_arguments(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX may be a program with arguments, such as "ccache g++"."""
    text = f'#!{shutil.which("sh")}\nexec "$@"\n'
    wrapper = script(tiny.folder / "wrapper", text)
    monkeypatch.setenv("CXX", f"{wrapper} {tiny.folder / 'noting'}")

    assert build.library("tiny.cc").exists()
    assert tiny.compilations == 1


@pytest.fixture
def shipped(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The library of `tiny.cc` as a wheel brings it along; what its compilation noted is gone."""
    monkeypatch.delenv("CXXFLAGS", raising=False)
    monkeypatch.delenv(build.SANITIZE, raising=False)
    monkeypatch.setattr(cache, "runs_here", lambda: True)
    monkeypatch.setattr(cache, "FOLDER", tiny.folder / "prebuilt")
    [library] = build.prebuild(cache.FOLDER)
    (tiny.folder / "log").unlink()
    return library


def test_a_prebuilt_library_is_taken(
    shipped: pathlib.Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of the wheel that fits is loaded, also without a compiler, a cache, or a home."""
    assert build.library("tiny.cc") == shipped
    assert build.load("tiny.cc")[1] == shipped
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.library("tiny.cc") == shipped
    assert tiny.compilations == 0
    assert not (tiny.folder / "cache").exists()


def test_a_compiled_library_goes_before_a_prebuilt_one(shipped: pathlib.Path, tiny: Tiny) -> None:
    """What `build-native --force` compiles for this processor is taken from then on."""
    compiled = build.library("tiny.cc", again=True)

    assert compiled != shipped
    assert build.library("tiny.cc") == compiled
    assert tiny.compilations == 1


MISFITS: dict[str, Callable[[pathlib.Path, pytest.MonkeyPatch], None]] = {
    "sources": lambda _, patch: _write(build.SOURCES / "tiny.h", "constexpr int kTiny = 2;\n"),
    "version": lambda _, patch: patch.setattr(build.tf.version, "VERSION", "9.9.9"),
    "build": lambda _, patch: patch.setattr(build.tf.version, "GIT_VERSION", "a distribution's"),
    "abi": lambda _, patch: patch.setattr(
        build.tf.sysconfig, "get_compile_flags", lambda: ["-D_GLIBCXX_USE_CXX11_ABI=0"]
    ),
    "processor": lambda _, patch: patch.setattr(cache, "runs_here", lambda: False),
    "flags": lambda _, patch: patch.setenv("CXXFLAGS", "-DNDEBUG"),
    "sanitizer": lambda _, patch: patch.setenv(build.SANITIZE, "undefined"),
    "damage": lambda library, _: _write(library, "no library"),
    "no digest": lambda library, _: library.with_name(f"{library.name}.sha256").unlink(),
}


def _write(path: pathlib.Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("name", MISFITS)
def test_a_prebuilt_library_that_does_not_fit_is_not_used(
    name: str, shipped: pathlib.Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other sources, TensorFlow, ABI or processor, or damaged: then one is compiled."""
    MISFITS[name](shipped, monkeypatch)

    assert build.library("tiny.cc").parent == cache.folder()
    assert tiny.compilations == 1


def test_a_prebuilt_library_that_cannot_be_loaded_is_compiled(
    shipped: pathlib.Path, tiny: Tiny
) -> None:
    """What TensorFlow cannot load, for want of a newer C++ library say, is compiled instead."""
    shipped.write_bytes(b"no library")
    digest = hashlib.sha256(b"no library").hexdigest()
    _write(shipped.with_name(f"{shipped.name}.sha256"), f"{digest}\n")

    assert build.load("tiny.cc")[1].parent == cache.folder()
    assert tiny.compilations == 1


def test_prebuilt_libraries_are_the_same_bytes_wherever_they_are_made(
    shipped: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the sources, whose names are in messages, does not show in a library."""
    libraries = []
    for folder in ("one", "another"):
        sources = tmp_path / folder / "sources"
        sources.mkdir(parents=True)
        _write(sources / "tiny.cc", "const char* place() { return __FILE__; }\n")
        monkeypatch.setattr(build, "SOURCES", sources)
        libraries += build.prebuild(tmp_path / folder / "made")
    one, another = libraries

    assert one.name == another.name
    assert one.read_bytes() == another.read_bytes()


@pytest.mark.parametrize(
    "machine, left_out, runs",
    [
        *(("x86_64", "", True), ("x86_64", "avx2", False)),
        *(("aarch64", "avx2", True), ("riscv64", "", False)),
    ],
)
def test_a_processor_without_the_instructions_takes_none(
    machine: str, left_out: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x86 needs every instruction of the level, 64-bit ARM none; other machines take no library."""
    monkeypatch.setattr(cache.platform, "machine", lambda: machine)
    every = cache._INSTRUCTIONS["x86_64"] | {"fpu"}
    monkeypatch.setattr(cache, "processor_flags", lambda: every - {left_out})

    assert cache.runs_here() is runs


@pytest.mark.parametrize(
    "machine, level",
    [("x86_64", ["-march=x86-64-v3"]), ("aarch64", ["-march=armv8-a"]), ("s390x", [])],
)
def test_each_machine_has_a_level_of_its_own(
    machine: str, level: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of a wheel is compiled, and named, for the instruction set of one machine."""
    monkeypatch.setattr(build.platform, "machine", lambda: machine)

    assert [flag for flag in build._prebuilt_flags() if "-march" in flag] == level


def test_processors_of_arm_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ARM processors that share a cache each have libraries compiled for their instructions."""
    described = iter(["Features\t: fp asimd\n", "Features\t: fp asimd sve\n"])
    monkeypatch.setattr("builtins.open", lambda *_, **__: io.StringIO(next(described)))

    assert build._processor() != build._processor()
