"""The agent's pages: /health, /ready, /metrics and /state.

Imported only when the agent listens, because it needs prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from forewarn.agent.actions import AgentSnapshot
from forewarn.agent.metrics import AgentMetrics, EndpointHealthTracker
from forewarn.agent.status import MaintenanceStatus, maintenance_status, state_view
from forewarn.base.http_server import METRICS_CONTENT_TYPE, HttpPage, json_page


def build_pages(
    metrics: AgentMetrics, get_snapshot: Callable[[], AgentSnapshot], extra_state: Callable[[], Mapping[str, Any]]
) -> dict[str, Callable[[], HttpPage]]:
    """Return the pages /health, /ready, /metrics and /state, by path, as functions that make each anew."""

    def status() -> MaintenanceStatus:
        snapshot = get_snapshot()
        return maintenance_status(snapshot.open_records, snapshot.steps, snapshot.vm)

    return {
        "/health": lambda: _health_page(metrics.endpoint_health),
        "/ready": lambda: _ready_page(status()),
        "/metrics": lambda: HttpPage(body=metrics.render(status()), content_type=METRICS_CONTENT_TYPE),
        "/state": lambda: json_page(
            {**state_view(get_snapshot()), "health": asdict(metrics.endpoint_health.health()), **extra_state()}
        ),
    }


def _health_page(tracker: EndpointHealthTracker) -> HttpPage:
    health = tracker.health()
    return json_page({"healthy": health.ok, "text": health.text}, 200 if health.ok else 503)


def _ready_page(status: MaintenanceStatus) -> HttpPage:
    reasons = [f"step {hold.step} is in effect for {hold.kind} {hold.event}" for hold in status.holds]
    return json_page({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)
