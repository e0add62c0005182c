"""`estimator-bridge migrate`: the bridge form changes the imports and nothing else."""

from __future__ import annotations

import json
import pathlib
import textwrap

import pytest

from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.migrate import adopt

HEAD = """\
from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.
"""


def rewritten(source: str) -> str:
    return adopt(textwrap.dedent(source)).source


def test_the_command_overwrites_only_if_asked_to(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new program is NAME_bridge.py; overwriting an existing file needs --force."""
    path = tmp_path / "train.py"
    path.write_bytes(b"from tensorflow import estimator\r\nx = 1\r\n")
    new = tmp_path / "train_bridge.py"

    assert main.main(["migrate", str(path)]) == 0
    assert b"from estimator_bridge import estimator" in new.read_bytes()
    assert b"x = 1\r\n" in new.read_bytes()
    assert "[import] line 1: from tensorflow import estimator -> " in capsys.readouterr().out
    assert main.main(["migrate", str(path)]) == 2
    assert "exists. Give another --output, or --force" in capsys.readouterr().err
    assert main.main(["migrate", "--json", "--force", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][0]["line"] == 1
    assert main.main(["migrate", "--diff", str(path)]) == 0
    assert "-from tensorflow import estimator" in capsys.readouterr().out
    assert main.main(["migrate", "--in_place", str(path)]) == 0
    assert path.read_bytes() == new.read_bytes()


@pytest.mark.parametrize("form", ["bridge", "tf2"])
@pytest.mark.parametrize(
    "name, words", [("nowhere.py", "no program"), ("old.py", "Python 3 cannot read")]
)
def test_a_file_that_is_no_program_is_an_error(
    name: str, words: str, form: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.py").write_text("print 'Python 2'\n")

    assert main.main(["migrate", f"--form={form}", str(tmp_path / name)]) == 2
    stderr = capsys.readouterr().err
    assert name in stderr
    assert words in stderr


@pytest.mark.parametrize("deep", ["(" * 300 + ")" * 300, "1" + " + 1" * 5000, "-" * 9000 + "1"])
def test_hostile_nesting_is_refused(deep: str) -> None:
    with pytest.raises(errors.InvalidInput, match=r"deep\.py"):
        adopt(f"import tensorflow as tf\nx = {deep}\n", "deep.py")


def test_encodings_modes_and_links_are_kept(tmp_path: pathlib.Path) -> None:
    """The new program keeps the encoding and file mode of the old one; links stay links."""
    path, link = tmp_path / "train.py", tmp_path / "link.py"
    text = "# coding: latin-1\nfrom tensorflow import estimator  # gr\xfc\xdfe\n"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o750)
    link.symlink_to(path)

    assert main.main(["migrate", "--in_place", str(link)]) == 0
    assert link.is_symlink()
    assert b"# gr\xfc\xdfe\n" in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o750
    path.write_bytes(b"x = '\xff'\n")
    assert main.main(["migrate", "--force", str(path)]) == 2
