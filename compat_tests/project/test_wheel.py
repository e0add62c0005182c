"""The wheel for a package index works, and the links on its page lead somewhere."""

from __future__ import annotations

import configparser
import email
import os
import pathlib
import re
import sys
import tarfile
import zipfile

import pytest

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT, ci_module

dist = ci_module("dist")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Builds the wheels of both distributions and the source distribution of the first."""
    project = tmp_path_factory.mktemp("project") / "copy"
    dist.copy_tracked(project)
    wheels = tmp_path_factory.mktemp("wheels")
    product, sources = dist.build(wheels)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels))
    fresh.python("-m", "pip", "wheel", *options, project / "compat_tests", check=True)
    [suite] = wheels.glob("estimator_bridge_compat_tests-*.whl")
    return {"product": product, "suite": suite, "sources": sources}


@pytest.mark.full
def test_the_wheel_holds_what_a_user_runs(built: dict[str, pathlib.Path]) -> None:
    """Both packages with the native sources, and no tests; the suite has a wheel of its own."""
    product = set(zipfile.ZipFile(built["product"]).namelist())
    suite = set(zipfile.ZipFile(built["suite"]).namelist())

    folders = {name.split("/")[0] for name in product if ".dist-info/" not in name}
    assert folders == {"estimator_bridge", "tf2_engine"}
    for folder in folders:
        tracked = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".cc", ".h", ".typed")
        }
        assert tracked <= product, tracked - product
    assert {name.split("/")[0] for name in suite if ".dist-info/" not in name} == {"compat_tests"}
    assert "compat_tests/goldens/column_models/crossed.audit.txt" in suite
    assert "compat_tests/known_differences.py" in suite


@pytest.mark.full
def test_the_source_distribution_holds_the_documents(built: dict[str, pathlib.Path]) -> None:
    """Documents, examples and the changelog are in it, and what tools leave behind is not."""
    with tarfile.open(built["sources"]) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}

    for folder in ("docs", "examples", "compat_tests", "benchmarks"):
        tracked = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".md", ".py") and not {"data", "build"} & set(path.parts)
        }
        assert tracked <= names, tracked - names
    assert {"CHANGELOG.md", "README.md", "LICENSE", "Makefile", "setup.cfg"} <= names
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


@pytest.mark.full
def test_the_page_of_an_index_leads_to_the_repository(built: dict[str, pathlib.Path]) -> None:
    """Each link of README to a file is one to that file of this version, and the file is there."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    version = config["metadata"]["version"]
    with zipfile.ZipFile(built["product"]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_string(wheel.read(name).decode())
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    page = metadata.get_payload()

    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert metadata["Version"] == version
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", str(page))
    assert links, "README links to its guides"
    for link in links:
        prefix = f"{urls['Source']}/blob/v{version}/"
        assert link.startswith(prefix), link
        assert (ROOT / link.removeprefix(prefix)).exists(), link
    for url in urls.values():
        assert "/blob/" not in url or f"/blob/v{version}/" in url, url


@pytest.mark.full
def test_the_suite_runs_where_it_is_installed(
    built: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """Installed apart from the sources, both commands run; `make dist-check` trains there."""
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = ("--quiet", "--no-deps", "--no-index", "--target", str(site))
    fresh.python("-m", "pip", "install", *options, built["product"], built["suite"], check=True)
    [entries] = site.glob("estimator_bridge-*.dist-info/entry_points.txt")
    assert "estimator-bridge = estimator_bridge.cli.main:main" in entries.read_text()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for module, option, printed in (
        ("estimator_bridge", "--version", ""),
        ("compat_tests", "--help", "--driver"),
    ):
        ran = fresh.python("-m", module, option, cwd=elsewhere, env=environment, check=True)
        assert ran.stdout.strip()
        assert printed in ran.stdout


@pytest.mark.full
def test_two_builds_have_the_same_bytes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds have the same bytes, whatever the time and umask; another date changes them."""
    built = []
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name, mask in (("one", 0o022), ("two", 0o077)):
        (tmp_path / name).mkdir()
        before = os.umask(mask)
        try:
            built.append(dist.build(tmp_path / name))
        finally:
            os.umask(before)

    for one, two in zip(*built, strict=True):
        assert one.name == two.name
        assert one.read_bytes() == two.read_bytes(), one.name
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    archive = built[0][1].read_bytes()
    assert dist.normalized(archive) != archive


REASON = "from tf2_engine.native import loading; print(loading.load().reason)"


@pytest.mark.full
def test_a_first_run_compiles_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel has libraries for this TensorFlow; with other sources they are not used."""
    monkeypatch.delenv("CXXFLAGS", raising=False)
    libraries, wheels, site = tmp_path / "libraries", tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    dist.prebuild(libraries, [sys.executable])
    wheel, _ = dist.build(wheels, libraries)
    dist.check_prebuilt(wheel, [sys.executable])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    [header] = site.glob("tf2_engine/native/host/rows.h")
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "CXX": "no-compiler",
        "ESTIMATOR_BRIDGE_CACHE": str(tmp_path / "cache"),
    }

    for change, words in (("", str(site)), ("// changed\n", "no C++ compiler 'no-compiler'")):
        header.write_text(header.read_text() + change)
        ran = fresh.python("-c", REASON, cwd=site, env=environment)
        assert ran.returncode == 0, ran.stderr
        assert words in ran.stdout
    assert not (tmp_path / "cache").exists()


UNSTATED = {"namex"}
"""Packages whose metadata state no licence, as somebody has seen."""


@pytest.mark.full
def test_the_licences_of_all_requirements_are_listed() -> None:
    """The bill of materials has each package that an installation brings along, with a licence."""
    bill = dist.bill_of_materials()

    licences = {each["name"].lower(): each["licenses"] for each in bill["components"]}
    assert {"tensorflow", "numpy", "tensorboard", "absl-py", "protobuf"} <= set(licences)
    assert "pytest" not in licences
    unstated = {name for name, [each] in licences.items() if "NOASS" in each["license"]["name"]}
    assert unstated <= UNSTATED
    for each in bill["components"]:
        assert each["purl"].endswith(f"@{each['version']}")
