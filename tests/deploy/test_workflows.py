"""Workflow files name commands that exist, and the shell steps of the examples for CI systems really run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from forewarn.cli.root_command import forewarn
from forewarn.service.data_directory import running_service_pid
from tests.support.service_process import free_port

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
EXAMPLES = ROOT / "examples" / "ci"
TARGETS = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8")))
MAKE = re.compile(r"\bmake ([a-z-]+)")
STEP = re.compile(r"^(?:make|suite) ([a-z-]+)$", re.MULTILINE)  # of continuous integration
FILES = re.compile(r"[\w./-]*\b(?:tests|examples|docs|deploy|bench)/[\w./-]+\.\w+")


def loaded(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def job_steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def script_lines(path: Path) -> list[str]:
    """All shell lines of a workflow for GitHub or GitLab."""
    document = loaded(path)
    if "jobs" in document:
        return [line for step in job_steps(document) for line in step.get("run", "").splitlines()]
    return [line for job in document.values() for part in job if part.endswith("script") for line in job[part]]


ALL = [*sorted(WORKFLOWS.glob("*.yml")), *sorted(EXAMPLES.glob("*.yml"))]


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_workflow_names_targets_files_and_commands_that_exist(path: Path) -> None:
    for line in script_lines(path):
        assert set(MAKE.findall(line)) <= TARGETS, line
        for command, rest in re.findall(r"\bforewarn ([a-z-]+)\b([^|;&]*)", line):
            found = forewarn.get_command(click.Context(forewarn), command)
            assert found is not None, line
            known = {option for parameter in found.params for option in parameter.opts}
            assert set(re.findall(r"--[a-z-]+", rest)) <= known, line
    for name in FILES.findall(path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_the_workflow_for_changes_runs_every_step_of_continuous_integration() -> None:
    steps = STEP.findall((ROOT / ".ci" / "run").read_text(encoding="utf-8").partition("set -euo")[2])
    jobs = loaded(WORKFLOWS / "ci.yml")["jobs"]
    assert ["test", *jobs["suite"]["strategy"]["matrix"]["target"]] == steps
    assert "- run: make test\n" in (WORKFLOWS / "ci.yml").read_text(encoding="utf-8")


def test_a_release_is_tested_before_it_is_built_and_published_by_a_trusted_workflow() -> None:
    jobs = loaded(WORKFLOWS / "release.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("test", "build")
    actions = [step["uses"].partition("@")[0] for step in jobs["build"]["steps"] if "uses" in step]
    assert "actions/attest-build-provenance" in actions
    assert jobs["build"]["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "release"
    assert "secrets." not in str(jobs["publish"])


class CiMachine:
    """Runs the shell steps of a workflow as a CI system does: one shell for each, in the project's directory."""

    def __init__(self, home: Path) -> None:
        self.data = home / "data"
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")},
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FOREWARN_DATA": str(self.data),
            "FOREWARN_PORT": str(free_port()),
            "FOREWARN_API": "127.0.0.1:0",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        }

    def run(self, script: str, variables: dict[str, str]) -> str:
        """Run one step, which must succeed, and return its output."""
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=ROOT,
            env=self._environment | variables,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[CiMachine]:
    machine = CiMachine(tmp_path)
    yield machine
    assert running_service_pid(machine.data) is None, "the steps left a lab running"


def test_the_steps_for_github_start_a_lab_test_a_handler_and_stop_the_lab(machine: CiMachine) -> None:
    workflow = loaded(EXAMPLES / "github.yml")
    steps = [step["run"] for step in job_steps(workflow) if "run" in step]
    outputs = [machine.run(step, workflow["env"]) for step in steps]
    assert "the lab is up" in outputs[1]
    assert "1 passed" in outputs[2]
    assert "Stopped" in outputs[-1]


def test_the_steps_for_gitlab_start_a_lab_test_a_handler_and_stop_the_lab(machine: CiMachine) -> None:
    job = loaded(EXAMPLES / "gitlab.yml")["handler"]
    main = machine.run("\n".join([*job["before_script"], *job["script"]]), job["variables"])
    assert "the lab is up" in main
    assert "1 passed" in main
    assert "Stopped" in machine.run("\n".join(job["after_script"]), job["variables"])
