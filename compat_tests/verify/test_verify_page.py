"""The contents of the page of `verify`: what it says, folds and leaves out."""

from __future__ import annotations

import dataclasses
import html.parser
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from compat_tests.support import recordings
from compat_tests.support.recordings import batch, rows, step
from estimator_bridge.cli import verify
from estimator_bridge.recording.files import CHECKPOINT
from estimator_bridge.verification import result as text
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.findings import TABLE
from estimator_bridge.verification.report import page
from estimator_bridge.verification.result import Result
from tf2_engine import plain_text

NAMES = [
    *(
        "\x1b]0;title\x07",
        "\x1b[31mred",
        "a\rb",
        "\u202egnp.exe",
        "\u2066x\u2069",
        "\ud800",
        "\x9b2J",
    ),
    *("\x7f", "\u2028", "\ufeff", "<script>alert(1)</script>", '"><img src=x onerror=y>', "`<i>`"),
]
TITLE = "train.py <b> & more"


def result_of(tmp_path: pathlib.Path, name: str = "t", **changes: Any) -> Result:
    """Compares two sides whose table diverges step by step."""
    table = {**recordings.SETTINGS["tables"][0], "name": name}
    settings = {"tables": [table], **changes.pop("settings", {})}
    apart = changes.pop("apart", (0.0, 0.0, 1e-9, 0.25))
    shared = {"settings": settings, "batches": (batch(1, 3),) * 4}
    moved = [rows() for _ in apart]
    for table, off in zip(moved, apart, strict=True):
        table[3] += np.float32(off)
    a, b = tuple(step(rows()) for _ in apart), tuple(map(step, moved))
    return recordings.judged(tmp_path, {**shared, "steps": a}, {**shared, "steps": b})


def shown(written: str) -> str:
    """Returns the text of a page, without tags and style."""
    body = re.sub(r"<style>.*?</style>", "", written, flags=re.S)
    return re.sub(r"<[^>]*>", " ", body)


class Reader(html.parser.HTMLParser):
    """Checks that the tags of a page close in order; keeps tags, with attributes, and text."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[tuple[str, tuple[str, ...]]] = set()
        self.text = ""
        self.feed(written)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.handle_startendtag(tag, attributes)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.tags.add((tag, tuple(name for name, _ in attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("equal", [True, False])
def test_the_page_needs_nothing_else(equal: bool, tmp_path: pathlib.Path) -> None:
    """The page is well-formed, loads nothing, runs no script, and shows every finding."""
    result = result_of(tmp_path, apart=(0.0 if equal else 0.5,) * 30)
    written = page.page(result, TITLE)
    reader = Reader(written)
    names = {name for _, attributes in reader.tags for name in attributes}
    assert not names & {"src", "href", "onload", "data", "srcset"}
    assert not re.search(r"https?:|url\(|@import|<script", written)
    assert TITLE in reader.text
    assert "stock reads it nowhere" in reader.text
    assert "does not evaluate, does not predict and exports no model" in reader.text
    assert reader.text.count("NOT EQUAL") == (0 if equal else 2)  # in the verdict and in the table
    assert reader.text.count("allowed") > 3
    assert ("step 1, row 3" in reader.text) == (not equal)
    assert text.verdict(result) in str(result)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text_and_nothing_else(name: str, tmp_path: pathlib.Path) -> None:
    """Names of tables, programs and messages cannot inject markup into the page."""
    clean = page.page(result_of(tmp_path / "1", "t"), TITLE)
    result = result_of(tmp_path / "2", name)
    result.not_compared.append(f"{name} is left out")
    result.failures.append(f"{name} failed")
    result.about = {"user": name}
    written = page.page(result, f"{TITLE} {name}")
    assert written.replace("\n", "").isprintable()
    written.encode()
    assert Reader(written).tags <= Reader(clean).tags | {("code", ())}


@pytest.mark.parametrize("name", NAMES)
def test_plain_text_stays_what_it_is(name: str) -> None:
    """Visible characters stay, and others become escapes; escaping twice changes nothing more."""
    plain = plain_text.plain(f"ä {name} ✓")
    assert plain.startswith("ä ")
    assert plain.endswith(" ✓")
    assert plain.isprintable()
    assert plain_text.plain(plain) == plain
    nested = plain_text.plain_values({name: [{"a": (name, 1)}]})
    assert nested == {plain_text.plain(name): [{"a": [plain_text.plain(name, lines=True), 1]}]}
    assert plain_text.plain("a\tb\r\nc", lines=True) == "a       b\nc"


def test_the_page_says_what_is_compared_and_what_not(tmp_path: pathlib.Path) -> None:
    """The page starts with the subject, the verdict and the omissions; the sides follow.

    Equal settings are folded; settings that differ or are ignored are visible at once.
    """
    result = result_of(tmp_path)
    result.about = verify.provenance(__file__)
    written = page.page(result, TITLE)
    text = shown(written)
    order = [
        "whether side B, the bridge on TensorFlow 2.15.1 (bridge), computes the same numbers",
        "NOT EQUAL",
        "Not compared, and why",
        "Training steps after the first 4.",
        "Why they differ",
        "The two sides",
        "machine",
        "user",
        f"revision of {pathlib.Path(__file__).name}",
        "How it was compared",
        "Signature",
    ]
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    unfolded = re.sub(r"<details.*?</details>", "", written, flags=re.S)
    assert "AdagradParameters" in written
    assert "AdagradParameters" not in unfolded
    assert "clipping_limit" in unfolded


def test_the_jumps_of_curves_are_explained(tmp_path: pathlib.Path) -> None:
    """The page names the step at which a curve leaves 0, and each jump with its array."""
    text = shown(page.page(result_of(tmp_path, apart=(0.0, 2.0**-22, 0.25))))
    assert "Equality ends at step 2 for tables (words)." in text
    assert "At step 3 the curve of tables rises" in text
    assert "rises" not in shown(page.page(result_of(tmp_path / "2", apart=(0.0, 0.0))))


def test_of_many_tables_those_are_shown_of_which_least_can_be_told(tmp_path: pathlib.Path) -> None:
    """Similar tables share a line, the least conclusive come first, and print shows four lines."""
    result = result_of(tmp_path)
    of_table = next(each for each in result.series if each.role == TABLE)
    factors = [2.0**-20] * 12 + [2.0**-number for number in range(1, 9)]
    result.series = [
        dataclasses.replace(of_table, table=f"t{number}", visible=visible, moved=True)
        for number, visible in enumerate(factors)
    ]

    lines = list(text.table_lines(result))
    assert lines[0].startswith("table t12: a relative error of 50.0 % would be seen")
    assert lines[-1].startswith("tables t0, t1, t2, t3 and 8 more: a relative error of 1e-06 would")
    assert len(lines) == 9

    written = page.page(result)
    unfolded = shown(re.sub(r"<details.*?</details>", "", written, flags=re.S))
    assert all(f"table t{number}: " in unfolded for number in (12, 13, 14, 15))
    assert "In the other tables, smaller errors would have been seen." in unfolded
    assert "table t16: " not in unfolded
    assert "table t16: " in shown(written)


def test_nothing_is_said_that_is_not_so(tmp_path: pathlib.Path) -> None:
    """The page only mentions start, batches and outcomes if the findings include them."""
    alike = shown(page.page(result_of(tmp_path / "1")))
    assert "Both sides began with the same variables, bit for bit." in alike
    assert "Each side read its own input; all 4 batches are the same." in alike

    result = result_of(tmp_path / "2")
    result.series[0].points[0] = result.series[0].points[0]._replace(difference=1.0)
    assert "The sides did not begin with the same variables." in shown(page.page(result))

    result = result_of(tmp_path / "3", settings={"engine": CHECKPOINT})
    text = shown(page.page(result))
    assert "Side B is a checkpoint: only its last step is compared" in text
    assert "does not evaluate" not in text


def test_a_program_that_failed_is_not_said_to_do_nothing(tmp_path: pathlib.Path) -> None:
    """If a side failed, the page says so, and does not claim that the program predicts nothing."""
    for side, name in (("b", "1"), ("a", "2")):
        result_of(tmp_path / name)
        (tmp_path / name / side / "failed.json").write_text('"ValueError: no predictions"')
        sides = [recordings.Recording(tmp_path / name / each) for each in "ab"]
        text = shown(page.page(comparison.compare(*sides)))
        assert "ValueError: no predictions: side" in text
        assert (
            "After its training the program does not evaluate" in text
        )  # The other side shows it.
        (tmp_path / name / "ba"[side == "b"] / "failed.json").write_text('"OSError"')
        text = shown(page.page(comparison.compare(*sides)))
        assert "After its training the program" not in text
        assert "after both sides have failed" in text


@pytest.mark.parametrize("changed", [False, True])
def test_the_revision_of_a_program_is_found(changed: bool, tmp_path: pathlib.Path) -> None:
    """A program in a git repository has a revision and a remark on changes; others have none."""
    program = tmp_path / "train.py"
    program.write_text("print(1)")
    assert verify.revision_of(str(program)) == "not in a git repository"
    who = ("-c", "user.name=n", "-c", "user.email=e@x")
    for arguments in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        assert verify._git(str(tmp_path), *arguments) is not None
    if changed:
        program.write_text("print(2)")
    revision = verify.revision_of(str(program))
    assert re.match(r"[0-9a-f]{40}", revision)
    assert revision.endswith("not committed") == changed
    other = tmp_path / "other.py"
    other.write_text("")
    assert "does not contain this file" in verify.revision_of(str(other))
