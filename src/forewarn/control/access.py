"""Use cases about who may do what: clients come, get another secret and go; roles are granted and revoked.

Each is in the history, without the secret: that is shown once, to whoever asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from forewarn.access.secret import hashed, new_secret
from forewarn.control.desk import Desk
from forewarn.core.access import Client, Grant, Role
from forewarn.core.change import Commit
from forewarn.core.history import Entry, What
from forewarn.core.resource import EVERYTHING
from forewarn.errors import NotFound, Refused, Rejected

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
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

    async def add_client(self, *, who: str, client_id: str = "", name: str = "") -> Credentials:
        """A new client; without an id it gets a GUID. It may do nothing until a role is granted to it."""
        wanted = (client_id.strip() or self._new_id()).casefold()
        if not _ID.fullmatch(wanted):
            raise Rejected(f"{client_id!r} is no client id: give letters, digits, dots and dashes, or none for a GUID")
        if self._store.client(wanted) is not None:
            raise Refused(f"client {wanted!r} exists already: give another id, or make it another secret")
        secret = new_secret()
        client = Client(id=wanted, secret_hash=hashed(secret), name=name.strip(), by=who, at=self._now())
        await self._store.commit(Commit(clients=(client,), entries=(self._entry(who, f"{called(client)} added"),)))
        return Credentials(client=client, secret=secret)

    async def renew_secret(self, client_id: str, *, who: str) -> Credentials:
        """Another secret for this client; the old one counts no longer."""
        secret = new_secret()
        client = replace(self.client(client_id), secret_hash=hashed(secret))
        entry = self._entry(who, f"{called(client)} was given another secret")
        await self._store.commit(Commit(clients=(client,), entries=(entry,)))
        return Credentials(client=client, secret=secret)

    async def remove_client(self, client_id: str, *, who: str) -> tuple[Client, tuple[Grant, ...]]:
        """The client, and the grants that went with it."""
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
        wanted = (role, over.casefold())
        known = next((g for g in self._store.grants(to=to) if (g.role, g.over.casefold()) == wanted), None)
        if known is not None:
            return known
        grant = Grant(id=self._new_id().lower(), role=role, to=to, over=over, by=who, at=self._now())
        entry = self._entry(who, f"{_told(grant)} granted to {name or to}")
        await self._store.commit(Commit(grants=(grant,), entries=(entry,)))
        return grant

    async def revoke(self, grant_id: str, *, who: str, name: str = "") -> Grant:
        grant = self.find_grant(grant_id)
        entry = self._entry(who, f"{_told(grant)} taken from {name or grant.to}")
        await self._store.commit(Commit(removed_grants=(grant.id,), entries=(entry,)))
        return grant

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
