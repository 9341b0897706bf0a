"""Counts requests by category and status as plain numbers, and sums them over processes.

A labelled Prometheus counter would cost more than a poll, so `metrics` reads these numbers when it is scraped.
This module must not import prometheus_client: every worker imports it at start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec

from forewarn.protocol.http_message import HttpRequest, parse_target
from forewarn.protocol.versions import ALL_VERSIONS

MAX_USER_AGENT_LENGTH = 120  # characters; the rest is cut off
_CACHED_CATEGORIES = 1024

# Kinds of requests. UNKNOWN_CALLER: any request of a caller that is not a VM of a published scope.
POLL, APPROVAL, INSTANCE, TOKEN, OTHER, UNKNOWN_CALLER = (
    "poll",
    "approval",
    "instance",
    "token",
    "other",
    "unknown caller",
)
UNKNOWN_VERSION, NO_VERSION = "other", "none"  # the api-version is not in ALL_VERSIONS, or missing


class RequestCategory(NamedTuple):
    """The kind of a VM's request and its api-version, as labels of metrics.

    The kinds are "poll", "approval", "instance", "token", "other", and "unknown caller" if the caller is no known VM.
    """

    kind: str  # POLL, APPROVAL, INSTANCE, TOKEN, OTHER or UNKNOWN_CALLER
    version: str = ""  # only of requests for scheduled events: the api-version; "other": not known; "none": missing


UNKNOWN_CALLER_REQUEST = RequestCategory(UNKNOWN_CALLER)
OTHER_REQUEST = RequestCategory(OTHER)


def request_category(request: HttpRequest) -> RequestCategory:
    """Return the category of a VM's request, by method, path (ignoring letter case) and api-version."""
    return _category_of_target(request.method, request.target)


def user_agent_of(request: HttpRequest) -> str:
    """Return the first 120 printable characters of the first User-Agent header; "" if there is none."""
    user_agent = next((value for name, value in request.headers if name == "user-agent"), "")
    return _printable_prefix(user_agent) if user_agent else ""


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
    label = NO_VERSION if not version else version if version in ALL_VERSIONS else UNKNOWN_VERSION
    return RequestCategory({"GET": POLL, "POST": APPROVAL}.get(method, OTHER), label)


@lru_cache(maxsize=_CACHED_CATEGORIES)
def _printable_prefix(text: str) -> str:
    return "".join(filter(str.isprintable, text)).strip()[:MAX_USER_AGENT_LENGTH]


class RequestTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one process since its start, sent from workers to the owner; also the sum of several."""

    answered: tuple[tuple[str, str, int, int], ...] = ()  # kind, api-version, HTTP status (0: reset), responses
    accepted: int = 0  # connections
    refused: int = 0  # connections that a limit or a drain closed at once
    lost: int = 0  # event deliveries that could not be queued
    held: int = 0  # requests that are held now (a gauge)
    connections: int = 0  # open now (a gauge)

    def without_gauges(self) -> RequestTotals:
        """Return a copy with the counts that remain when the process has ended: held and connections are 0."""
        return msgspec.structs.replace(self, held=0, connections=0)


def sum_totals(*parts: RequestTotals) -> RequestTotals:
    """Return the sum of the totals of several processes, gauges included."""
    answered: Counter[tuple[str, str, int]] = Counter()
    for part in parts:
        for kind, version, status, count in part.answered:
            answered[kind, version, status] += count
    return RequestTotals(
        answered=tuple((*key, count) for key, count in answered.items()),
        accepted=sum(part.accepted for part in parts),
        refused=sum(part.refused for part in parts),
        lost=sum(part.lost for part in parts),
        held=sum(part.held for part in parts),
        connections=sum(part.connections for part in parts),
    )


RESET_STATUS = 0  # counted instead of an HTTP status: the connection was reset


@dataclass(slots=True)
class RequestCounters:
    """The request counts of one server since its start, which its connections increase in place."""

    accepted: int = 0  # connections
    refused: int = 0  # connections beyond a limit or while draining
    held: int = 0  # requests that are held now
    requests: int = 0  # valid HTTP requests, also those not answered yet
    answered: Counter[tuple[RequestCategory, int]] = field(default_factory=Counter)  # responses by category and status

    def count_cached(self, category: RequestCategory, status: int, count: int) -> None:
        """Add `count` requests that the response cache answered with this HTTP status."""
        self.requests += count
        self.answered[category, status] += count

    @property
    def responses_by_status(self) -> Counter[int]:
        """The number of responses by HTTP status, summed over categories, as a new Counter; without resets."""
        by_status: Counter[int] = Counter()
        for (_, status), count in self.answered.items():
            if status != RESET_STATUS:
                by_status[status] += count
        return by_status
