"""Use cases about who may do what: clients come, get another secret and go; roles are granted and revoked.

Each is in the history, without the secret: that is shown once, to whoever asked for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from forewarn.access.secret import hashed, new_secret
from forewarn.control.desk import Desk
from forewarn.core.access import Client, Grant, Role, client_principal
from forewarn.core.change import Commit
from forewarn.core.history import Entry, What
from forewarn.core.resource import EVERYTHING
from forewarn.errors import NotFound, Refused, Rejected

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
_CLIENT = client_principal("")
_SHORTEST_PREFIX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A client with its secret, which nobody can be shown again."""

    client: Client
    secret: str = field(repr=False)


class Access:
    def __init__(self, *, desk: Desk, new_id: Callable[[], str]) -> None:
        self._desk = desk
        self._store = desk.store
        self._new_id = new_id
        self._writing = asyncio.Lock()  # what was looked at is still so when it is written

    async def add_client(self, *, who: str, client_id: str = "", name: str = "") -> Credentials:
        """A new client; without an id it gets a GUID. It may do nothing until a role is granted to it."""
        wanted = (client_id.strip() or self._new_id()).casefold()
        if not _ID.fullmatch(wanted):
            raise Rejected(f"{client_id!r} is no client id: give letters, digits, dots and dashes, or none for a GUID")
        if not name.isprintable():
            raise Rejected(f"the name {name!r} has signs that cannot be shown: give a plain one")
        async with self._writing:
            if self._store.client(wanted) is not None:
                raise Refused(
                    f"client {wanted!r} exists already: give another id, or give this one another secret with "
                    f"`forewarn access client renew {wanted}`"
                )
            made = Client(id=wanted, secret_hash=b"", name=name.strip(), by=who, at=self._now())
            return await self._with_secret(made, who, "added")

    async def renew_secret(self, client_id: str, *, who: str) -> Credentials:
        """Another secret for this client; the old one counts no longer."""
        async with self._writing:
            return await self._with_secret(self.client(client_id), who, "was given another secret")

    async def _with_secret(self, client: Client, who: str, what: str) -> Credentials:
        secret = new_secret()
        known = replace(client, secret_hash=hashed(secret))
        await self._store.commit(Commit(clients=(known,), entries=(self._entry(who, f"{called(known)} {what}"),)))
        return Credentials(client=known, secret=secret)

    async def remove_client(self, client_id: str, *, who: str) -> tuple[Client, tuple[Grant, ...]]:
        """The client, and the grants that went with it: another of the same id must not inherit them."""
        async with self._writing:
            client = self.client(client_id)
            grants = tuple(self._store.grants(to=client.principal_id))
            lost = f" with {len(grants)} grant{'' if len(grants) == 1 else 's'}" if grants else ""
            commit = Commit(
                removed_clients=(client.id,),
                removed_grants=tuple(grant.id for grant in grants),
                entries=(self._entry(who, f"{called(client)} removed{lost}"),),
            )
            await self._store.commit(commit)
        return client, grants

    async def grant(self, role: Role, *, to: str, over: str, who: str, name: str = "") -> Grant:
        """The role for the principal `to`, called `name`; one that it has already stays as it is."""
        async with self._writing:
            if to.startswith(_CLIENT):
                self.client(to.removeprefix(_CLIENT))
            if (known := self._known(role, to, over)) is not None:
                return known
            grant = Grant(id=self._new_id().lower(), role=role, to=to, over=over, by=who, at=self._now())
            entry = self._entry(who, f"{_told(grant)} granted to {name or to}")
            await self._store.commit(Commit(grants=(grant,), entries=(entry,)))
        return grant

    async def revoke(self, grant_id: str, *, who: str, name: str = "") -> Grant:
        async with self._writing:
            grant = self.find_grant(grant_id)
            entry = self._entry(who, f"{_told(grant)} taken from {name or grant.to}")
            await self._store.commit(Commit(removed_grants=(grant.id,), entries=(entry,)))
        return grant

    def _known(self, role: Role, to: str, over: str) -> Grant | None:
        alike = (g for g in self._store.grants(to=to) if g.role is role and g.over.casefold() == over.casefold())
        return next(alike, None)

    def client(self, client_id: str) -> Client:
        client = self._store.client(client_id.strip().casefold())
        if client is None:
            raise NotFound(f"client {client_id!r} does not exist: `forewarn access show` lists the clients")
        return client

    def find_grant(self, grant_id: str) -> Grant:
        """By its id, or by a prefix that no other has."""
        wanted = grant_id.strip().casefold()
        grants = self._store.grants()
        found = [g for g in grants if g.id == wanted] or [g for g in grants if g.id.startswith(wanted)]
        if not found or len(wanted) < min(_SHORTEST_PREFIX, len(found[0].id)):
            raise NotFound(f"grant {grant_id!r} does not exist: `forewarn access show` lists the grants")
        if len(found) > 1:
            raise Refused(f"grant {grant_id!r} is ambiguous, {len(found)} begin so: give more of the id")
        return found[0]

    def _entry(self, who: str, text: str) -> Entry:
        return Entry(at=self._now(), what=What.ACCESS, who=who, text=f"{text} by {who}")

    def _now(self) -> float:
        return self._desk.clock.now()


def called(client: Client) -> str:
    return f"client {client.name} ({client.id})" if client.name else f"client {client.id}"


def _told(grant: Grant) -> str:
    return f"role {grant.role} over {'everything' if grant.over == EVERYTHING else grant.over}"
