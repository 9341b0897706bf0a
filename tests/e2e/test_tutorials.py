"""The tutorials run word for word, in an empty directory, and print what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.service_process import free_port
from tools.docs.executable_page import CommandStep, page_steps, run_problems

ROOT = Path(__file__).parents[2]
TUTORIALS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}
INSTALLATION = re.compile(r"^```sh\n((?:(?!```).*\n)*pip install (.*)\n)```$", re.MULTILINE)
EACH_TUTORIAL = pytest.mark.parametrize("name", TUTORIALS)
MAX_WORDS = 1500


def lab_ports() -> tuple[int, int]:
    first = free_port(2)
    return first, first + 1


@pytest.mark.parametrize("name", ["first-ten-minutes", "handler-in-ci"])
def test_the_tutorial_runs_as_it_is_written(name: str) -> None:
    assert run_problems(TUTORIALS[name], lab_ports()) == []


@EACH_TUTORIAL
def test_everything_in_a_tutorial_is_run(name: str) -> None:
    """A block that is neither a command nor a file would not be."""
    fences = re.findall(r"^```(.+)$", TUTORIALS[name], re.MULTILINE)
    assert [fence for fence in fences if fence not in ("console", "sh") and "title=" not in fence] == []
    assert len([step for step in page_steps(TUTORIALS[name]) if isinstance(step, CommandStep)]) >= 3


@EACH_TUTORIAL
def test_a_tutorial_installs_forewarn_from_its_folder_into_an_environment_of_its_own(name: str) -> None:
    """The one block that no test of a tutorial runs: the tests of the wheel prove that an installation works."""
    ((block, requirements),) = INSTALLATION.findall(TUTORIALS[name])
    assert block.startswith("python3 -m venv venv\n. venv/bin/activate\npip install ")
    assert requirements.split()[0] == "'./forewarn[server]'"
    assert set(requirements.split()[1:]) <= {"pytest"}


def test_the_workflow_runs_commands_that_the_tutorial_has_run() -> None:
    page = TUTORIALS["handler-in-ci"]
    (workflow,) = re.findall(r"^```yaml title=.*?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    run = [step.command for step in page_steps(page) if isinstance(step, CommandStep)]
    lines = [line.removeprefix("- run: ") for line in map(str.strip, workflow.splitlines())]
    commands = [line for line in lines if line.startswith(("forewarn ", "FOREWARN_", "pytest "))]
    assert len(commands) == 6
    assert [command for command in commands if command not in run] == []


@EACH_TUTORIAL
def test_a_tutorial_is_short(name: str) -> None:
    assert len(TUTORIALS[name].split()) <= MAX_WORDS


@EACH_TUTORIAL
def test_every_link_of_a_tutorial_has_a_target(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TUTORIALS[name]):
        assert (ROOT / "docs" / "tutorials" / target).exists(), target
