"""Folders for results are created before the work starts, or refused with the cause."""

from __future__ import annotations

import pathlib
import re

import pytest

from tf2_engine import errors, export_folders, output_folders


@pytest.mark.parametrize("kind", [str, pathlib.Path, lambda path: str(path).encode()])
def test_a_folder_is_created(kind: type, tmp_path: pathlib.Path) -> None:
    """A folder and those above it are created; one that exists stays as it is."""
    for _ in range(2):
        output_folders.create(kind(tmp_path / "a" / "b"))
        (tmp_path / "a" / "b" / "c").write_text("")
    assert [each.name for each in tmp_path.glob("a/b/*")] == ["c"]


@pytest.mark.parametrize(
    "name, why",
    [
        ("file", "/file is not a directory"),
        ("file/job", "/file is not a directory"),
        ("jobs/" + "j" * 300, " takes no new folder: File name too long"),
    ],
)
def test_what_cannot_be_created_is_named(name: str, why: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = rf"^{tmp_path}/{name}: checkpoints .* because {tmp_path}.*{why}. Give another"
    with pytest.raises(errors.CannotWrite, match=wanted):
        output_folders.create(str(tmp_path / name))
    with pytest.raises(errors.CannotWrite, match="exports cannot be .*" + re.escape(why)):
        export_folders.new_directories(str(tmp_path / name))


def test_other_file_systems_are_left_to_tensorflow() -> None:
    """A path with a scheme, such as that of a bucket, creates nothing here."""
    output_folders.create("gs://none/job")
    assert not pathlib.Path("gs:").exists()
