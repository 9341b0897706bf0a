"""What a form of the portal is: one entry of the table, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from forewarn.console.portal.field import Field, Kind, Typed
from forewarn.console.portal.foresight import Foresight
from forewarn.console.portal.page import PREFIX
from forewarn.console.room import Room
from forewarn.console.route import RouteLine, RouteTable
from forewarn.errors import Rejected

Body = Callable[[Room, Typed], dict[str, Any]]  # what the fields alone do not say
LeadsTo = Callable[[Any], str]  # from the API's answer to where one sees what came of it


def _nothing_more(room: Room, typed: Typed) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    name: str
    title: str
    button: str
    about: str
    route: str  # of the API, such as `POST /requests`
    done: str  # what has happened once it is sent
    leads_to: LeadsTo
    fields: tuple[Field, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)  # members of the body that nobody is asked for
    body: Body = _nothing_more
    foresight: Foresight | str = ""  # what would happen: told by this, or by this route of the API
    is_grave: bool = False
    is_short: bool = False  # a link that fills it in leads straight to what will happen

    def api_route(self, routes: RouteTable) -> RouteLine:
        """The route of the API that the form is sent to."""
        method, _, path = self.route.partition(" ")
        return routes[method, path]

    def preview_route(self, routes: RouteTable) -> RouteLine | None:
        """The route of the API that tells what would happen; None: `foresight` tells it."""
        return routes["POST", self.foresight] if isinstance(self.foresight, str) else None


def to_request(answer: Any) -> str:
    return f"{PREFIX}/requests/{answer.request.id}"


def to_rollout(answer: Any) -> str:
    return f"{PREFIX}/rollouts/{answer.id}"


def to_event(answer: Any) -> str:
    return f"{PREFIX}/events/{answer.id}"


def to_first_event(answer: Any) -> str:
    return f"{PREFIX}/events/{answer.events[0].id}"


def to_host(answer: Any) -> str:
    return f"{PREFIX}/hosts/{quote(answer.name, safe='')}"


def to_lab(answer: Any) -> str:
    return f"{PREFIX}/lab"


NOTICE = Field(
    name="notice",
    kind=Kind.DURATION,
    label="Notice",
    hint="Such as 20m or 7d. Left empty, it is the minimum of its kind.",
    member="notice_s",
)
SHORT_NOTICE = Field(
    name="short_notice",
    kind=Kind.CHECK,
    label="Less than the minimum, to rehearse",
    hint="Azure never promises less. A rehearsal may (--short-notice): handlers then have only the notice named above.",
    member="short_notice",
)
SCOPE = Field(
    name="scope",
    kind=Kind.SCOPE,
    label="Scope",
    member="scope",
    hint="A set, a placement group, a cloud service or a standalone VM, by its name or id.",
)


def must_have_length(room: Room, typed: Typed) -> dict[str, Any]:
    if SHORT_NOTICE.read(typed) and NOTICE.read(typed) is None:
        raise Rejected("a short notice needs a length: say how long with --notice")
    return {}
