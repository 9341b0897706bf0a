"""Maintenance requests, the rollout or replay a request may carry, and the events it has planned.

A request is durable before it is answered and idempotent by its id. Its progress is computed from its events; a
rollout and a replay also store a state of their own.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.core.cause import Cause
from forewarn.core.replay import Replay


class RequestedOperation(StrEnum):
    RESTART = "restart"
    REDEPLOY = "redeploy"
    EVICT = "evict"
    DELETE = "delete"
    SCALE_IN = "scale-in"
    POWER_OFF = "power-off"
    START = "start"
    DEALLOCATE = "deallocate"
    REAPPLY = "reapply"
    REIMAGE = "reimage"
    PERFORM_MAINTENANCE = "perform-maintenance"
    ROLLOUT = "rollout"
    DEGRADE = "degrade"
    FAIL = "fail"
    REPLAY = "replay"


class RolloutImpact(StrEnum):
    """What a rollout does to the VMs it reaches."""

    UPDATE = "update"
    MIGRATE = "migrate"
    REBOOT = "reboot"


IMPACT_CAUSES: dict[RolloutImpact, Cause] = {
    RolloutImpact.UPDATE: Cause.HOST_UPDATE,
    RolloutImpact.MIGRATE: Cause.LIVE_MIGRATION,
    RolloutImpact.REBOOT: Cause.PLATFORM_REBOOT,
}


class RolloutState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"  # by itself, at its maximum of failures
    ABORTED = "aborted"  # by somebody
    COMPLETED = "completed"


class RolloutTally(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rollout has come, counted in VMs, each once; computed from its events while it is open."""

    total: int
    done: int
    failed: int
    withdrawn: int
    started: int
    scheduled: int
    waiting: int


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Platform maintenance over many VMs, update domain by update domain."""

    impact: RolloutImpact
    hosts: tuple[str, ...] = ()  # either these
    scope_id: str = ""  # or the VMs of this scope
    max_failures: int = 1  # stops at so many; 0: never
    progress: RolloutState = RolloutState.RUNNING
    why: str = ""  # why it ended as it did, for people
    closed: bool = False  # nothing of it is left to publish, withdraw or wait for
    tally: RolloutTally | None = None  # as it was when it closed: its events are pruned, its hosts get other VMs

    @property
    def cause(self) -> Cause:
        return IMPACT_CAUSES[self.impact]


class MaintenanceRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    ask: RequestedOperation
    who: str
    at: float
    targets: tuple[str, ...]  # names of VMs, hosts, or a scope: as they are shown to people
    notice_s: float = 0  # 0: the minimum of its kind
    short_notice: bool = False  # somebody named less than the minimum, for rehearsal
    rollout: Rollout | None = None
    replay: Replay | None = None
    approves: tuple[str, ...] = ()  # ids of the pending events that it approved, instead of making its own
    version: int = 0

    @property
    def is_open(self) -> bool:
        """Whether a turn has to look at it: only rollouts and replays act over time."""
        if self.replay is not None:
            return self.replay.ended is None
        return self.rollout is not None and not self.rollout.closed


class PlannedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that a request will publish in one scope: accepted, not yet applied."""

    event_id: str
    request_id: str
    scope_id: str
    cause: Cause
    who: str
    vms: tuple[str, ...]
    notice_s: float
    update_domain: int = 0
    host: str = ""
    gate_id: str = ""
