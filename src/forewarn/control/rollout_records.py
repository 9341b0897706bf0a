"""What the rollout service commits about a rollout: new states, withdrawals, history entries."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState
from forewarn.core.health import HealthDecision, HealthVerdict
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import PLATFORM_ACTOR, reconcile_scope
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState
from forewarn.core.rollout import PUBLISHES_NOTHING
from forewarn.core.scope import Scope


def withdraw_decision(event_ids: list[str], rollout: Rollout) -> Callable[[Scope, DecisionContext], Scope]:
    """Return a decision that withdraws these events of a scope together."""
    # All events are withdrawn at once, so that none starts because another no longer blocks it. If a health check
    # paused the rollout, they are only postponed; what the check found stays with the rollout, because readers of a
    # single scope see the reason.
    is_postponed = rollout.has_paused_itself
    reason = f"its rollout was {rollout.progress}" + (" by a health check" if is_postponed else "")

    def decision(scope: Scope, context: DecisionContext) -> Scope:
        for event_id in event_ids:
            event = scope.event(event_id)
            if event is not None and event.status is EventState.SCHEDULED:
                event = replace(event, is_postponed=is_postponed)
                scope = lifecycle.withdraw(scope, event, by=PLATFORM_ACTOR, reason=reason, now=context.now)
        return reconcile_scope(scope, context)

    return decision


def failures_text(events: list[Event]) -> str:
    """Return ` with 3 failed VMs`, or "" if no act of these events failed."""
    failed = sum(len(event.failed_acts) for event in events)
    return f" with {failed} failed {'VM' if failed == 1 else 'VMs'}" if failed else ""


def wave_entry(request: MaintenanceRequest, text: str, now: float) -> HistoryEntry:
    """Return a history entry about a wave that has begun or ended, as `text` says; writes nothing."""
    text = f"rollout {request.id}: {text}"
    return _entry(request, EntryKind.WAVE, text, now)


def ended_entry(request: MaintenanceRequest, rollout: Rollout, failed: str, now: float) -> HistoryEntry:
    """Return the history entry about a rollout that has stopped itself or completed; writes nothing."""
    if rollout.progress is RolloutState.STOPPED:
        text = f"rollout {request.id} stopped: {rollout.reason}; events that have not started are withdrawn"
        return _entry(request, EntryKind.STOPPED, text, now)
    text = f"rollout {request.id} completed{failed}" + (f": {rollout.reason}" if rollout.reason else "")
    return _entry(request, EntryKind.COMPLETED, text, now)


def after_verdict(
    request: MaintenanceRequest, rollout: Rollout, verdict: HealthVerdict, now: float
) -> tuple[Rollout, HistoryEntry | None]:
    """Return the running rollout as the verdict of its health checks changes it, and a history entry."""
    # A wait for measurements that are still to come changes nothing, and neither does another reason for the same wait.
    match verdict.decision:
        case HealthDecision.PAUSE:
            changed = replace(rollout, progress=RolloutState.PAUSED, reason=verdict.why, unclear="")
            text = f"rollout {request.id} paused: {verdict.why}; events that have not started are withdrawn"
            return changed, _entry(request, EntryKind.PAUSED, text, now)
        case HealthDecision.WAIT if not rollout.unclear:
            text = f"rollout {request.id} {PUBLISHES_NOTHING}: {verdict.why}"
            return replace(rollout, unclear=verdict.why), _entry(request, EntryKind.PAUSED, text, now)
        case HealthDecision.GO_ON if rollout.unclear:
            text = f"rollout {request.id} goes on: its checks are clear again"
            return replace(rollout, unclear=""), _entry(request, EntryKind.RESUMED, text, now)
    return rollout, None


def _entry(request: MaintenanceRequest, kind: EntryKind, text: str, now: float) -> HistoryEntry:
    return HistoryEntry(at=now, kind=kind, actor=PLATFORM_ACTOR, text=text, request_id=request.id)
