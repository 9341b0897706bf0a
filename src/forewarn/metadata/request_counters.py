"""What a request is for, in a few words: requests are counted by these, so there can never be many of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from forewarn.protocol.message import Request
from forewarn.protocol.target import read_target
from forewarn.protocol.versions import VERSIONS

MOST_OF_AGENT = 120  # characters
_KEPT = 1024

POLL, APPROVAL, INSTANCE, TOKEN, OTHER, STRANGE = "poll", "approval", "instance", "token", "other", "strange"
UNKNOWN_VERSION, NO_VERSION = "other", "none"


class Sort(NamedTuple):
    of: str  # one of the six above
    version: str = ""  # the api-version that a poll or an approval names


STRANGER = Sort(STRANGE)  # whoever calls is none of our VMs
NO_REQUEST = Sort(OTHER)  # what came was none that can be read


def sort_of(request: Request) -> Sort:
    return _sort_of(request.method, request.target)


def agent_of(request: Request) -> str:
    """Which program asks, as it calls itself; what cannot be printed is left out."""
    given = next((value for name, value in request.headers if name == "user-agent"), "")
    return _printable(given) if given else ""


@lru_cache(maxsize=_KEPT)
def _sort_of(method: str, text: str) -> Sort:
    target = read_target(text)
    match target.lowered() if target is not None else ():
        case ("metadata", "scheduledevents"):
            assert target is not None
            return _about_events(method, target.parameter("api-version"))
        case ("metadata", "instance", *_):
            return Sort(INSTANCE)
        case ("metadata", "identity", "oauth2", "token"):
            return Sort(TOKEN)
    return NO_REQUEST


def _about_events(method: str, version: str | None) -> Sort:
    named = NO_VERSION if not version else version if version in VERSIONS else UNKNOWN_VERSION
    return Sort({"GET": POLL, "POST": APPROVAL}.get(method, OTHER), named)


@lru_cache(maxsize=_KEPT)
def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text)).strip()[:MOST_OF_AGENT]
