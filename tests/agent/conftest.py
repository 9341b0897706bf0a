"""What the tests of the agent share: events as the wire shows them, and steps with little to say."""

from __future__ import annotations

from typing import Any

from forewarn.agent.value import Event, Step

NOW = 1_000_000.0


def event(id_: str = "E1", kind: str = "Reboot", *, left_s: float | None = 900, **facts: Any) -> Event:
    """Scheduled for `vm` and due in `left_s`; with None it has started."""
    is_started = left_s is None
    return Event(
        **{
            "id": id_,
            "kind": kind,
            "status": "Started" if is_started else "Scheduled",
            "resources": ("vm",),
            "not_before": None if left_s is None else NOW + left_s,
            "source": "Platform",
            "duration_s": -1,
            **facts,
        }
    )


def step(name: str, budget_s: float = 10, **settings: Any) -> Step:
    return Step(**{"name": name, "use": "command", "budget_s": budget_s, **settings})
