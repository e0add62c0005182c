"""The folder of recordings and logs of commands that run a program. Not a command itself."""

from __future__ import annotations

import pathlib
import shutil
import tempfile


class Place:
    """The directory of recordings and logs, which is removed at the end unless `keep` is set.

    The logs stay after an error, or if one of the runs failed.
    """

    def __init__(self, keep: str | None) -> None:
        self.directory = pathlib.Path(keep or tempfile.mkdtemp(prefix="estimator-bridge-"))
        self.directory = self.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._is_kept = keep is not None
        self.keeps_logs = False

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_kept:
            return
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != ".log":
                path.unlink()
        if kind is None and not self.keeps_logs:
            shutil.rmtree(self.directory)
