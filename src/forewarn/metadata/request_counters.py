"""Counts requests by category and status as plain numbers, and sums them over processes.

A labelled Prometheus counter would cost more than a poll, so `forewarn.metrics.requests` reads these numbers when
it is scraped. This module must not import prometheus_client: every worker imports it at start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec

from forewarn.protocol.http_message import HttpRequest, parse_target
from forewarn.protocol.versions import VERSIONS

MAX_USER_AGENT_LENGTH = 120  # characters
_CACHED_CATEGORIES = 1024

POLL, APPROVAL, INSTANCE, TOKEN, OTHER, UNKNOWN_CALLER = "poll", "approval", "instance", "token", "other", "strange"
UNKNOWN_VERSION, NO_VERSION = "other", "none"


class RequestCategory(NamedTuple):
    kind: str  # one of the six above
    version: str = ""  # the api-version that a poll or an approval names


UNKNOWN_CALLER_REQUEST = RequestCategory(UNKNOWN_CALLER)  # whoever calls is none of our VMs
OTHER_REQUEST = RequestCategory(OTHER)  # what came was none that can be read


def request_category(request: HttpRequest) -> RequestCategory:
    return _category_of_target(request.method, request.target)


def user_agent_of(request: HttpRequest) -> str:
    """Which program asks, as it calls itself; what cannot be printed is left out."""
    given = next((value for name, value in request.headers if name == "user-agent"), "")
    return _printable_prefix(given) if given else ""


@lru_cache(maxsize=_CACHED_CATEGORIES)
def _category_of_target(method: str, text: str) -> RequestCategory:
    target = parse_target(text)
    match target.lower_path() if target is not None else ():
        case ("metadata", "scheduledevents"):
            assert target is not None
            return _scheduled_events_category(method, target.parameter("api-version"))
        case ("metadata", "instance", *_):
            return RequestCategory(INSTANCE)
        case ("metadata", "identity", "oauth2", "token"):
            return RequestCategory(TOKEN)
    return OTHER_REQUEST


def _scheduled_events_category(method: str, version: str | None) -> RequestCategory:
    named = NO_VERSION if not version else version if version in VERSIONS else UNKNOWN_VERSION
    return RequestCategory({"GET": POLL, "POST": APPROVAL}.get(method, OTHER), named)


@lru_cache(maxsize=_CACHED_CATEGORIES)
def _printable_prefix(text: str) -> str:
    return "".join(filter(str.isprintable, text)).strip()[:MAX_USER_AGENT_LENGTH]


class RequestTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the process began; `held` and `connections` as of now."""

    answered: tuple[tuple[str, str, int, int], ...] = ()  # what was asked for, api-version, status, how often
    accepted: int = 0
    refused: int = 0
    lost: int = 0  # sightings that found no room
    held: int = 0
    connections: int = 0

    def without_gauges(self) -> RequestTotals:
        """What stays of it when its process is gone."""
        return msgspec.structs.replace(self, held=0, connections=0)


def sum_totals(*parts: RequestTotals) -> RequestTotals:
    answered: Counter[tuple[str, str, int]] = Counter()
    for part in parts:
        for of, version, status, times in part.answered:
            answered[of, version, status] += times
    return RequestTotals(
        answered=tuple((*of, times) for of, times in answered.items()),
        accepted=sum(part.accepted for part in parts),
        refused=sum(part.refused for part in parts),
        lost=sum(part.lost for part in parts),
        held=sum(part.held for part in parts),
        connections=sum(part.connections for part in parts),
    )


RESET_STATUS = 0  # in the place of a status: the connection was reset instead


@dataclass(slots=True)
class RequestCounters:
    """Counts for metrics: plain numbers, because a labelled counter costs more than a poll."""

    accepted: int = 0
    refused: int = 0  # connections beyond the limit of one VM
    held: int = 0  # requests waiting just now
    requests: int = 0
    answered: Counter[tuple[RequestCategory, int]] = field(default_factory=Counter)  # by what was asked for, and status

    def count_cached(self, sort: RequestCategory, status: int, times: int) -> None:
        """Requests that were answered from memory."""
        self.requests += times
        self.answered[sort, status] += times

    @property
    def responses_by_status(self) -> Counter[int]:
        """By status alone."""
        found: Counter[int] = Counter()
        for (_, status), times in self.answered.items():
            if status != RESET_STATUS:
                found[status] += times
        return found
