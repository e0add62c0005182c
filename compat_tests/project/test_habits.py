"""Files for other tools: hooks of pre-commit, a workflow, and the container image."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from compat_tests.support.paths import ROOT
from estimator_bridge.cli import main

WORKFLOW = ROOT / "examples" / "github_action.yml"


def _parses(command: str) -> None:
    words = re.sub(r'"\$PROGRAM"( \$ARGUMENTS)?', "train.py", command).split()
    assert words[0] == "estimator-bridge"
    main.parsers()[0].parse_args(words[1:])


def test_hooks_of_pre_commit_are_commands() -> None:
    """Each hook has what pre-commit asks for, and its entry is a command that takes a program."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())

    assert len({hook["id"] for hook in hooks}) == len(hooks) == 2
    for hook in hooks:
        assert {"id", "name", "entry", "language"} <= hook.keys()
        _parses(f"{hook['entry']} train.py")


def test_the_workflow_runs_commands_that_exist() -> None:
    """The example workflow is YAML, and each command of ours in it parses."""
    [job] = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    lines = "\n".join(step.get("run", "") for step in job["steps"]).replace("\\\n", "").splitlines()
    commands = [line.partition("|")[0] for line in lines if line.startswith("estimator-bridge")]

    assert len(commands) == 2
    for command in commands:
        _parses(command)


INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "CMD"}


@pytest.mark.full
def test_the_image_is_built_or_its_file_makes_sense() -> None:
    """Docker builds the image where it runs; elsewhere instructions and paths are checked."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True).returncode == 0:
        subprocess.run([docker, "build", "-q", str(ROOT)], check=True, capture_output=True)
        return
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    instructions = [
        line.split(maxsplit=1) for line in text.splitlines() if line[:1] not in ("#", "")
    ]

    assert {name for name, _ in instructions} == INSTRUCTIONS
    assert instructions[0][0] == "FROM"
    inside = re.findall(r"/opt/estimator-bridge/(\S+\.py)", text) + re.findall(r"-c (\S+)", text)
    assert len(inside) == 3
    assert all((ROOT / path).is_file() for path in inside)
