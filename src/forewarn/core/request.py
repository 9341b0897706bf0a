"""Maintenance requests, the rollout or replay a request may carry, and the events it has planned.

A request is durable before it is answered. Its progress is computed from its events; a rollout and a replay also
store a state of their own.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from forewarn.base.times import LabSeconds, LabTime
from forewarn.core.cause import Cause
from forewarn.core.health import HealthCheck
from forewarn.core.replay import Replay
from forewarn.core.windows import MaintenanceCalendar


class RequestedOperation(StrEnum):
    """What a maintenance request asks for. The values are stored, and users type them."""

    RESTART = "restart"
    REDEPLOY = "redeploy"  # boot the VM on another host
    EVICT = "evict"  # a Spot VM
    RECOMMEND_REBALANCE = "recommend-rebalance"  # warn a Spot VM that it is likely to be evicted
    DELETE = "delete"
    SCALE_IN = "scale-in"  # delete VMs of a scale set
    POWER_OFF = "power-off"
    START = "start"
    DEALLOCATE = "deallocate"
    REAPPLY = "reapply"
    REIMAGE = "reimage"
    PERFORM_MAINTENANCE = "perform-maintenance"  # approve the pending platform maintenance of VMs, so that it starts
    ROLLOUT = "rollout"  # platform maintenance of many VMs: on hosts, of a scope, with a tag, in a location, or of all
    DEGRADE = "degrade"  # a host is predicted to fail
    FAIL = "fail"  # a host fails
    REPLAY = "replay"  # show a VM's scope the answers of a recording


class RolloutImpact(StrEnum):
    """What a rollout does to its VMs: update (of the host, which freezes them), migrate (live) or reboot."""

    UPDATE = "update"  # of the host, which freezes them
    MIGRATE = "migrate"  # live, to other hosts
    REBOOT = "reboot"


# The cause of a rollout's events, by its impact.
IMPACT_CAUSES: dict[RolloutImpact, Cause] = {
    RolloutImpact.UPDATE: Cause.HOST_UPDATE,
    RolloutImpact.MIGRATE: Cause.LIVE_MIGRATION,
    RolloutImpact.REBOOT: Cause.PLATFORM_REBOOT,
}


ROLLOUT_CAUSES = frozenset(IMPACT_CAUSES.values())


class RolloutState(StrEnum):
    """The state of a rollout: running, paused, stopped (by itself), aborted (by a user) or completed."""

    RUNNING = "running"
    PAUSED = "paused"  # by a user or a health check; until it is resumed it publishes nothing, but may stop or complete
    STOPPED = "stopped"  # by itself, because too many VMs failed or no maintenance window is left
    ABORTED = "aborted"  # by a user
    COMPLETED = "completed"  # no VM is left, and all its events are over


class RolloutTally(msgspec.Struct, frozen=True, kw_only=True):
    """How many VMs of a rollout are in which state, each VM counted once."""

    # It is computed from the events while the rollout is open, and stored when it closes. VMs on which another rollout
    # does the same work count by that rollout's events.

    total: int  # the sum of the others
    done: int  # their act was performed, and their event is over
    failed: int  # their act failed
    withdrawn: int  # their event was withdrawn before its start
    started: int  # their event has started and is not over, and their act has not failed
    scheduled: int  # their event has not started
    waiting: int  # no event has listed them yet, or a health check withdrew it, so that they get another
    not_needed: int = 0  # they left the host, or were removed or deallocated, before anything was performed (spec §6.4)


class WaveSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One wave of a rollout: a number of VMs, a share of them, those with a tag, or the rest. Stored.

    At most one of `vms`, `share` and `tag` is set; none means the rest, which is always the last wave. A rollout that
    works on whole hosts takes all its VMs of a host into one wave, so a wave may have more VMs than it asks for.
    """

    name: str  # for people, such as `canary`; unique in the rollout, at most 100 characters
    vms: int = 0  # this many VMs
    share: float = 0  # this many percent of all VMs of the rollout, rounded up to whole VMs; up to 100
    tag: str = ""  # VMs with this tag: `name` (ignoring letter case), or `name=value` (the value exactly)

    @property
    def is_rest(self) -> bool:
        """Whether the wave takes all VMs that no earlier wave took: it has no number, share or tag."""
        return not self.vms and not self.share and not self.tag


class BegunWave(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A wave of a rollout that has begun. Stored."""

    wave: int = 0  # its index
    at: LabTime  # when it began
    base: int = 0  # how many VMs the rollout had handled by then


class Rollout(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Platform maintenance of some VMs, wave by wave, and update domain by update domain.

    Exactly one of `hosts`, `scope_id`, `tag`, `location` and `everything` is set. The reconciler changes `progress` and
    what follows.
    """

    impact: RolloutImpact
    hosts: tuple[str, ...] = ()  # either the VMs on these hosts (names, spelled as in the fleet)
    scope_id: str = ""  # or the VMs of this scope
    tag: str = ""  # or the VMs with this tag: `name`, or `name=value`, as in `WaveSpec.tag`
    location: str = ""  # or the VMs in this location, ignoring letter case
    everything: bool = False  # or all VMs
    max_failures: int = 1  # it stops after this many failed VMs; 0: never
    calendar: MaintenanceCalendar | None = None  # when its events may start without an approval; None: at any time
    waves: tuple[WaveSpec, ...] = ()  # the last is the rest; (): one wave with all VMs
    settle_s: LabSeconds = 0  # that must pass after the last event of each wave, at most 30 days
    checks: tuple[HealthCheck, ...] = ()  # its health checks, at most 20; (): none
    hold_if_unclear: bool = False  # its events start without an approval only while all its checks are clear
    progress: RolloutState = RolloutState.RUNNING
    reason: str = ""  # for people: why it ended, or paused itself; "": neither, or it completed without failures
    closed: bool = False  # nothing is left to publish, withdraw or wait for
    closed_at: LabTime | None = None  # None: it is open
    tally: RolloutTally | None = None  # set when it closes, because its events are pruned later; None before
    wave: int = 0  # index of the wave that is being published, or settles
    wave_began_at: LabTime | None = None  # None: no wave has begun, or the rollout has no `waves`
    wave_size: int = 0  # how many VMs the wave had when it began; 0: it has no fixed number (a tag, or the rest)
    wave_base: int = 0  # how many VMs the rollout had handled when the wave began
    wave_over_at: LabTime | None = None  # when its last event ended, noted when it settles; None: not so far
    begun: tuple[BegunWave, ...] = ()  # its waves so far, in order; (): none
    check_round: int = 0  # how often it was resumed: only measurements of the same round count
    resumed_at: LabTime | None = None  # when a person last resumed it; None: nobody has
    unclear: str = ""  # for people: why its checks let it publish nothing; "": they do

    @property
    def has_paused_itself(self) -> bool:
        """Whether a health check paused the rollout; then its events that have not started are withdrawn."""
        return self.progress is RolloutState.PAUSED and bool(self.reason)

    @property
    def cause(self) -> Cause:
        """The cause of the rollout's events, by its impact: host update, live migration or platform reboot."""
        return IMPACT_CAUSES[self.impact]


class RolloutHold(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A hold, which keeps all rollouts from publishing and starting events (spec §13.5). Stored."""

    reason: str  # for people
    set_by: str  # the name of who set it
    set_at: LabTime
    is_lifted: bool = False  # True for the moment in which the scopes that it held are looked at again


class MaintenanceRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One request for maintenance, as it was accepted. Stored before it is answered."""

    id: str  # GUID, lower case
    operation: RequestedOperation  # what it asks for
    requested_by: str  # the name of who asked
    requested_at: LabTime
    targets: tuple[str, ...]  # names of VMs or hosts, or words for what a rollout covers
    notice_s: float = 0  # lab seconds, as requested (0: the minimum, or none if short); of a rollout, what its VMs get
    short_notice: bool = False  # the notice may be shorter than the minimum, for testing
    rollout: Rollout | None = None  # only if it asks for one
    replay: Replay | None = None  # only if it asks for one
    approves: tuple[str, ...] = ()  # ids of pending events that it approved instead of publishing its own
    resource: str = ""  # the id of the Azure resource whose updates it applies, as its caller spelled it; "": none
    call_digest: str = ""  # of the call that created it, whose key gave it its id; "": the call had no key
    called_at: float = 0  # real time of that call, in seconds since 1970; only with a digest
    version: int = 0  # the version of the stored row, for optimistic commits

    @property
    def is_open(self) -> bool:
        """Whether the reconciler must still work on the request itself."""
        if self.replay is not None:
            return self.replay.outcome is None
        return self.rollout is not None and not self.rollout.closed


class RequestKey(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key of a caller for one call, so that a repeated call leads to the same request.

    Two calls with the same id ask for one request; if their digests differ, one of them is a mistake, and the later
    call is Rejected. A key is known as long as its request is stored.
    """

    request_id: str  # GUID, lower case, which follows from the caller and the key
    digest: str  # SHA-256 of what the call asks for, in hexadecimal
    at: float  # real time of the call, in seconds since 1970
    lifetime_s: float | None = None  # seconds of real time after which the key means another request; None: never

    def has_expired(self, called_at: float) -> bool:
        """Return whether an earlier call with this key, at `called_at`, is too old to be the same request."""
        return self.lifetime_s is not None and self.at - called_at > self.lifetime_s


def with_request_key(request: MaintenanceRequest, key: RequestKey | None) -> MaintenanceRequest:
    """Return the new request with the id, digest and call time of this key; unchanged if the key is None."""
    if key is None:
        return request
    return msgspec.structs.replace(request, id=key.request_id, call_digest=key.digest, called_at=key.at)


class PlannedEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An event that a request will publish in one scope: decided, but not yet applied to the scope."""

    event_id: str  # the id that the event will have: GUID, upper case
    request_id: str  # of the request, or the id of the fault that makes it
    scope_id: str  # the id of the scope that all its VMs are in
    cause: Cause
    requested_by: str  # the name of who asked
    vms: tuple[str, ...]  # names; at least one
    notice_s: LabSeconds  # from its publication to its NotBefore, which a window may make later
    update_domain: int = 0  # the update domain of its VMs when it was planned
    host: str = ""  # the name of the host that the work is about; "": none
    gate_id: str = ""  # of the gate that it will wait for; "": none
    crosses_update_domains: bool = False  # its VMs are in several update domains; only the fault for that makes one
    calendar: MaintenanceCalendar | None = None  # when it may start without an approval; None: at any time


# Request keys: a caller's name for one request, so that a repeated call is the same request.
#
# The id of the request follows from the caller and the key. So a repeated call cannot store a second request: a second
# row with the same id is a Conflict. The key is known as long as the request is stored.

_UUID_VERSION, _UUID_VARIANT = 0x80, 0x80  # bits of RFC 9562: version 8, whose content the application defines


def make_request_key(
    caller: str, key: str, call: Mapping[str, Any], *, at: float, lifetime_s: float | None = None
) -> RequestKey:
    """Return the request key of a call by `caller` (the id of a principal), who gave it the text `key`.

    The request id follows from caller and key alone; only the digest depends on `call`. `at` is real time; after
    `lifetime_s` seconds the key is free again (None: never).
    """
    digest = hashlib.sha256(msgspec.json.encode(call, order="deterministic")).hexdigest()
    return RequestKey(request_id=_derived_guid(caller, key), digest=digest, at=at, lifetime_s=lifetime_s)


def next_request_key(key: RequestKey) -> RequestKey:
    """Return the same key with the next request id, for a new call after the old request has expired."""
    return replace(key, request_id=_derived_guid(key.request_id))


def canonical_body(body: bytes) -> Any:
    """Return the decoded JSON of a request body, so that blanks do not matter; {} for an empty body."""
    try:
        return msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return hashlib.sha256(body).hexdigest()


def _derived_guid(*names: str) -> str:
    octets = bytearray(hashlib.sha256(msgspec.json.encode(["forewarn request", *names])).digest()[:16])
    octets[6] = octets[6] & 0x0F | _UUID_VERSION
    octets[8] = octets[8] & 0x3F | _UUID_VARIANT
    return str(uuid.UUID(bytes=bytes(octets)))
