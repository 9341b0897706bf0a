"""What the verdict of its health checks makes of a rollout (spec §13.5)."""

from __future__ import annotations

from msgspec.structs import replace

from forewarn.core.health import HealthDecision, HealthVerdict
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import PLATFORM_ACTOR
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState


def after_verdict(
    request: MaintenanceRequest, rollout: Rollout, verdict: HealthVerdict, now: float
) -> tuple[Rollout, HistoryEntry | None]:
    """Return the running rollout as the verdict changes it at lab time `now`, and a history entry.

    It pauses, begins to wait, or goes on; the rollout itself, and None, if nothing changes. A wait for measurements
    that are still to come changes nothing, and neither does another reason for the same wait.
    """
    match verdict.decision:
        case HealthDecision.PAUSE:
            changed = replace(rollout, progress=RolloutState.PAUSED, why=verdict.why, unclear="")
            text = f"rollout {request.id} paused: {verdict.why}; events that have not started are withdrawn"
            return changed, _entry(request, EntryKind.PAUSED, text, now)
        case HealthDecision.WAIT if not rollout.unclear:
            text = f"rollout {request.id} publishes nothing for now: {verdict.why}"
            return replace(rollout, unclear=verdict.why), _entry(request, EntryKind.PAUSED, text, now)
        case HealthDecision.GO_ON if rollout.unclear:
            text = f"rollout {request.id} goes on: its checks are clear again"
            return replace(rollout, unclear=""), _entry(request, EntryKind.RESUMED, text, now)
    return rollout, None


def _entry(request: MaintenanceRequest, kind: EntryKind, text: str, now: float) -> HistoryEntry:
    return HistoryEntry(at=now, what=kind, who=PLATFORM_ACTOR, text=text, request_id=request.id)
