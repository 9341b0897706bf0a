"""The house as one caller sees it: what every handler is given, made for each call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request as HttpRequest

from forewarn.console.directory import Directory
from forewarn.console.house import House
from forewarn.console.outlook import Outlook
from forewarn.console.visibility import Visibility
from forewarn.control.control import Control
from forewarn.core.access import Principal, Right, role_for
from forewarn.core.change import Commit
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import Entry, What
from forewarn.core.request import Request
from forewarn.core.resource import EVERYTHING
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Rejected, Unavailable
from forewarn.store.seam import Store

log = logging.getLogger(__name__)
SHORTEST_PREFIX = 4
Again = Callable[[], Awaitable[Principal]]  # who is calling, asked once more
_RECENT = 10_000  # events and requests among which a prefix is looked for, besides those under way


class Room:
    def __init__(
        self,
        house: House,
        directory: Directory,
        principal: Principal,
        again: Again | None = None,
    ) -> None:
        self.house = house
        self._again = again
        self._see_as(principal, directory)

    async def look_again(self) -> None:
        """While a call waited, the fleet or what its caller may see may have changed. Raises as entering does."""
        principal = self.principal if self._again is None else await self._again()
        self._see_as(principal, self.directory.whole)

    def _see_as(self, principal: Principal, directory: Directory) -> None:
        self.principal = principal
        self.directory = Outlook(directory, principal)
        self.visible = Visibility(self.store, directory, principal)

    @property
    def control(self) -> Control:
        return self.house.control

    @property
    def store(self) -> Store:
        return self.house.control.store

    @property
    def who(self) -> str:
        """How the history calls whoever asks."""
        return self.principal.name

    def sees(self, vm: Vm) -> bool:
        return self.visible.vm(vm)

    def sees_everything(self) -> bool:
        return self.visible.is_whole

    def sees_scope(self, scope_id: str) -> bool:
        return self.visible.scope(scope_id)

    def must(self, right: Right, resource: str) -> None:
        if not self.principal.may(right, resource):
            raise self.lacking(right, "everything" if resource == EVERYTHING else resource)

    def lacking(self, right: Right, over: str) -> Forbidden:
        deed = "run the platform" if right is Right.PLATFORM else right
        return Forbidden(
            f"{self.who} does not have the right to {deed} over {over}: ask an administrator for the role "
            f"{role_for(right)} (`forewarn access grant`)"
        )

    def now(self) -> float:
        return self.house.control.clock.now()

    async def note(self, what: What, text: str) -> None:
        """In the history: what the caller did that is about no VM."""
        entry = Entry(at=self.now(), what=what, who=self.who, text=f"{text} by {self.who}")
        await self.store.commit(Commit(entries=(entry,)))

    async def catch_up(self) -> None:
        """Let what was just asked for happen as far as it is due, so that the answer shows it.

        The asking itself is durable: trouble from here on is the reconciler's, which goes on by itself.
        """
        try:
            await self.control.reconciler.catch_up()
        except (Unavailable, Conflict) as error:
            log.warning("what is due could not be done at once, the reconciler will: %s", error)

    def event(self, name: str) -> Event:
        """The event by its id in any case, or by a prefix that no other has."""
        wanted = name.strip().upper()
        if (event := self.store.event(wanted)) is not None and self.sees_scope(event.scope_id):
            return event
        if len(wanted) < SHORTEST_PREFIX:
            raise NotFound(f"{name!r} is too short for an event's id: give at least {SHORTEST_PREFIX} characters of it")
        found = self._by_prefix(wanted)
        if not found:
            raise NotFound(f"event {name!r} does not exist: `forewarn events --all` lists them")
        if len(found) > 1:
            raise Refused(
                f"event {name!r} is ambiguous, {len(found)} begin so: give more of the id, such as {min(found)}"
            )
        return next(iter(found.values()))

    def _by_prefix(self, wanted: str) -> dict[str, Event]:
        live = self.store.events(statuses=[Status.SCHEDULED, Status.STARTED])
        recent = self.store.events(limit=_RECENT)
        alike = {event.id: event for event in (*live, *recent) if event.id.startswith(wanted)}
        return {event_id: event for event_id, event in alike.items() if self.sees_scope(event.scope_id)}

    def scope(self, name: str) -> Scope:
        """The scope by its id, by the name of its set or service, or by a VM of it."""
        wanted = name.strip().casefold()
        exact = self.store.scope(wanted) if self.sees_scope(wanted) else None
        if (scope := exact or self._scope_of_set(name, wanted)) is not None:
            return scope
        try:
            vm = self.directory.find_any(name)
        except NotFound:
            raise NotFound(f"scope {name!r} does not exist: `forewarn fleet show` lists the scopes") from None
        return self.control.desk.scope(vm.scope_id)

    def _scope_of_set(self, name: str, wanted: str) -> Scope | None:
        alike = (scope_id for scope_id in self.store.scope_ids() if _is_called(scope_id, wanted))
        ids = [scope_id for scope_id in alike if self.sees_scope(scope_id)]
        if len(ids) > 1:
            raise Refused(f"scope {name!r} is ambiguous: say {' or '.join(ids[:4])}")
        return self.store.scope(ids[0]) if ids else None

    def request(self, name: str) -> Request:
        request = self.store.request(name.strip().lower())
        if request is None or not self.visible.request(request):
            raise NotFound(f"request {name!r} does not exist: `forewarn history` shows what was asked for")
        return request

    def rollouts(self) -> list[Request]:
        """All that are under way, and the recent ones; oldest first. Only who sees everything sees any."""
        if not self.sees_everything():
            return []
        known = {r.id: r for r in (*self.store.requests(open_only=True), *self.store.requests(limit=_RECENT))}
        return sorted((r for r in known.values() if r.rollout is not None), key=lambda r: r.at)

    def rollout(self, name: str) -> Request:
        wanted = name.strip().lower()
        exact = self.store.request(wanted) if self.sees_everything() else None
        found = [exact] if exact else [request for request in self.rollouts() if request.id.startswith(wanted)]
        if len(found) > 1:
            raise Refused(f"rollout {name!r} is ambiguous, {len(found)} begin so: give more of the id")
        if not found:
            raise NotFound(f"rollout {name!r} does not exist: `forewarn rollout show` lists them")
        return self.control.requests.rollout(found[0].id)

    def host(self, name: str) -> Host:
        found = self.control.requests.host(name)
        if not self.visible.host(found.name):
            raise NotFound(f"host {name!r} does not exist: `forewarn fleet show` lists the hosts")
        return found


Enter = Callable[[HttpRequest], Awaitable[Room]]  # raises Unauthenticated


def _is_called(scope_id: str, wanted: str) -> bool:
    """`web` and `lab/web` are the set web of the group lab; `pool` and `pool/pg-0` a placement group."""
    sort, _, path = scope_id.partition(":")
    if sort == "vm":
        return False
    parts = path.split("/")
    ends = parts[-2:] if sort == "placement" else parts[-1:]
    short = "/".join(ends)
    return wanted in (short, ends[0]) or (wanted.endswith(f"/{short}") and path.endswith(f"/{wanted}"))


def must_be_told_once(names: tuple[str, ...], keys: list[str]) -> None:
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise Rejected(f"{names[number]!r} is named twice: name each once")
