"""A watcher that is killed while it handles a change gets that change again, and no other (spec §11)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripted_server import ScriptedServer, json_reply

EVENTS = [{"EventId": name, "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["x"]} for name in "ABC"]
WATCH = """
import sys
from forewarn.client import Client
for change in Client(sys.argv[1]).watch(cursor=sys.argv[2]):
    print(change.event.id, flush=True)
    if not sys.stdin.readline():
        break
"""


def output_before_the_kill(url: str, cursor: Path, handled: int) -> list[str]:
    """What a watcher prints that handles `handled` changes and is killed during the next."""
    command = [sys.executable, "-c", WATCH, url, str(cursor)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        printed = [child.stdout.readline().strip()]
        for _ in range(handled):
            child.stdin.write("handled\n")
            child.stdin.flush()
            printed.append(child.stdout.readline().strip())
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=60) == -signal.SIGKILL
    return printed


@pytest.mark.parametrize("handled", [0, 1, 2])
def test_after_kill_9_only_the_change_in_progress_is_delivered_again(tmp_path: Path, handled: int) -> None:
    with ScriptedServer(json_reply({"DocumentIncarnation": 4, "Events": EVENTS})) as server:
        first = output_before_the_kill(server.url, tmp_path / "cursor", handled)
        second = output_before_the_kill(server.url, tmp_path / "cursor", 2 - handled)
    assert first == list("ABC"[: handled + 1])
    assert second == list("ABC"[handled:])
