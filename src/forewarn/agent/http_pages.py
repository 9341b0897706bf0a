"""What the agent's pages say: /health, /ready, /metrics and /state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from forewarn.agent.face import Page, Pages, json_page
from forewarn.agent.metrics import CONTENT_TYPE, Metrics
from forewarn.agent.move import Situation
from forewarn.agent.pulse import Pulse
from forewarn.agent.standing import Standing, standing_of
from forewarn.agent.view import state_view


def pages_of(metrics: Metrics, situation: Callable[[], Situation], facts: Callable[[], Mapping[str, Any]]) -> Pages:
    """`facts` are what /state tells besides: the endpoint, problems."""

    def standing() -> Standing:
        now = situation()
        return standing_of(now.book, now.steps, now.vm)

    return {
        "/health": lambda: health_page(metrics.pulse),
        "/ready": lambda: ready_page(standing()),
        "/metrics": lambda: Page(body=metrics.exposition(standing()), content_type=CONTENT_TYPE),
        "/state": lambda: json_page({**state_view(situation()), "health": asdict(metrics.pulse.health()), **facts()}),
    }


def health_page(pulse: Pulse) -> Page:
    health = pulse.health()
    return json_page({"healthy": health.ok, "text": health.text}, 200 if health.ok else 503)


def ready_page(standing: Standing) -> Page:
    why = [f"{hold.step} holds it for a {hold.kind}, event {hold.event}" for hold in standing.holds]
    return json_page({"ready": not why, "why": why}, 503 if why else 200)
