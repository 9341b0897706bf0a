"""Messages to webhooks about rollouts themselves: paused, resumed, ended, on hold (spec §13.5).

They are computed from history entries, as the messages about events are. Azure has none, so they have a type of
their own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

from forewarn.core.explain.notification import NotificationMessage
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest, RolloutState
from forewarn.core.rollout import PUBLISHES_NOTHING
from forewarn.core.waves import rollout_target_text

ROLLOUT_EVENT_TYPE = "Forewarn.RolloutChanged"

_NAMESPACE = UUID("0b8f3c1e-4f0a-4d55-8a3e-6a2d9c7e5b21")
_SOURCE = "/forewarn"
_ENTRY_KINDS = frozenset({EntryKind.PAUSED, EntryKind.RESUMED, EntryKind.STOPPED, EntryKind.COMPLETED})


class RolloutNotice(StrEnum):
    """What has happened to a rollout, or to all of them: the `status` in a message to webhooks."""

    PAUSED = "paused"  # by a user, or by a health check that was bad
    WAITING = "waiting"  # its health checks are unclear: it publishes nothing for now
    RESUMED = "resumed"  # by a user, or its checks are clear again
    STOPPED = "stopped"  # by itself: too many VMs failed, or no maintenance window follows
    ABORTED = "aborted"  # by a user
    COMPLETED = "completed"
    HELD = "held"  # all rollouts are on hold
    LIFTED = "lifted"  # the hold on all rollouts is


def may_notify_of_rollout(entry: HistoryEntry) -> bool:
    """Return whether a history entry may lead to a message about a rollout or the hold on all rollouts."""
    return entry.kind in _ENTRY_KINDS and not entry.event_id and not entry.vm


def rollout_message(entry: HistoryEntry, request: MaintenanceRequest | None) -> NotificationMessage | None:
    if not may_notify_of_rollout(entry):
        return None
    data: dict[str, Any] = {"text": entry.text, "by": entry.actor}
    if not entry.request_id:
        status = RolloutNotice.HELD if entry.kind is EntryKind.PAUSED else RolloutNotice.LIFTED
        return _message(entry, "rollouts", {"status": status, **data})
    if request is None or request.rollout is None:
        return None
    rollout = request.rollout
    about = {"rolloutId": request.id, "impact": rollout.impact, "target": rollout_target_text(rollout)}
    return _message(entry, f"rollouts/{request.id}", {"status": _status(entry, rollout.progress), **about, **data})


def _status(entry: HistoryEntry, progress: RolloutState) -> RolloutNotice:
    match entry.kind:
        case EntryKind.PAUSED:
            is_waiting = entry.text.startswith(f"rollout {entry.request_id} {PUBLISHES_NOTHING}")
            return RolloutNotice.WAITING if is_waiting else RolloutNotice.PAUSED
        case EntryKind.RESUMED:
            return RolloutNotice.RESUMED
        case EntryKind.STOPPED:  # these two states are final, so the state of now is that of the entry
            return RolloutNotice.ABORTED if progress is RolloutState.ABORTED else RolloutNotice.STOPPED
    return RolloutNotice.COMPLETED


def _message(entry: HistoryEntry, subject: str, data: dict[str, Any]) -> NotificationMessage:
    return NotificationMessage(
        id=str(uuid5(_NAMESPACE, f"{entry.seq}/{subject}/{data['status']}")),
        type=ROLLOUT_EVENT_TYPE,
        topic=_SOURCE,
        source=_SOURCE,
        subject=subject,
        at=entry.at,
        data=data,
        data_version="1",
    )
