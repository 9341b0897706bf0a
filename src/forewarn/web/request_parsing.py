"""What may be sent: one struct per body and per query. A member that is not here is refused."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forewarn.core.request import Impact

LONGEST_WAIT_S = 60.0

Text = Annotated[str, Meta(min_length=1)]
Span = Annotated[float, Meta(ge=0, le=10 * 366 * 86400)]
Limit = Annotated[int, Meta(ge=1, le=1_000_000)]
Number = Annotated[int, Meta(ge=0, le=2**62)]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Nothing(Strict, frozen=True, kw_only=True):
    """Neither a body nor a query is expected."""


class FleetText(Strict, frozen=True, kw_only=True):
    text: str
    source: Text = "fleet.toml"


class FleetApply(FleetText, frozen=True, kw_only=True):
    resurrect: bool = False
    dry_run: bool = False


class NewHost(Strict, frozen=True, kw_only=True):
    name: Text
    location: Text
    zone: str = ""


class Asking(Strict, frozen=True, kw_only=True):
    ask: Literal[
        "restart",
        "redeploy",
        "evict",
        "delete",
        "scale-in",
        "power-off",
        "start",
        "deallocate",
        "reapply",
        "reimage",
    ]
    vms: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=10_000)]
    notice_s: Span = 0
    short_notice: bool = False


class Degrading(Strict, frozen=True, kw_only=True):
    in_s: Span
    short_notice: bool = False


class NewRollout(Strict, frozen=True, kw_only=True):
    impact: Impact
    hosts: tuple[Text, ...] = ()
    scope: str = ""
    max_failures: Annotated[int, Meta(ge=0)] = 1
    notice_s: Span = 0
    short_notice: bool = False


class Withdrawing(Strict, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class NewFault(Strict, frozen=True, kw_only=True):
    kind: Text
    vm: str = ""
    scope: str = ""
    all: bool = False
    count: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    for_s: Span | None = None
    parameters: dict[str, float] = {}


class Clearing(Strict, frozen=True, kw_only=True):
    """Which faults: all that every given member fits."""

    ids: tuple[Text, ...] = ()
    kind: str = ""
    vm: str = ""
    scope: str = ""
    all: bool = False


class NewStorm(Strict, frozen=True, kw_only=True):
    seed: Annotated[int, Meta(ge=0, le=2**53)]
    vms: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    for_s: Span = 600


class Advancing(Strict, frozen=True, kw_only=True):
    by_s: float


class Speed(Strict, frozen=True, kw_only=True):
    speed: float


class Pruning(Strict, frozen=True, kw_only=True):
    older_than_s: float


class BackingUp(Strict, frozen=True, kw_only=True):
    path: Text


class FleetQuery(Strict, frozen=True, kw_only=True):
    scope: str = ""
    host: str = ""
    limit: Limit | None = None


class EventsQuery(Strict, frozen=True, kw_only=True):
    """Those that every given member fits."""

    all: bool = False
    vm: str = ""
    scope: str = ""
    host: str = ""  # the work is on it, or a VM that it hits is
    rollout: str = ""
    limit: Limit = 1000


class HistoryQuery(Strict, frozen=True, kw_only=True):
    after: Number | None = None  # left out: the newest entries
    vm: str = ""
    event: str = ""
    request: str = ""
    scope: str = ""
    limit: Limit = 1000
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0
