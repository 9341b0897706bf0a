"""Calls about who may do what: clients and their secrets, grants, and oneself."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from forewarn.console.body import Strict, Text
from forewarn.console.call import Call
from forewarn.console.door import principal_of
from forewarn.console.portal.link import pass_for
from forewarn.console.room import Room
from forewarn.console.views import View
from forewarn.control.access import Credentials, called
from forewarn.core.access import RIGHTS, Client, Grant, Right, Role, client_principal, vm_principal
from forewarn.core.fleet import Vm
from forewarn.core.resource import read_resource, resource_of, scale_set_resource
from forewarn.core.scope import Scope
from forewarn.errors import NotFound, Refused, Rejected

_OUTSIDE = "oidc:"


class NewClient(Strict, frozen=True, kw_only=True):
    id: Annotated[str, Meta(max_length=100)] = ""  # "": a GUID is made
    name: Annotated[str, Meta(max_length=200)] = ""  # for people


class NewGrant(Strict, frozen=True, kw_only=True):
    role: Role
    to: Text  # a client's id, the name of a VM, or oidc:ID for somebody whom an issuer outside knows
    over: Text  # a resource id (/ is everything), or the name of a VM, a scale set or a cloud service


class ClientView(View, frozen=True, kw_only=True):
    id: str
    name: str
    principal: str  # by which grants know it
    by: str
    at: float


class ClientWithSecret(ClientView, frozen=True, kw_only=True):
    secret: str  # shown this once


class GrantView(View, frozen=True, kw_only=True):
    id: str
    role: Role
    rights: tuple[Right, ...]
    to: str  # the id of a principal
    to_name: str  # as people call them
    over: str
    by: str
    at: float


class RemovedClient(ClientView, frozen=True, kw_only=True):
    grants: tuple[GrantView, ...]  # which went with it


class AccessView(View, frozen=True, kw_only=True):
    clients: tuple[ClientView, ...]
    grants: tuple[GrantView, ...]


class MeView(View, frozen=True, kw_only=True):
    id: str
    name: str  # how the history calls them
    grants: tuple[GrantView, ...]


class LinkView(View, frozen=True, kw_only=True):
    url: str  # which signs in to the portal, once
    signs_in: str  # whom, as the history calls them
    ends_at: float  # in real time


async def show(room: Room, call: Call) -> AccessView:
    """The clients, and which roles are granted to whom."""
    return AccessView(clients=tuple(map(_client, room.store.clients())), grants=_grants(room, room.store.grants()))


async def show_me(room: Room, call: Call) -> MeView:
    """Who the caller is, and the roles that they have."""
    me = room.principal
    return MeView(id=me.id, name=me.name, grants=tuple(_grant(grant, me.name) for grant in me.grants))


async def add_client(room: Room, call: Call, asked: NewClient) -> ClientWithSecret:
    """Add a client, and show its secret: now or never."""
    return _with_secret(await room.control.access.add_client(client_id=asked.id, name=asked.name, who=room.who))


async def renew_secret(room: Room, call: Call) -> ClientWithSecret:
    """Give a client another secret, and show it: now or never. The old one counts no longer."""
    return _with_secret(await room.control.access.renew_secret(call.names["id"], who=room.who))


async def remove_client(room: Room, call: Call) -> RemovedClient:
    """Remove a client, and what was granted to it."""
    client, grants = await room.control.access.remove_client(call.names["id"], who=room.who)
    lost = tuple(_grant(grant, called(client)) for grant in grants)
    return RemovedClient(grants=lost, **_facts(client))


async def grant(room: Room, call: Call, asked: NewGrant) -> GrantView:
    """Grant a role to a client, a VM, or somebody from outside; one that they have already stays as it is."""
    to = _principal(room, asked.to)
    name = _names(room, [to])[to]
    granted = await room.control.access.grant(
        asked.role, to=to, over=_resource(room, asked.over), who=room.who, name=name
    )
    return _grant(granted, name)


async def revoke(room: Room, call: Call) -> GrantView:
    """Take a role back."""
    found = room.control.access.find_grant(call.names["id"])
    name = _names(room, [found.to])[found.to]
    return _grant(await room.control.access.revoke(found.id, who=room.who, name=name), name)


async def make_link(room: Room, call: Call) -> LinkView:
    """Make a link that signs the caller in to the portal: once, and within 15 minutes."""
    links, sign_in = room.house.links, room.house.sign_in
    if links is None or sign_in is None:
        raise Refused("this service has no portal: give it an address with the setting 'console'")
    whom = pass_for(room.principal, sign_in, room.store)
    link = links.make(whom)
    name = room.who if whom.is_owner else principal_of(whom.claims, room.store).name
    return LinkView(url=link.url, signs_in=name, ends_at=link.ends_at)


def _principal(room: Room, text: str) -> str:
    """The id of whom people call so."""
    given = text.strip()
    if given.casefold().startswith(_OUTSIDE) and len(given) > len(_OUTSIDE):
        return _OUTSIDE + given[len(_OUTSIDE) :]  # an issuer's ids are its own: case counts
    sort, _, rest = given.partition(":")
    client = room.store.client((rest if sort == "client" else given).casefold())
    vm = _vm(room, rest if sort == "vm" else given)
    if client is not None and vm is not None:
        raise Refused(f"{text!r} is a client and a VM: say 'client:{client.id}' or 'vm:{vm.name}'")
    if client is not None:
        return client_principal(client.id)
    if vm is not None:
        return vm_principal(vm.vm_id)
    if sort == "client" and rest:
        raise NotFound(f"client {rest!r} does not exist: `forewarn access show` lists the clients")
    if sort == "vm" and rest:
        raise NotFound(f"VM {rest!r} does not exist: `forewarn fleet show` lists the VMs")
    raise NotFound(
        f"{text!r} is no client and no VM: `forewarn access show` lists the clients; "
        "somebody from outside is written 'oidc:ID'"
    )


def _vm(room: Room, name: str) -> Vm | None:
    """By its name, or the id that its principal goes by."""
    try:
        return room.directory.find(name)
    except NotFound:
        return next((vm for vm in room.store.vms() if vm.vm_id.casefold() == name.casefold()), None)


def _resource(room: Room, text: str) -> str:
    if text.strip().startswith("/"):
        return read_resource(text)
    try:
        return resource_of(room.directory.find(text))
    except NotFound:
        return _set_resource(room.scope(text), text)


def _set_resource(scope: Scope, text: str) -> str:
    vm = scope.vms[0] if scope.vms else None
    if vm is not None and vm.scale_set:
        return scale_set_resource(vm)
    if vm is not None and vm.cloud_service:
        return resource_of(vm).rpartition("/roleInstances/")[0]
    # In Azure VMs do not lie within their availability set: such a role would reach none of them.
    raise Rejected(
        f"a role over availability set {text!r} would reach none of its VMs: grant it over them or the group"
    )


def _grants(room: Room, grants: list[Grant]) -> tuple[GrantView, ...]:
    names = _names(room, {grant.to for grant in grants})
    return tuple(_grant(grant, names[grant.to]) for grant in grants)


def _names(room: Room, principals: list[str] | set[str]) -> dict[str, str]:
    """As people call these."""
    known = {client.principal_id: called(client) for client in room.store.clients()}
    if any(principal.startswith("vm:") for principal in principals):
        known |= {vm_principal(vm.vm_id): f"VM {vm.name}" for vm in room.store.vms(removed=True)}
    return {principal: known.get(principal, principal) for principal in principals}


def _grant(grant: Grant, name: str) -> GrantView:
    return GrantView(
        id=grant.id,
        role=grant.role,
        rights=tuple(right for right in Right if right in RIGHTS[grant.role]),
        to=grant.to,
        to_name=name,
        over=grant.over,
        by=grant.by,
        at=grant.at,
    )


def _with_secret(made: Credentials) -> ClientWithSecret:
    return ClientWithSecret(secret=made.secret, **_facts(made.client))


def _client(client: Client) -> ClientView:
    return ClientView(**_facts(client))


def _facts(client: Client) -> dict[str, Any]:
    return {"id": client.id, "name": client.name, "principal": client.principal_id, "by": client.by, "at": client.at}
