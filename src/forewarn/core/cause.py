"""Causes of maintenance and the rules of each: event type, source, verb, minimum notice (spec §6.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.protocol.document import EventSource, Kind


class Verb(StrEnum):
    """What an act does to its VM. The values are stored."""

    FREEZE = "freeze"  # pause the VM for some seconds
    MIGRATE = "migrate"  # pause the VM and move it, running, to another host
    REBOOT = "reboot"
    REDEPLOY = "redeploy"  # shut the VM down and boot it on another host
    EVICT = "evict"  # deallocate or delete a Spot VM, as its eviction policy says
    DELETE = "delete"
    POWER_OFF = "power-off"  # stop the VM; it stays on its host
    START = "start"
    DEALLOCATE = "deallocate"  # stop the VM and take it from its host
    REAPPLY = "reapply"  # apply the VM's configuration again
    REIMAGE = "reimage"  # boot the VM with a new OS disk


VERBS_LEAVING_HOST = frozenset({Verb.EVICT, Verb.DELETE, Verb.DEALLOCATE})  # after these a VM is on no host
VERBS_WITHOUT_OUTAGE = frozenset({Verb.START, Verb.REAPPLY})  # a running VM goes on running


def verb_noun(verb: str) -> str:
    """Return the noun for a verb, as in `eviction of web`: the verb itself, except for `evict`."""
    return "eviction" if verb == Verb.EVICT else verb


class Cause(StrEnum):
    """Why an event exists. CAUSE_RULES says what follows from each cause. The values are stored."""

    HOST_UPDATE = "host update"  # which freezes the VMs on the host
    LIVE_MIGRATION = "live migration"  # VMs move, running, to other hosts
    PLATFORM_REBOOT = "platform reboot"  # the platform reboots VMs for work on their host
    PREDICTED_FAILURE = "predicted failure"  # a host is degraded, and its VMs are redeployed
    HOST_FAILED = "host failed"  # its VMs are redeployed without notice
    EVICTION = "eviction"  # of a Spot VM
    REBALANCE = "rebalance recommendation"  # a Spot VM is likely to be evicted; the event has no impact (spec §14.4)
    USER_RESTART = "user restart"
    USER_REDEPLOY = "user redeploy"
    USER_DELETE = "user delete"
    SCALE_IN = "scale-in"  # of a scale set, which deletes the VM
    POWER_OFF = "power off"  # this and the next four are operations of users that publish no event
    START = "start"
    DEALLOCATE = "deallocate"
    REAPPLY = "reapply"
    REIMAGE = "reimage"
    ANNOUNCED_REIMAGE = "announced reimage"  # of a VM whose OS image notification is on: with notice (spec §14.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRules:
    """The rules of one cause: what VMs see of the event, what is done to them, and when it may start."""

    kind: Kind | None  # None: performed at once, without an event that VMs see
    source: EventSource  # Platform or User, as documents show it
    verb: Verb  # what its acts do to the VMs; for a cause without impact: what it warns of
    description: str = ""  # as documents show it
    duration_s: int = -1  # of the interruption, as documents show it; -1: not known
    minimum_notice_s: int = 0  # spec §6.3; for a Terminate and an announced reimage, the VM's setting counts instead
    planned: bool = False  # planned maintenance: one update domain of a scope at a time (spec §6.2)
    whole_host: bool = False  # waits for the other scopes on its host (spec §6.2), unless its rollout is over one scope
    by_user: bool = False  # an operation of the user: performed at once while the scope is disabled (spec §8.2)
    has_impact: bool = True  # False: it never starts, and is gone after 10 minutes or when what it warns of comes
    limited: bool = False  # counts towards the limit of user operations (spec §8.4)

    @property
    def moves_vm(self) -> bool:
        """Whether events of this cause move their VMs to another host: the verb is migrate or redeploy."""
        return self.verb in (Verb.MIGRATE, Verb.REDEPLOY)


def _rules_without_event(verb: Verb) -> CauseRules:
    return CauseRules(kind=None, source=EventSource.USER, verb=verb, by_user=True)


RECOMMENDATION_S = 600.0  # how long an event without impact is listed (spec §14.4)
_HOST_MAINTENANCE_TEXT = "Host server is undergoing maintenance."
_FIFTEEN_MINUTES_S, _TEN_MINUTES_S = 15 * 60, 10 * 60

CAUSE_RULES: dict[Cause, CauseRules] = {
    Cause.HOST_UPDATE: CauseRules(
        kind=Kind.FREEZE, source=EventSource.PLATFORM, verb=Verb.FREEZE,
        description=_HOST_MAINTENANCE_TEXT, duration_s=9,
        minimum_notice_s=_FIFTEEN_MINUTES_S, planned=True, whole_host=True,
    ),
    Cause.LIVE_MIGRATION: CauseRules(
        kind=Kind.FREEZE, source=EventSource.PLATFORM, verb=Verb.MIGRATE, duration_s=5,
        description="Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        minimum_notice_s=_FIFTEEN_MINUTES_S, planned=True,
    ),
    Cause.PLATFORM_REBOOT: CauseRules(
        kind=Kind.REBOOT, source=EventSource.PLATFORM, verb=Verb.REBOOT, description=_HOST_MAINTENANCE_TEXT,
        minimum_notice_s=_FIFTEEN_MINUTES_S, planned=True, whole_host=True,
    ),
    Cause.PREDICTED_FAILURE: CauseRules(
        kind=Kind.REDEPLOY, source=EventSource.PLATFORM, verb=Verb.REDEPLOY,
        minimum_notice_s=_TEN_MINUTES_S, planned=True,
        description="Host server is undergoing an emergency repair.",
    ),
    Cause.HOST_FAILED: CauseRules(
        kind=Kind.REDEPLOY, source=EventSource.PLATFORM, verb=Verb.REDEPLOY,
        description="Virtual machine has encountered a failure.",
    ),
    Cause.EVICTION: CauseRules(kind=Kind.PREEMPT, source=EventSource.PLATFORM, verb=Verb.EVICT, minimum_notice_s=30),
    Cause.REBALANCE: CauseRules(
        kind=Kind.SPOT_REBALANCE, source=EventSource.PLATFORM, verb=Verb.EVICT, duration_s=0, has_impact=False
    ),
    Cause.USER_RESTART: CauseRules(
        kind=Kind.REBOOT, source=EventSource.USER, verb=Verb.REBOOT, minimum_notice_s=_FIFTEEN_MINUTES_S,
        by_user=True, limited=True,
        description="Virtual machine is going to be restarted as requested by authorized user.",
    ),
    Cause.USER_REDEPLOY: CauseRules(
        kind=Kind.REDEPLOY, source=EventSource.USER, verb=Verb.REDEPLOY, minimum_notice_s=_TEN_MINUTES_S,
        by_user=True, limited=True,
        description="Virtual machine is going to be redeployed as requested by authorized user.",
    ),
    Cause.USER_DELETE: CauseRules(kind=Kind.TERMINATE, source=EventSource.USER, verb=Verb.DELETE, by_user=True),
    Cause.SCALE_IN: CauseRules(kind=Kind.TERMINATE, source=EventSource.PLATFORM, verb=Verb.DELETE),
    Cause.POWER_OFF: _rules_without_event(Verb.POWER_OFF),
    Cause.START: _rules_without_event(Verb.START),
    Cause.DEALLOCATE: _rules_without_event(Verb.DEALLOCATE),
    Cause.REAPPLY: _rules_without_event(Verb.REAPPLY),
    Cause.REIMAGE: _rules_without_event(Verb.REIMAGE),
    Cause.ANNOUNCED_REIMAGE: CauseRules(
        kind=Kind.REBOOT, source=EventSource.USER, verb=Verb.REIMAGE, by_user=True, limited=True
    ),
}  # fmt: skip
