"""Names of modules and of public classes: one thing has a name alone, or the list says why not."""

from __future__ import annotations

import ast
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from compat_tests.support.paths import ROOT

NAMED_BY_OTHERS = {
    "estimator_bridge/cli": "a command has the name of what it runs",
    "estimator_bridge/estimator": "namespaces have the names of stock's",
    "estimator_bridge/run/tf1/contrib": "modules have the names of those of tf.contrib",
    "tf2_engine/backends": "each backend has the same files; CONTRIBUTING says what is in them",
}
"""Folders whose modules may have names that are used elsewhere, and who gave those names."""

SHARED_MODULES = {
    "declared": "the bridge has the engine's decorator by a name of its own",
    "early_stopping": "the same callbacks for both kinds of training: sessions and `Trainer`",
    "errors": "the errors of either package; those of the bridge are built on the engine's",
    "heads": "the same heads, of canned estimators and of Keras models",
    "hooks": "hooks for sessions, and for `Trainer`",
    "install": "`estimator_bridge.install` is the name that programs import",
    "lockstep": "verify's stages: recorded in lockstep, compared in lockstep",
    "loop": "training loops: of sessions, and of `Trainer`",
    "report": "the result of a package's work, for people and as JSON",
    "table_summaries": "the same statistics for each kind of training",
    "update_rules": "verify's stages: rules are recorded, then replayed",
}
"""Names of several modules that mean the same thing in each place, and which."""

OF_STOCK = "`tf2_engine.training` has stock's name, for programs that leave the bridge"
SHARED_CLASSES = {
    "EvalSpec": OF_STOCK,
    "ModeKeys": OF_STOCK,
    "RunConfig": f"stock has two, of tf.estimator and of its tpu; {OF_STOCK}",
    "ServingInputReceiver": "stock's, and that of a Keras model, which has no alternatives",
    "TableSummaryHook": "the same statistics for sessions and for `Trainer`",
    "TensorServingInputReceiver": "as ServingInputReceiver",
    "TrainSpec": OF_STOCK,
    "WarmStartSettings": OF_STOCK,
}
"""Names of several public classes, and why."""


def product_sources() -> list[pathlib.PurePath]:
    """Returns the sources of both packages, relative to the root."""
    paths = [path for package in ("estimator_bridge", "tf2_engine") for path in files(package)]
    assert len(paths) > 300
    return paths


def files(package: str) -> Iterator[pathlib.PurePath]:
    """Yields the sources of a package."""
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path.relative_to(ROOT)


def repeated(paths: Iterable[pathlib.PurePath]) -> dict[str, list[str]]:
    """Returns names that several modules or packages have, with their paths.

    Those in folders of `NAMED_BY_OTHERS` do not count.
    """
    by_name = defaultdict(list)
    for path in paths:
        module = path.parent if path.stem == "__init__" else path.with_suffix("")
        if not any(str(module).startswith(f"{folder}/") for folder in NAMED_BY_OTHERS):
            by_name[module.name].append(str(module))
    by_name.pop("__main__", None)
    return {
        name: modules
        for name, modules in by_name.items()
        if len({*modules} - {*NAMED_BY_OTHERS}) > 1
    }


def test_no_two_modules_of_one_name_mean_different_things() -> None:
    """A name of several modules is in the list, with what it means in all of them."""
    shared = repeated(product_sources())
    assert {name: shared[name] for name in shared if name not in SHARED_MODULES} == {}
    assert {*SHARED_MODULES} - {*shared} == set(), "these are names of one module: take them out"


def test_folders_whose_names_others_gave_exist() -> None:
    """A folder that is gone is taken out of the list."""
    assert [folder for folder in NAMED_BY_OTHERS if not (ROOT / folder).is_dir()] == []


def public_classes(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns where each public class of the top level is, by its name."""
    by_name = defaultdict(list)
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                by_name[node.name].append(path)
    return by_name


def test_no_two_public_classes_have_one_name() -> None:
    """A name of several public classes is in the list, with the reason."""
    sources = {str(path): (ROOT / path).read_text() for path in product_sources()}
    shared = {name: each for name, each in public_classes(sources).items() if len(each) > 1}
    assert {name: shared[name] for name in shared if name not in SHARED_CLASSES} == {}
    assert {*SHARED_CLASSES} - {*shared} == set(), "these are names of one class: take them out"


def test_repeated_names_are_seen() -> None:
    """Modules and packages of one name are found; those of listed folders are not counted."""
    paths = map(
        pathlib.PurePath,
        ("a/plan.py", "b/plan/__init__.py", "b/plan/step.py", "estimator_bridge/cli/step.py"),
    )
    assert repeated(paths) == {"plan": ["a/plan", "b/plan"]}
    classes = public_classes({"a": "class A: pass\nclass _B: pass", "b": "class A:\n  class C: 0"})
    assert classes == {"A": ["a", "b"]}
