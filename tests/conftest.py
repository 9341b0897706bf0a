"""For all tests: in continuous integration a test that is skipped has to be on the list of those that may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["FOREWARN_CONSOLE"] = ""  # services that tests start side by side would all want its port
OPTION = "--allowed-skips"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="fail when a test is skipped whose node id no line of FILE begins")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption(OPTION)
    if not path or hasattr(session.config, "workerinput"):
        return
    unexpected = _unexpected(session.config, Path(path))
    if unexpected and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if path and (unexpected := _unexpected(config, Path(path))):
        terminalreporter.section(f"skipped, and not on the list {path}")
        for node in unexpected:
            terminalreporter.line(node)


def _unexpected(config: pytest.Config, path: Path) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    allowed = tuple(line for line in lines if line)
    skipped = {report.nodeid for report in reporter.stats.get("skipped", ())}
    return sorted(node for node in skipped if not node.startswith(allowed or ("\0",)))
