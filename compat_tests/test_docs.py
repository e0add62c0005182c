"""What the guides show is executed: each code block, in order."""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from estimator_bridge.audit.rules import RULES

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"

FEW = (
    *("--train_steps=6", "--save_checkpoints_steps=6", "--iterations_per_loop=3"),
    *("--train_batch_size=32", "--eval_batch_size=60", "--predict_batch_size=4"),
)
"""What is added to the legacy program's arguments: that it runs, not what it learns."""


def blocks(name: str) -> list[tuple[str, str]]:
    """Returns (language, text) of the code blocks of a guide."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def python(*arguments: str, cwd: pathlib.Path) -> str:
    """Runs Python in a folder; returns what it prints."""
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{arguments}\n{ran.stderr[-4000:]}"
    return ran.stdout


def write_data(folder: pathlib.Path) -> None:
    """Writes a small MovieLens: 30 users, 40 films, 600 ratings."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    users = [f"{i}\t{20 + i}\tF\tartist\t0" for i in range(30)]
    items = [f"{i}\tfilm {i}\t1990\tDrama War" for i in range(40)]
    chosen = rng.permutation(30 * 40)[:600]
    ratings = [f"{n // 40}\t{n % 40}\t{rng.integers(1, 6)}\t{t}" for t, n in enumerate(chosen)]
    for kind, head, rows in (
        ("user", "user_id:token age:token gender:token occupation:token zip_code:token", users),
        ("item", "item_id:token movie_title:token_seq release_year:token class:token_seq", items),
        ("inter", "user_id:token item_id:token rating:float timestamp:float", ratings),
    ):
        lines = [head.replace(" ", "\t"), *rows]
        (folder / f"ml-100k.{kind}").write_text("".join(f"{line}\n" for line in lines))


def test_every_rule_of_the_audit_is_in_its_guide() -> None:
    """The guide has each rule of the audit, word for word."""
    text = (DOCS / "what_stock_did.md").read_text(encoding="utf-8")
    for name, rule in RULES.items():
        assert f"| `{name}` | {rule.cpu} | {rule.tpu} | {rule.tf2} | {rule.way_out} |" in text


def test_the_guide_to_what_stock_did_runs() -> None:
    """Its Python is executed."""
    (block,) = (text for language, text in blocks("what_stock_did.md") if language == "python")

    exec(compile(block, "what_stock_did.md", "exec"), {})


@pytest.mark.full
def test_the_guide_to_migration_runs(tmp_path: pathlib.Path) -> None:
    """Each command and each block of Python is executed, in order; its own asserts hold."""
    shutil.copy(ROOT / "examples" / "movielens" / "train.py", tmp_path)
    write_data(tmp_path / "data")
    source = ""
    for language, text in blocks("migrate.md"):
        if language == "python":
            source += text
            continue
        for line in text.replace("\\\n", " ").strip().splitlines():
            command, *arguments = shlex.split(line)
            if "--data_dir" in arguments:
                arguments += FEW
            module = ["-m", "estimator_bridge"] if command == "estimator-bridge" else []
            python(*module, *arguments, cwd=tmp_path)
    (tmp_path / "guide.py").write_text(source)
    said = python("guide.py", cwd=tmp_path)

    assert "after 20 more steps" in said
