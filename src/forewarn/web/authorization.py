"""What one caller may see: the fleet directory and stored values, filtered by the caller's grants.

A caller who may not read a thing gets the same answer as if it did not exist: not found, not listed, not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace
from starlette.requests import Request

from forewarn.auth.claims import Claims, InvalidToken, quote_excerpt
from forewarn.auth.client_secrets import hash_secret, new_secret, secret_fingerprint, secret_matches
from forewarn.auth.token_service import TokenService
from forewarn.base.clock import read_real_time
from forewarn.control.directory import FleetDirectory, IndexedVm
from forewarn.core.access import Grant, Principal, RegisteredClient, Right, client_principal
from forewarn.core.event import Event
from forewarn.core.faults import hide_faults
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.resource_ids import ROOT_RESOURCE, is_within_resource, vm_resource_id
from forewarn.errors import Remedy, Unauthenticated
from forewarn.store.interface import Store

log = logging.getLogger(__name__)


# Authenticates callers: bearer tokens over TLS, and client ids with their secrets.
#
# Nothing is cached: grants and client secrets are read for each request, so a revocation takes effect at once.

Authenticate = Callable[[Request], Awaitable[Principal]]  # the caller of a request; raises Unauthenticated
_CLIENT_PREFIX = client_principal("")
_BEARER = "bearer"
_UNKNOWN_CLIENT_HASH = hash_secret(new_secret())  # compared for an unknown client, so that both cases take as long


class AuthenticationRequired(Unauthenticated):
    """A request's caller is not authenticated; `challenge` is the value of WWW-Authenticate."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(message)
        self.challenge = challenge


class BearerAuthenticator:
    """Authenticates requests by their bearer token; reads the caller's grants for each request."""

    def __init__(self, *, sign_in: TokenService, store: Store, real_time: Callable[[], float] = read_real_time) -> None:
        self._sign_in = sign_in
        self._store = store
        self._real_time = real_time

    async def authenticate(self, request: Request) -> Principal:
        """Verify the request's bearer token, and return its principal with the current name and grants."""
        try:
            claims = await self._sign_in.verify(_bearer_token(request), self._real_time())
            return principal_for_claims(claims, self._store)
        except (InvalidToken, Unauthenticated) as error:
            raise AuthenticationRequired(str(error), self._challenge(request)) from None

    def _challenge(self, request: Request) -> str:
        external = self._sign_in.external
        issuer_url = external.url if external is not None else f"{request.url.scheme}://{request.url.netloc}/adfs"
        return f'Bearer authorization_uri="{issuer_url}", error="invalid_token"'


def principal_for_claims(claims: Claims, store: Store) -> Principal:
    """Return the principal that verified claims of a token name, with its current name and grants."""
    name = _display_name(claims, store)
    grants = tuple(grant for principal_id in claims.ids for grant in store.grants(principal=principal_id))
    return Principal(id=claims.primary_id, name=name, grants=grants)


def _display_name(claims: Claims, store: Store) -> str:
    if claims.vm_id:
        return _vm_display_name(claims, store)
    if not claims.primary_id.startswith(_CLIENT_PREFIX):
        return f"{claims.name} (oidc)"  # the suffix keeps an external user from posing as one of our clients
    return _client_display_name(claims, store)


def _client_display_name(claims: Claims, store: Store) -> str:
    """Rejects a token of an old secret: the id may belong to a new client now."""
    client_id = claims.primary_id.removeprefix(_CLIENT_PREFIX)
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    if secret_fingerprint(client.secret_hash) != claims.secret_fingerprint:
        raise Unauthenticated(f"client {client_id!r} has a new secret: sign in with that one")
    return f"client {client_id}"


def _vm_display_name(claims: Claims, store: Store) -> str:
    vm = store.vm(claims.vm_key)
    if vm is None or vm.removed_at is not None or vm.vm_id.casefold() != claims.vm_id.casefold():
        raise Unauthenticated(f"VM {claims.name!r}, the owner of this token, was removed: get a token in another VM")
    return f"VM {vm.name}"


def _bearer_token(request: Request) -> str:
    header = request.headers.get("authorization", "").strip()
    scheme, _, token = header.partition(" ")
    if not header:
        raise Unauthenticated("the request has no Authorization header: sign in and send 'Authorization: Bearer TOKEN'")
    if scheme.lower() != _BEARER or not token.strip():
        raise Unauthenticated("the Authorization header has no bearer token: send 'Authorization: Bearer TOKEN'")
    return token.strip()


def verify_client_secret(client_id: str, secret: str, store: Store) -> RegisteredClient:
    """Return the registered client with this id if `secret` is its secret.

    An unknown id and a wrong secret get the same message, after the same time; both are logged.
    """
    client = store.client(client_id.casefold())
    expected_hash = client.secret_hash if client is not None else _UNKNOWN_CLIENT_HASH
    if not secret_matches(secret, expected_hash) or client is None:
        # An unknown id is not logged: it may be a secret that was typed into the wrong field.
        log.info("sign-in failed for %s", quote_excerpt(client.id) if client is not None else "an unknown client")
        raise Unauthenticated(
            f"client {quote_excerpt(client_id)} does not exist, or this is not its secret", Remedy.LIST_CLIENTS
        )
    return client


class VisibleDirectory:
    """The fleet directory as one caller, `principal`, sees it: without the VMs that they may not read."""

    def __init__(self, directory: FleetDirectory, principal: Principal) -> None:
        self.unfiltered = directory
        self._principal = principal
        self.sees_everything = principal.may(Right.READ, ROOT_RESOURCE)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The caller's grants; () if there are none. Callers with equal grants see the same directory."""
        return self._principal.grants

    def can_see(self, vm: Vm) -> bool:
        """Return whether the caller may read this VM, which may be a removed one."""
        return self.can_read(vm_resource_id(vm))

    def can_read(self, resource: str) -> bool:
        """Return whether the caller may read the resource with this Azure id, and so everything below it."""
        return self.sees_everything or self._principal.may(Right.READ, resource)

    def find(self, name: str) -> Vm:
        """Return the visible, present VM with this name, `group/name` or key, ignoring letter case."""
        return self.unfiltered.find(name, self.can_see)

    def find_any(self, name: str) -> Vm:
        """Return the visible VM with this name, `group/name` or key, ignoring letter case; it may be removed."""
        return self.unfiltered.find_any(name, self.can_see)

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        """Return the visible, present VMs of a subscription, group or set, in natural order of their keys.

        Do not change the list: it may be a cache.
        """
        vms = self.unfiltered.vms_within(resource)
        # An availability set contains VMs whose ids are not below its own: the right to read the set is not enough.
        if self.can_read(resource) and all(is_within_resource(resource, vm.resource) for vm in vms[:1]):
            return vms
        return [vm for vm in vms if self.can_read(vm.resource)]

    def sets_within(self, resource: str) -> list[str]:
        """Return the ids of the sets of a subscription or group. A readable VM does not make its set readable."""
        return [set_id for set_id in self.unfiltered.sets_within(resource) if self.can_read(set_id)]

    def groups(self) -> list[str]:
        """Return the Azure ids of the resource groups with anything the caller may read, in natural order."""
        return [
            group
            for group in self.unfiltered.groups()
            if self.can_read(group) or self.vms_within(group) or self.sets_within(group)
        ]

    def most_common_group(self) -> tuple[str, str] | None:
        """Return subscription id and name of the resource group with the most present VMs, visible or not."""
        return self.unfiltered.most_common_group()

    def subscriptions(self) -> set[str]:
        """Return the subscription ids of all present VMs, visible or not, as the VMs spell them, in a new set."""
        return self.unfiltered.subscriptions()


class Visibility:
    """Decides which VMs, scopes, hosts, requests and history entries one caller, `principal`, may see."""

    def __init__(self, store: Store, directory: FleetDirectory, principal: Principal) -> None:
        self._store = store
        self._directory = directory
        self._principal = principal
        self.sees_everything = principal.may(Right.READ, ROOT_RESOURCE)
        self._scopes: dict[str, bool] = {}
        self._requests: dict[str, bool] = {}

    def can_see_vm(self, vm: Vm) -> bool:
        """Return whether the caller may read this VM, which may be a removed one. Reads no store."""
        return self.sees_everything or self._principal.may(Right.READ, vm_resource_id(vm))

    def can_see_scope(self, scope_id: str) -> bool:
        """Return whether the caller may see this scope: may read any VM of it, present or removed."""
        # One VM is enough, because each VM is shown all events of its scope (spec §7.2).
        if self.sees_everything:
            return True
        if scope_id not in self._scopes:
            self._scopes[scope_id] = any(map(self.can_see_vm, self._scope_vms(scope_id)))
        return self._scopes[scope_id]

    def can_see_host(self, name: str) -> bool:
        """Return whether the caller may see this host: may read any VM that is on it now, or everything."""
        return self.sees_everything or any(map(self.can_see_vm, self._store.vms(host=name)))

    def can_see_request(self, request: MaintenanceRequest) -> bool:
        """Return whether the caller may see a request: may read all its VMs, or made it as one of our clients."""
        # For a request that approved events, the caller must see the scopes of these events instead. Only a caller who
        # sees everything sees rollouts.
        if self.sees_everything:
            return True
        if request.id not in self._requests:
            is_allowed = self._is_requester(request) or self._sees_parts_of(request)
            self._requests[request.id] = request.rollout is None and is_allowed
        return self._requests[request.id]

    def can_see_entry(self, entry: HistoryEntry) -> bool:
        """Return whether the caller may see an entry: its scope decides, else its request, else its VM."""
        if self.sees_everything:
            return True
        if entry.kind is EntryKind.FAULT:
            return False
        if entry.scope_id:
            return self.can_see_scope(entry.scope_id)
        if entry.request_id:
            request = self._store.request(entry.request_id)
            return request is not None and self.can_see_request(request)
        return bool(entry.vm) and self._sees_every_vm_named(entry.vm)

    def visible_entries(self, entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
        """Return those of the entries that the caller may see, in the same order, as the caller is shown them."""
        return [self.shown_entry(entry) for entry in entries if self.can_see_entry(entry)]

    def shown_entry(self, entry: HistoryEntry) -> HistoryEntry:
        """Return the entry as this caller is shown it: without faults in its text, unless they see everything."""
        # An event that a fault withdrew is then withdrawn by forewarn. Does not check `can_see_entry`.
        text = entry.text if self.sees_everything else hide_faults(entry.text)
        if text == entry.text:
            return entry
        return replace(entry, text=text, actor="forewarn" if entry.kind is EntryKind.WITHDRAWN else entry.actor)

    def shown_event(self, event: Event) -> Event:
        """Return an event as this caller is shown it: without faults in its texts, unless they see everything."""
        if self.sees_everything or not event.faults:
            return event
        return replace(event, note=hide_faults(event.note), reason=hide_faults(event.reason))

    def _is_requester(self, request: MaintenanceRequest) -> bool:
        """Compares names, which are unique for our own clients only."""
        is_client = self._principal.id.startswith(client_principal(""))
        return is_client and request.requested_by == self._principal.name

    def _sees_parts_of(self, request: MaintenanceRequest) -> bool:
        if not request.approves:
            return self._sees_every_vm_of(request)
        approved = [event for event in map(self._store.event, request.approves) if event is not None]
        return bool(approved) and all(self.can_see_scope(event.scope_id) for event in approved)

    def _sees_every_vm_of(self, request: MaintenanceRequest) -> bool:
        """Compares scope and name: another group may have a VM of the same name."""
        affected = {(part.scope_id, name.casefold()) for part in self._parts_of_request(request) for name in part.vms}
        if request.replay is not None:
            affected.add((request.replay.scope_id, request.replay.name.casefold()))
        scope_ids = {scope_id for scope_id, _ in affected}
        visible = {
            (scope_id, vm.name.casefold())
            for scope_id in scope_ids
            for vm in self._scope_vms(scope_id)
            if self.can_see_vm(vm)
        }
        return bool(affected) and affected <= visible

    def _parts_of_request(self, request: MaintenanceRequest) -> Iterator[Event | PlannedEvent]:
        yield from self._store.events(request_id=request.id)
        yield from self._store.planned(request_id=request.id)

    def _sees_every_vm_named(self, name: str) -> bool:
        """An entry with only a VM's name may be about any VM of that name."""
        vms = self._directory.find_all_named(name)
        return bool(vms) and all(map(self.can_see_vm, vms))

    def _scope_vms(self, scope_id: str) -> list[Vm]:
        return self._store.vms(scope_id=scope_id, removed=True)
