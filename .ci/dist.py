"""Builds the distributions, the same bytes from the same commit, and checks the wheel by itself.

    python .ci/dist.py build/dist [--mypy MYPY] [--native PYTHON ...]

The folder has the wheel and the source distribution, a list of the packages that an installation
brings along with their licences (CycloneDX, JSON), and checksums. They are built twice and have to
be equal; then the wheel is installed into an empty folder: it is imported, runs a program, and its
types are checked. The wheel holds the native libraries, compiled once, for the TensorFlow of each
Python that is named; each of these has to load them where there is no compiler. Then the source
distribution is installed and runs a program, too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent

PROGRAM = """
import pathlib, sys
import tensorflow.compat.v1 as tf

site = pathlib.Path(sys.argv[1]).resolve()
import estimator_bridge, tf2_engine
for package in (estimator_bridge, tf2_engine):
    assert site in pathlib.Path(package.__file__).resolve().parents, package.__file__

column = tf.feature_column.categorical_column_with_identity("word", 10)
columns = [tf.tpu.experimental.embedding_column(column, dimension=2)]
from estimator_bridge.legacy import parameters
estimator = tf.estimator


def input_fn(params):
    ids = tf.sparse.from_dense([[number + 1] for number in range(params["batch_size"])])
    return tf.data.Dataset.from_tensors(({"word": ids}, tf.ones([4, 1]))).repeat()


def model_fn(features, labels, mode, params):
    net = tf.layers.dense(tf.keras.layers.DenseFeatures(columns)(features), 1)
    loss = tf.losses.mean_squared_error(labels, net)
    optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


spec = estimator.tpu.experimental.EmbeddingConfigSpec(
    feature_columns=columns, optimization_parameters=parameters.AdagradParameters(0.1)
)
config = estimator.tpu.RunConfig(tpu_config=estimator.tpu.TPUConfig(num_shards=1))
estimator.tpu.TPUEstimator(
    model_fn, config=config, train_batch_size=4, embedding_config_spec=spec
).train(input_fn, steps=2)
print("trained")
"""

TYPED = """
import tf2_engine

rate: float = 0.1
optimizer: tf2_engine.Optimizer = tf2_engine.Adagrad(rate)
wrong: int = tf2_engine.TableSpec("words", 10, 4, optimizer=optimizer)
"""
"""A user's program; a checker that knows the types of the packages finds one line wrong."""

WRONG = "6"

PREBUILD = """
import pathlib, sys
from tf2_engine.native import build
build.prebuild(pathlib.Path(sys.argv[1]))
"""

PREBUILT = """
import sys
from tf2_engine.native import build, cache, loading
loaded = loading.load()
assert not cache.runs_here() or loaded.ops is not None, loaded.reason
sources = sorted(str(path.relative_to(build.SOURCES)) for path in build.SOURCES.rglob("*.cc"))
print(*sorted(map(str, filter(None, map(build.existing, sources)))), sep="\\n")
"""


def main() -> None:
    """Builds and checks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--mypy", help="the program that checks types; without it they are not checked"
    )
    parser.add_argument(
        "--native", nargs="*", default=[], help="programs of Python to compile the libraries for"
    )
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(date())  # for both builds
    with tempfile.TemporaryDirectory() as compiled, tempfile.TemporaryDirectory() as other:
        libraries = pathlib.Path(compiled, "libraries")
        prebuild(libraries, options.native)
        built = build(options.folder, libraries)
        for path in build(pathlib.Path(other), libraries):
            assert path.read_bytes() == (options.folder / path.name).read_bytes(), path.name
    (options.folder / "sbom.json").write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built
    )
    (options.folder / "SHA256SUMS").write_text(sums)
    check(built[0], options.mypy)
    if options.native:
        check(built[1], None)
    check_prebuilt(built[0], options.native)
    sys.stdout.write(f"{options.folder}:\n{sums}")


def prebuild(folder: pathlib.Path, pythons: Sequence[str]) -> None:
    """Compiles the native libraries into a folder, by each Python for its TensorFlow."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as copied:
        source = pathlib.Path(copied, "source")
        copy_tracked(source)
        environment = {**os.environ, "PYTHONPATH": str(source)}
        with concurrent.futures.ThreadPoolExecutor() as executor:
            compiled = [
                executor.submit(run, python, "-c", PREBUILD, str(folder), environment=environment)
                for python in pythons
            ]
        for future in compiled:
            future.result()


def build(folder: pathlib.Path, libraries: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Builds the wheel and the source distribution of the files that git tracks.

    The wheel has the native libraries of a folder as well.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(date()), "PYTHONHASHSEED": "0"}
    folder = folder.resolve()  # since one of the builds runs in a folder of its own
    with tempfile.TemporaryDirectory() as copied:
        source = pathlib.Path(copied, "source")
        copy_tracked(source)
        prebuilt = source / "tf2_engine" / "native" / "libraries"
        if libraries is not None:
            shutil.copytree(libraries, prebuilt)
        run(
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(folder), str(source)),
            environment=environment,
        )
        for folder_of_wheel in (source / "build", prebuilt):
            shutil.rmtree(folder_of_wheel, ignore_errors=True)
        run(
            *(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)),
            environment=environment,
            cwd=source,
        )
    [wheel] = folder.glob("*.whl")
    [archive] = folder.glob("*.tar.gz")
    archive.write_bytes(normalized(archive.read_bytes()))
    return [wheel, archive]


def date() -> int:
    """Returns SOURCE_DATE_EPOCH, by default the time of the last commit, in seconds since 1970."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return int(epoch or run("git", "log", "-1", "--format=%ct", cwd=ROOT))


def copy_tracked(folder: pathlib.Path) -> None:
    """Copies the files that git tracks; their permissions do not depend on the umask."""
    for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
        path = folder / name
        if (ROOT / name).is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, path)
            path.chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)


def normalized(archive: bytes) -> bytes:
    """Returns a tar.gz whose bytes depend on its files alone: sorted, of one time and no user."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=date()) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid = date(), 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def bill_of_materials() -> dict[str, object]:
    """Returns the packages that an installation brings along, as CycloneDX has them."""
    components = [
        {
            "type": "library",
            "name": each.metadata["Name"],
            "version": each.version,
            "purl": f"pkg:pypi/{canonical(each.metadata['Name'])}@{each.version}",
            "licenses": [{"license": {"name": licence_of(each)}}],
        }
        for each in requirements("estimator-bridge")
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def requirements(name: str) -> list[importlib.metadata.Distribution]:
    """Returns the installed distributions that one needs, at any depth, without extras; sorted."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(_required(importlib.metadata.distribution(name)))
    while waiting:
        key = canonical(waiting.pop())
        if key in distributions:
            continue
        try:
            distributions[key] = importlib.metadata.distribution(key)
        except importlib.metadata.PackageNotFoundError:  # for another system
            continue
        waiting += _required(distributions[key])
    return [distributions[key] for key in sorted(distributions)]


def _required(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    for line in distribution.requires or ():
        if "extra ==" not in line:
            yield re.split(r"[^\w.-]", line, maxsplit=1)[0]


def canonical(name: str) -> str:
    """Returns the name that a package index has for a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """Returns the licence that a distribution states; SPDX's NOASSERTION if it states none."""
    metadata = distribution.metadata
    stated = metadata.get("License-Expression") or metadata.get("License") or ""
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith("License :: ")
    ]
    short = stated.strip() if len(stated) < 60 else ""
    licence = short or " and ".join(classifiers) or stated.strip().split("\n")[0]
    return licence if licence not in ("", "UNKNOWN") else "NOASSERTION"


def check(built: pathlib.Path, mypy: str | None) -> None:
    """Installs a distribution into an empty folder, runs a program with it, and checks types."""
    with tempfile.TemporaryDirectory() as folder:
        site, here = pathlib.Path(folder, "site"), pathlib.Path(folder, "here")
        here.mkdir()
        (here / "program.py").write_text(PROGRAM)
        (here / "typed.py").write_text(TYPED)
        run(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
            *("--no-build-isolation", "--target", str(site), str(built.resolve())),
        )
        environment = {**os.environ, "PYTHONPATH": str(site), "MYPYPATH": str(site)}
        module = (sys.executable, "-m", "estimator_bridge")
        version = run(*module, "--version", cwd=here, environment=environment).strip()
        assert re.search(rf"-{re.escape(version)}(-|\.tar)", built.name), (version, built.name)
        output = run(*module, "run", "program.py", str(site), cwd=here, environment=environment)
        assert output.endswith("trained\n"), output
        if mypy is not None:
            checked = subprocess.run(
                [os.path.abspath(mypy), "--ignore-missing-imports", "typed.py"],
                cwd=here,
                env=environment,
                capture_output=True,
                text=True,
            )
            type_errors = re.findall(r"^typed\.py:(\d+): error: (.*)", checked.stdout, re.MULTILINE)
            assert [line for line, _ in type_errors] == [WRONG], checked.stdout + checked.stderr
            assert "TableSpec" in type_errors[0][1], type_errors


def check_prebuilt(wheel: pathlib.Path, pythons: Sequence[str]) -> None:
    """Installs a wheel, whose libraries each Python loads with neither compiler nor cache."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        site, cache = pathlib.Path(folder, "site").resolve(), pathlib.Path(folder, "cache")
        archive.extractall(site)
        environment = {
            **os.environ,
            "PYTHONPATH": str(site),
            "CXX": "no-compiler",
            "CXXFLAGS": "",
            "ESTIMATOR_BRIDGE_CACHE": str(cache),
        }
        for python in pythons:
            output = run(os.path.abspath(python), "-c", PREBUILT, cwd=site, environment=environment)
            paths = [pathlib.Path(line) for line in output.splitlines()]
            assert all(site in path.parents for path in paths), output
            kinds = {path.name.split("-tf")[0] for path in paths}
            assert not paths or kinds == {source.stem for source in site.rglob("*.cc")}, output
            assert not cache.exists(), python


def run(
    *command: str, cwd: pathlib.Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Returns the output of a command; raises an error with its stderr if it fails.

    What it writes has the usual permissions, which wheels keep, whatever the user's mask is.
    """
    ran = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, umask=0o022
    )
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{ran.stderr[-4000:]}")
    return ran.stdout


if __name__ == "__main__":
    main()
