"""The tutorial of the crash test runs word for word, with real handlers, and prints what it shows."""

from __future__ import annotations

import re

import pytest

from forewarn.cli.crash_test import crash_test
from tests.support.service_process import free_port
from tools.docs.executable_page import ROOT, run_problems

PAGE = (ROOT / "docs" / "tutorials" / "crash-test-my-handler.md").read_text(encoding="utf-8")


@pytest.mark.crash
def test_the_tutorial_runs_as_it_is_written() -> None:
    port = free_port(2)
    assert run_problems(PAGE, (port, port + 1)) == []


def test_the_workflow_of_the_tutorial_uses_options_that_exist() -> None:
    (workflow,) = re.findall(r"^```yaml title=.*?\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    known = {option for parameter in crash_test.params for option in parameter.opts}
    used = set(re.findall(r"(?<= )--[a-z-]+", workflow))
    assert used
    assert used <= known
