"""Causes of maintenance and the rules of each: event type, source, verb, minimum notice (spec §6.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.base.times import LabSeconds
from forewarn.protocol.document import EventSource, Kind


class Verb(StrEnum):
    """What an act does to its VM. VERB_RULES says what follows from each verb. The values are stored."""

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

    @property
    def rules(self) -> VerbRules:
        """What follows from this verb."""
        return VERB_RULES[self]


class VmEffect(StrEnum):
    """What happens to a running VM during an act. Sent to supervisors of namespace VMs."""

    PAUSE = "pause"  # it stands still, keeps its memory and goes on
    REBOOT = "reboot"  # it goes down and boots
    SHUT_DOWN = "shut down"  # it is down afterwards
    BOOT = "boot"  # only of a VM that is down; a running one goes on
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbRules:
    """The rules of one verb: what it does to the VM, and the words for it."""

    effect: VmEffect
    usual_duration_s: LabSeconds  # of an act that does not say how long it takes
    moves: bool = False  # brings the VM to another host
    leaves_host: bool = False  # the VM is on no host afterwards
    needs_host: bool = True  # False: it can be performed on a deallocated VM, which is on no host
    wipes_disk: bool = False  # the ephemeral disk is empty afterwards
    announced_as: Kind | None = None  # the event type that usually announces it; None: none does
    noun: str = ""  # as in "eviction of web"; "": the verb itself
    phrase: str = ""  # as in "cannot power VMs off"; "": the verb and "VMs"
    removed_as: str = ""  # as in "web was evicted"; "": the VM stays
    form: str = ""  # the operation with which a person does it again; "": there is none
    loss: str = ""  # what it takes away for good, whatever the notice

    @property
    def interrupts(self) -> bool:
        """Whether a running VM does not simply go on running."""
        return self.effect not in (VmEffect.BOOT, VmEffect.NONE)

    @property
    def boots(self) -> bool:
        """Whether the VM boots at the end."""
        return self.effect in (VmEffect.REBOOT, VmEffect.BOOT)


VERB_RULES: dict[Verb, VerbRules] = {
    Verb.FREEZE: VerbRules(effect=VmEffect.PAUSE, usual_duration_s=9, announced_as=Kind.FREEZE),  # spec §6.4
    Verb.MIGRATE: VerbRules(
        effect=VmEffect.PAUSE, usual_duration_s=5, moves=True, announced_as=Kind.FREEZE, form="redeploy"
    ),
    Verb.REBOOT: VerbRules(effect=VmEffect.REBOOT, usual_duration_s=30, announced_as=Kind.REBOOT, form="restart"),
    Verb.REDEPLOY: VerbRules(
        effect=VmEffect.REBOOT, usual_duration_s=120, moves=True, wipes_disk=True,
        announced_as=Kind.REDEPLOY, form="redeploy",
    ),
    Verb.EVICT: VerbRules(
        effect=VmEffect.SHUT_DOWN, usual_duration_s=10, leaves_host=True, wipes_disk=True,
        announced_as=Kind.PREEMPT, noun="eviction", removed_as="evicted",
        loss="Each VM is taken away: it is deallocated, or deleted with its disks if its eviction policy says so.",
    ),
    Verb.DELETE: VerbRules(
        effect=VmEffect.SHUT_DOWN, usual_duration_s=10, leaves_host=True, needs_host=False, wipes_disk=True,
        announced_as=Kind.TERMINATE, removed_as="deleted",
        loss="Deleted VMs and their data cannot be brought back.",
    ),
    Verb.POWER_OFF: VerbRules(effect=VmEffect.SHUT_DOWN, usual_duration_s=15, phrase="power VMs off"),
    Verb.START: VerbRules(effect=VmEffect.BOOT, usual_duration_s=20, needs_host=False),
    Verb.DEALLOCATE: VerbRules(
        effect=VmEffect.SHUT_DOWN, usual_duration_s=15, leaves_host=True, needs_host=False, wipes_disk=True,
        loss="Each VM stops without notice, leaves its host and loses its temporary disk.",
    ),
    Verb.REAPPLY: VerbRules(
        effect=VmEffect.NONE, usual_duration_s=5, needs_host=False, phrase="reapply the configuration of VMs"
    ),
    Verb.REIMAGE: VerbRules(
        effect=VmEffect.REBOOT, usual_duration_s=60, wipes_disk=True,
        loss="The data on the disk of each VM is lost and cannot be brought back.",
    ),
}  # fmt: skip


def verb_noun(verb: str) -> str:
    """Return the noun for a verb or another operation, as in `eviction of web`."""
    return (Verb(verb).rules.noun or verb) if verb in VERB_RULES else verb


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
