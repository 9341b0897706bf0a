"""For all tests: settings, signals, and --allowed-skips: a skipped test that is not on the list fails the run."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import hypothesis
import pytest

from tests.support.unclosed_databases import warn_of_unclosed_databases

os.environ["FOREWARN_API"] = ""  # services that tests start in parallel would all use the default port
OPTION = "--allowed-skips"
# How long an example takes says more about the machine than about the product.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")
warn_of_unclosed_databases()


def _take_interrupts() -> None:
    """Let programs that tests start receive SIGINT.

    A shell without job control starts background jobs with SIGINT ignored, as nohup may, and children inherit that:
    a test that interrupts a program would wait for it for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


_take_interrupts()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="fail if a skipped test's node id starts with no line of FILE")


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
        terminalreporter.section(f"skipped, but not listed in {path}")
        for node in unexpected:
            terminalreporter.line(node)


def _unexpected(config: pytest.Config, path: Path) -> list[str]:
    """The node ids of skipped tests that the list does not allow."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    allowed = tuple(line for line in lines if line)
    skipped = {report.nodeid for report in reporter.stats.get("skipped", ())}
    return sorted(node for node in skipped if not node.startswith(allowed or ("\0",)))
