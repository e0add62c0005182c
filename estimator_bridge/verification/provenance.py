"""Records the versions, the machine, the time and the user of a comparison."""

from __future__ import annotations

import datetime
import getpass
import os
import platform
import subprocess
from collections.abc import Sequence

import estimator_bridge

_SECONDS = 10


def provenance(*programs: str) -> dict[str, str]:
    cores = os.cpu_count() or 1
    circumstances = {
        "estimator bridge": estimator_bridge.__version__,
        "machine": f"{platform.node()}, {platform.system()} {platform.machine()}, {cores} CPUs",
        "user": _user(),
        "date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
    }
    for program in dict.fromkeys(programs):
        circumstances[f"revision of {os.path.basename(program)}"] = revision_of(program)
    return circumstances


def revision_of(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return "in no git repository"
    if not _git(folder, "ls-files", "--", name):
        return f"{revision}, which does not hold this file"
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{revision}, with changes that are not committed" if changed else revision


def _git(folder: str, *arguments: str) -> str:
    # The configuration of a repository could start a program here.
    command: Sequence[str] = ("git", "-C", folder, "-c", "core.fsmonitor=false", *arguments)
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id may have no name
        return str(os.getuid())
