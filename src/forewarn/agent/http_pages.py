"""The agent's pages: /health, /ready, /metrics and /state.

Imported only when the agent listens, because it needs prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from forewarn.agent.actions import AgentSnapshot
from forewarn.agent.http_server import AgentPage, AgentPages, json_page
from forewarn.agent.metrics import CONTENT_TYPE, AgentMetrics, EndpointHealthTracker
from forewarn.agent.status import MaintenanceStatus, maintenance_status, state_view


def build_pages(
    metrics: AgentMetrics, situation: Callable[[], AgentSnapshot], facts: Callable[[], Mapping[str, Any]]
) -> AgentPages:
    """`facts` are what /state tells besides: the endpoint, problems."""

    def standing() -> MaintenanceStatus:
        now = situation()
        return maintenance_status(now.open_records, now.steps, now.vm)

    return {
        "/health": lambda: health_page(metrics.endpoint_health),
        "/ready": lambda: ready_page(standing()),
        "/metrics": lambda: AgentPage(body=metrics.render(standing()), content_type=CONTENT_TYPE),
        "/state": lambda: json_page(
            {**state_view(situation()), "health": asdict(metrics.endpoint_health.health()), **facts()}
        ),
    }


def health_page(pulse: EndpointHealthTracker) -> AgentPage:
    health = pulse.health()
    return json_page({"healthy": health.ok, "text": health.text}, 200 if health.ok else 503)


def ready_page(standing: MaintenanceStatus) -> AgentPage:
    why = [f"{hold.step} holds it for a {hold.kind}, event {hold.event}" for hold in standing.holds]
    return json_page({"ready": not why, "why": why}, 503 if why else 200)
