"""Use cases for access: add, renew and remove API clients; grant and revoke roles.

Every change is written to the history. A client's secret is returned once and stored only as a hash.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from forewarn.auth.client_secrets import hash_secret, new_secret
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.access import Grant, RegisteredClient, Role, client_principal
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import NotFound, Refused, Rejected, Remedy

_CLIENT_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
_CLIENT_PREFIX = client_principal("")
_MIN_ID_PREFIX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A registered API client and its new secret, as `add_client` and `renew_secret` return them once."""

    client: RegisteredClient
    secret: str = field(repr=False)  # in plain text; the store keeps only a hash


class AccessService:
    """Adds, renews and removes API clients; grants and revokes roles. The caller's rights are not checked."""

    def __init__(self, *, transactions: ScopeTransactions, new_id: Callable[[], str]) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._new_id = new_id
        self._write_lock = asyncio.Lock()  # no other change between a check and its commit

    async def add_client(self, *, who: str, client_id: str = "", name: str = "") -> ClientCredentials:
        """Add a client without any role, and return it with its secret, which cannot be read again."""
        wanted = (client_id.strip() or self._new_id()).casefold()
        if not _CLIENT_ID_PATTERN.fullmatch(wanted):
            raise Rejected(
                f"{client_id!r} is not a client id: use letters, digits, dots and dashes, or none for a GUID"
            )
        if not name.isprintable():
            raise Rejected(f"the name {name!r} has characters that cannot be shown: use printable ones")
        async with self._write_lock:
            if self._store.client(wanted) is not None:
                raise Refused(f"client {wanted!r} exists already", Remedy.RENEW_CLIENT_SECRET, client=wanted)
            made = RegisteredClient(
                id=wanted, secret_hash=b"", name=name.strip(), created_by=who, created_at=self._now()
            )
            return await self._save_with_new_secret(made, who, "added")

    async def renew_secret(self, client_id: str, *, who: str) -> ClientCredentials:
        """Give a client a new secret, durably, and return both.

        The old secret, and tokens and sessions that were obtained with it, stop working at once. Grants stay.
        """
        async with self._write_lock:
            return await self._save_with_new_secret(self.client(client_id), who, "was given a new secret")

    async def _save_with_new_secret(self, client: RegisteredClient, who: str, what: str) -> ClientCredentials:
        secret = new_secret()
        known = replace(client, secret_hash=hash_secret(secret))
        await self._store.commit(
            Commit(clients=(known,), entries=(self._history_entry(who, f"{client_title(known)} {what}"),))
        )
        return ClientCredentials(client=known, secret=secret)

    async def remove_client(self, client_id: str, *, who: str) -> tuple[RegisteredClient, tuple[Grant, ...]]:
        """Remove a client and all grants to it in one transaction; return (client, grants), as they were."""
        # Its tokens and sessions stop working at once. A later client with the same id inherits nothing.
        async with self._write_lock:
            client = self.client(client_id)
            grants = tuple(self._store.grants(principal=client.principal_id))
            lost = f" with {len(grants)} grant{'' if len(grants) == 1 else 's'}" if grants else ""
            commit = Commit(
                removed_clients=(client.id,),
                removed_grants=tuple(grant.id for grant in grants),
                entries=(self._history_entry(who, f"{client_title(client)} removed{lost}"),),
            )
            await self._store.commit(commit)
        return client, grants

    async def grant(self, role: Role, *, to: str, over: str, who: str, name: str = "") -> Grant:
        """Grant a role over the resource id `over` to the principal `to`, durably; return the grant.

        If the principal has this role over this resource already, nothing changes. Principals other than clients, and
        `over`, are not checked.
        """
        async with self._write_lock:
            if to.startswith(_CLIENT_PREFIX):
                to = self.client(to.removeprefix(_CLIENT_PREFIX)).principal_id
            if (known := self._existing_grant(role, to, over)) is not None:
                return known
            grant = Grant(
                id=self._new_id().lower(),
                role=role,
                principal=to,
                resource=over,
                granted_by=who,
                granted_at=self._now(),
            )
            entry = self._history_entry(who, f"{_grant_title(grant)} granted to {name or to}")
            await self._store.commit(Commit(grants=(grant,), entries=(entry,)))
        return grant

    async def revoke(self, grant_id: str, *, who: str, name: str = "") -> Grant:
        """Remove a grant, durably, and return it; `grant_id` is its id, or a start of it."""
        async with self._write_lock:
            grant = self.find_grant(grant_id)
            entry = self._history_entry(who, f"{_grant_title(grant)} revoked from {name or grant.principal}")
            await self._store.commit(Commit(removed_grants=(grant.id,), entries=(entry,)))
        return grant

    def _existing_grant(self, role: Role, to: str, over: str) -> Grant | None:
        alike = (
            g for g in self._store.grants(principal=to) if g.role is role and g.resource.casefold() == over.casefold()
        )
        return next(alike, None)

    def client(self, client_id: str) -> RegisteredClient:
        """Return the client with this id, ignoring letter case and blanks around it; or raise NotFound."""
        client = self._store.client(client_id.strip().casefold())
        if client is None:
            raise NotFound(f"client {client_id!r} does not exist", Remedy.LIST_CLIENTS)
        return client

    def find_grant(self, grant_id: str) -> Grant:
        """Return the grant with this id, or the only one whose id starts with it (at least four characters)."""
        wanted = grant_id.strip().casefold()
        grants = self._store.grants()
        found = [g for g in grants if g.id == wanted] or [g for g in grants if g.id.startswith(wanted)]
        if not found or len(wanted) < min(_MIN_ID_PREFIX, len(found[0].id)):
            raise NotFound(f"grant {grant_id!r} does not exist", Remedy.LIST_GRANTS)
        if len(found) > 1:
            raise Refused(f"grant {grant_id!r} is ambiguous, {len(found)} ids start with it: give more of the id")
        return found[0]

    def _history_entry(self, who: str, text: str) -> HistoryEntry:
        return HistoryEntry(at=self._now(), kind=EntryKind.ACCESS, actor=who, text=f"{text} by {who}")

    def _now(self) -> float:
        return self._transactions.clock.now()


def client_title(client: RegisteredClient) -> str:
    """Return how history entries and messages call a client: `client NAME (ID)`, or `client ID`."""
    return f"client {client.name} ({client.id})" if client.name else f"client {client.id}"


def _grant_title(grant: Grant) -> str:
    return f"role {grant.role} over {'everything' if grant.resource == ROOT_RESOURCE else grant.resource}"
