"""A command makes one call to the service: what its output shows comes in the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forewarn.cli.api_client import HttpAnswer
from forewarn.cli.transport import LocalTransport

FLEET = """
[[hosts]]
name = "h{n}"
count = 2

[[vms]]
name = "a"
"""
COMMANDS = [
    "fleet show",
    "fleet show web",
    "fleet add extra --host h1",
    "events",
    "events --vm web",
    "restart db-0",
    "redeploy web",
    "restart db-0 db-1 --dry-run",
    "approve --vm web",
    "approve --host h1",
    "withdraw --vm web --reason later",
    "power db-1 off",
    "evict spot",
    "degrade h3",
    "fail h3",
    "perform-maintenance db-0",
    "history",
    "explain web",
    "rollout start --all-hosts --impact update --no-wait",
    "rollout start --scope db --impact update --no-wait",
    "rollout plan --everything --canary 1",
    "rollout list",
    "budget set all --at-most 2",
    "budget list",
    "clock show",
    "clock advance 1h",
    "clock speed 2",
    "fault list",
    "fault set throttled --vm web",
    "fault storm --seed 1",
    "replays",
    "webhook list",
    "webhook add http://127.0.0.1:9/x --over-group lab",
    "access show",
    "access client add someone",
    "access client renew clerk",
    "access grant Reader --to-vm web --over-group lab",
    "vm list",
    "env",
    "whoami",
    "doctor",
]


class SentRequests:
    """The requests that commands sent to the service, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets: list[str] = []
        send = LocalTransport.send

        def counted(transport: LocalTransport, method: str, target: str, *rest: Any) -> HttpAnswer:
            self.targets.append(f"{method} {target}")
            return send(transport, method, target, *rest)

        monkeypatch.setattr(LocalTransport, "send", counted)


@pytest.fixture
def sent(lab: Any, monkeypatch: pytest.MonkeyPatch) -> SentRequests:
    """Counts the calls of commands. The lab has a restart of web and a platform event of db-0 pending."""
    lab.good("restart", "web")
    lab.good("rollout", "start", "--scope", "db", "--impact", "reboot", "--no-wait")
    lab.good("access", "client", "add", "clerk")
    return SentRequests(monkeypatch)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_makes_one_call(lab: Any, sent: SentRequests, words: str) -> None:
    result = lab(*words.split())
    assert result.exit_code in (0, 1), result.output
    assert len(sent.targets) == 1, sent.targets


def test_applying_a_fleet_file_without_asking_makes_one_call(lab: Any, sent: SentRequests, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    assert "Applied." in lab.good("fleet", "apply", str(file), "--yes", "--resurrect")
    assert len(sent.targets) == 1, sent.targets


def test_an_advance_of_the_clock_says_why_no_scope_became_idle(lab: Any, sent: SentRequests) -> None:
    """Spec §8.2, §8.3."""
    text = lab.good("clock", "advance", "25h", "--without-polls")
    assert "No scope becomes idle, because the setting enablement is always." in text
    assert "forewarn up --enablement on-request" in text
    assert sent.targets == ["POST /forewarn/v1/clock/advance"]


def test_several_events_are_approved_in_one_call(lab: Any, sent: SentRequests) -> None:
    ids = [event["id"] for event in lab.json("events")["events"]]
    sent.targets.clear()
    shown = lab.json("approve", *ids)
    assert [event["id"] for event in shown["events"]] == ids
    assert sent.targets == ["POST /forewarn/v1/events/approve"]
