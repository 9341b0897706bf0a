"""The format of the agent's log."""

from __future__ import annotations

import logging
import sys

from forewarn.agent.reporting import SingleLineFormatter

FORGED = "Reboot\nERROR all is lost\x1b[2J \u2028"


def test_a_server_cannot_forge_log_lines() -> None:
    record = logging.LogRecord("forewarn.agent", logging.INFO, "", 0, "%s of %s", (FORGED, "wäb-0"), None)
    line = SingleLineFormatter("%(levelname)s %(message)s").format(record)
    assert line == "INFO Reboot\\nERROR all is lost\\x1b[2J \\u2028 of wäb-0"


def test_a_traceback_is_logged_on_several_lines() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("forewarn.agent", logging.ERROR, "", 0, "it broke", (), sys.exc_info())
    first, *rest = SingleLineFormatter("%(levelname)s %(message)s").format(record).splitlines()
    assert first == "ERROR it broke"
    assert rest[-1] == "ValueError: broken"
