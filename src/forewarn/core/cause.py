"""Why maintenance happens, and what follows from it: the table of spec §6.4, one row per cause."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.protocol.document import Kind, Source


class Verb(StrEnum):
    """What an act does to one VM."""

    FREEZE = "freeze"
    MIGRATE = "migrate"
    REBOOT = "reboot"
    REDEPLOY = "redeploy"
    EVICT = "evict"
    DELETE = "delete"
    POWER_OFF = "power-off"
    START = "start"
    DEALLOCATE = "deallocate"
    REAPPLY = "reapply"
    REIMAGE = "reimage"


def noun(verb: str) -> str:
    """What is done, as people say it: `eviction of web`."""
    return "eviction" if verb == Verb.EVICT else verb


class Cause(StrEnum):
    HOST_UPDATE = "host update"
    LIVE_MIGRATION = "live migration"
    PLATFORM_REBOOT = "platform reboot"
    PREDICTED_FAILURE = "predicted failure"
    HOST_FAILED = "host failed"
    EVICTION = "eviction"
    USER_RESTART = "user restart"
    USER_REDEPLOY = "user redeploy"
    USER_DELETE = "user delete"
    SCALE_IN = "scale-in"
    POWER_OFF = "power off"
    START = "start"
    DEALLOCATE = "deallocate"
    REAPPLY = "reapply"
    REIMAGE = "reimage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one cause means."""

    kind: Kind | None  # None: no event, at once
    source: Source
    verb: Verb
    description: str = ""
    duration_s: int = -1
    minimum_notice_s: int = 0  # spec §6.3; a Terminate's is the user's own setting
    planned: bool = False  # queues on update domains (spec §6.2)
    whole_host: bool = False  # waits for the other scopes on its host (spec §6.2)
    by_user: bool = False  # carried out at once while the scope is disabled (spec §8.2)
    limited: bool = False  # counts towards the limit of user operations (spec §8.4)

    @property
    def moves(self) -> bool:
        return self.verb in (Verb.MIGRATE, Verb.REDEPLOY)


def _at_once(verb: Verb) -> Row:
    return Row(kind=None, source=Source.USER, verb=verb, by_user=True)


_HOST_WORK = "Host server is undergoing maintenance."
_QUARTER, _TEN = 15 * 60, 10 * 60

CAUSES: dict[Cause, Row] = {
    Cause.HOST_UPDATE: Row(
        kind=Kind.FREEZE, source=Source.PLATFORM, verb=Verb.FREEZE, description=_HOST_WORK, duration_s=9,
        minimum_notice_s=_QUARTER, planned=True, whole_host=True,
    ),
    Cause.LIVE_MIGRATION: Row(
        kind=Kind.FREEZE, source=Source.PLATFORM, verb=Verb.MIGRATE, duration_s=5,
        description="Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        minimum_notice_s=_QUARTER, planned=True,
    ),
    Cause.PLATFORM_REBOOT: Row(
        kind=Kind.REBOOT, source=Source.PLATFORM, verb=Verb.REBOOT, description=_HOST_WORK,
        minimum_notice_s=_QUARTER, planned=True, whole_host=True,
    ),
    Cause.PREDICTED_FAILURE: Row(
        kind=Kind.REDEPLOY, source=Source.PLATFORM, verb=Verb.REDEPLOY, minimum_notice_s=_TEN, planned=True,
        description="Host server is undergoing an emergency repair.",
    ),
    Cause.HOST_FAILED: Row(
        kind=Kind.REDEPLOY, source=Source.PLATFORM, verb=Verb.REDEPLOY,
        description="Virtual machine has encountered a failure.",
    ),
    Cause.EVICTION: Row(kind=Kind.PREEMPT, source=Source.PLATFORM, verb=Verb.EVICT, minimum_notice_s=30),
    Cause.USER_RESTART: Row(
        kind=Kind.REBOOT, source=Source.USER, verb=Verb.REBOOT, minimum_notice_s=_QUARTER, by_user=True, limited=True,
        description="Virtual machine is going to be restarted as requested by authorized user.",
    ),
    Cause.USER_REDEPLOY: Row(
        kind=Kind.REDEPLOY, source=Source.USER, verb=Verb.REDEPLOY, minimum_notice_s=_TEN, by_user=True, limited=True,
        description="Virtual machine is going to be redeployed as requested by authorized user.",
    ),
    Cause.USER_DELETE: Row(kind=Kind.TERMINATE, source=Source.USER, verb=Verb.DELETE, by_user=True),
    Cause.SCALE_IN: Row(kind=Kind.TERMINATE, source=Source.PLATFORM, verb=Verb.DELETE),
    Cause.POWER_OFF: _at_once(Verb.POWER_OFF),
    Cause.START: _at_once(Verb.START),
    Cause.DEALLOCATE: _at_once(Verb.DEALLOCATE),
    Cause.REAPPLY: _at_once(Verb.REAPPLY),
    Cause.REIMAGE: _at_once(Verb.REIMAGE),
}  # fmt: skip
