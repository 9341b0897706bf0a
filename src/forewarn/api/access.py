"""Access handlers: clients and their secrets, role grants, the caller's identity, sign-in links."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from forewarn.control.access import ClientCredentials, client_title
from forewarn.core.access import ROLE_RIGHTS, Grant, RegisteredClient, Right, Role, client_principal, vm_principal
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import parse_resource_id, scale_set_resource_id, vm_resource_id
from forewarn.core.scope import Scope
from forewarn.errors import NotFound, Refused, Rejected, Remedy
from forewarn.web.authentication import principal_for_claims
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, NonEmptyText, StrictBody
from forewarn.web.sign_in_links import sign_in_link_identity
from forewarn.web.views import BaseView

_OIDC_PREFIX = "oidc:"


class NewClient(StrictBody, frozen=True, kw_only=True):
    id: Annotated[str, Meta(max_length=100)] = ""  # "": a GUID is made
    name: Annotated[str, Meta(max_length=200)] = ""  # for people


class NewGrant(StrictBody, frozen=True, kw_only=True):
    role: Role
    to: NonEmptyText  # a client's id, the name of a VM, or oidc:ID for somebody whom an issuer outside knows
    over: NonEmptyText  # a resource id (/ is everything), or the name of a VM, a scale set or a cloud service


class AccessClientView(BaseView, frozen=True, kw_only=True):
    id: str
    name: str
    principal: str  # by which grants know it
    by: str
    at: float


class ClientWithSecretView(AccessClientView, frozen=True, kw_only=True):
    secret: str  # shown this once


class GrantView(BaseView, frozen=True, kw_only=True):
    id: str
    role: Role
    rights: tuple[Right, ...]
    to: str  # the id of a principal
    to_name: str  # as people call them
    over: str
    by: str
    at: float


class RemovedClientView(AccessClientView, frozen=True, kw_only=True):
    grants: tuple[GrantView, ...]  # which went with it


class AccessView(BaseView, frozen=True, kw_only=True):
    clients: tuple[AccessClientView, ...]
    grants: tuple[GrantView, ...]


class CallerView(BaseView, frozen=True, kw_only=True):
    id: str
    name: str  # how the history calls them
    grants: tuple[GrantView, ...]


class SignInLinkView(BaseView, frozen=True, kw_only=True):
    url: str  # which signs in to the portal, once
    signs_in: str  # whom, as the history calls them
    ends_at: float  # in real time


async def show_access(context: RequestContext, call: HandlerCall) -> AccessView:
    """The clients, and which roles are granted to whom."""
    return AccessView(
        clients=tuple(map(_client_view, context.store.clients())), grants=_grant_views(context, context.store.grants())
    )


async def show_caller(context: RequestContext, call: HandlerCall) -> CallerView:
    """Who the caller is, and the roles that they have."""
    me = context.principal
    return CallerView(id=me.id, name=me.name, grants=tuple(_grant_view(grant, me.name) for grant in me.grants))


async def add_client(context: RequestContext, call: HandlerCall, body: NewClient) -> ClientWithSecretView:
    """Add a client, and show its secret: now or never."""
    return _with_secret_view(
        await context.control.access.add_client(client_id=body.id, name=body.name, who=context.caller_name)
    )


async def renew_client_secret(context: RequestContext, call: HandlerCall) -> ClientWithSecretView:
    """Give a client another secret, and show it: now or never. The old one counts no longer."""
    return _with_secret_view(await context.control.access.renew_secret(call.path_params["id"], who=context.caller_name))


async def remove_client(context: RequestContext, call: HandlerCall) -> RemovedClientView:
    """Remove a client, and what was granted to it."""
    client, grants = await context.control.access.remove_client(call.path_params["id"], who=context.caller_name)
    lost = tuple(_grant_view(grant, client_title(client)) for grant in grants)
    return RemovedClientView(grants=lost, **_client_fields(client))


async def grant_role(context: RequestContext, call: HandlerCall, body: NewGrant) -> GrantView:
    """Grant a role to a client, a VM, or somebody from outside; one that they have already stays as it is."""
    to = _resolve_principal(context, body.to)
    name = _principal_names(context, [to])[to]
    granted = await context.control.access.grant(
        body.role, to=to, over=_resolve_resource(context, body.over), who=context.caller_name, name=name
    )
    return _grant_view(granted, name)


async def revoke_role(context: RequestContext, call: HandlerCall) -> GrantView:
    """Take a role back."""
    found = context.control.access.find_grant(call.path_params["id"])
    name = _principal_names(context, [found.to])[found.to]
    return _grant_view(await context.control.access.revoke(found.id, who=context.caller_name, name=name), name)


async def create_sign_in_link(context: RequestContext, call: HandlerCall) -> SignInLinkView:
    """Make a link that signs the caller in to the portal: once, and within 15 minutes."""
    links, sign_in = context.dependencies.sign_in_links, context.dependencies.sign_in
    if links is None or sign_in is None:
        raise Refused("this service has no portal: give it an address with the setting 'console'")
    whom = sign_in_link_identity(context.principal, sign_in, context.store)
    link = links.create(whom)
    name = context.caller_name if whom.is_owner else principal_for_claims(whom.claims, context.store).name
    return SignInLinkView(url=link.url, signs_in=name, ends_at=link.ends_at)


def _resolve_principal(context: RequestContext, text: str) -> str:
    """The id of whom people call so."""
    given = text.strip()
    if given.casefold().startswith(_OIDC_PREFIX) and len(given) > len(_OIDC_PREFIX):
        return _OIDC_PREFIX + given[len(_OIDC_PREFIX) :]  # an issuer's ids are its own: case counts
    sort, _, rest = given.partition(":")
    client = context.store.client((rest if sort == "client" else given).casefold())
    vm = _find_vm(context, rest if sort == "vm" else given)
    if client is not None and vm is not None:
        raise Refused(f"{text!r} is a client and a VM: say 'client:{client.id}' or 'vm:{vm.name}'")
    if client is not None:
        return client_principal(client.id)
    if vm is not None:
        return vm_principal(vm.vm_id)
    if sort == "client" and rest:
        raise NotFound(f"client {rest!r} does not exist", Remedy.LIST_CLIENTS)
    if sort == "vm" and rest:
        raise NotFound(f"VM {rest!r} does not exist", Remedy.LIST_VMS)
    raise NotFound(
        f"{text!r} is no client and no VM (a user of an external issuer is written 'oidc:ID')", Remedy.LIST_CLIENTS
    )


def _find_vm(context: RequestContext, name: str) -> Vm | None:
    """By its name, or the id that its principal goes by."""
    try:
        return context.directory.find(name)
    except NotFound:
        return next((vm for vm in context.store.vms() if vm.vm_id.casefold() == name.casefold()), None)


def _resolve_resource(context: RequestContext, text: str) -> str:
    if text.strip().startswith("/"):
        return parse_resource_id(text)
    try:
        return vm_resource_id(context.directory.find(text))
    except NotFound:
        return _set_resource(context.find_scope(text), text)


def _set_resource(scope: Scope, text: str) -> str:
    vm = scope.vms[0] if scope.vms else None
    if vm is not None and vm.scale_set:
        return scale_set_resource_id(vm)
    if vm is not None and vm.cloud_service:
        return vm_resource_id(vm).rpartition("/roleInstances/")[0]
    # In Azure VMs do not lie within their availability set: such a role would reach none of them.
    raise Rejected(
        f"a role over availability set {text!r} would reach none of its VMs: grant it over them or the group"
    )


def _grant_views(context: RequestContext, grants: list[Grant]) -> tuple[GrantView, ...]:
    names = _principal_names(context, {grant.to for grant in grants})
    return tuple(_grant_view(grant, names[grant.to]) for grant in grants)


def _principal_names(context: RequestContext, principals: list[str] | set[str]) -> dict[str, str]:
    """As people call these."""
    known = {client.principal_id: client_title(client) for client in context.store.clients()}
    if any(principal.startswith("vm:") for principal in principals):
        known |= {vm_principal(vm.vm_id): f"VM {vm.name}" for vm in context.store.vms(removed=True)}
    return {principal: known.get(principal, principal) for principal in principals}


def _grant_view(grant: Grant, name: str) -> GrantView:
    return GrantView(
        id=grant.id,
        role=grant.role,
        rights=tuple(right for right in Right if right in ROLE_RIGHTS[grant.role]),
        to=grant.to,
        to_name=name,
        over=grant.over,
        by=grant.by,
        at=grant.at,
    )


def _with_secret_view(made: ClientCredentials) -> ClientWithSecretView:
    return ClientWithSecretView(secret=made.secret, **_client_fields(made.client))


def _client_view(client: RegisteredClient) -> AccessClientView:
    return AccessClientView(**_client_fields(client))


def _client_fields(client: RegisteredClient) -> dict[str, Any]:
    return {"id": client.id, "name": client.name, "principal": client.principal_id, "by": client.by, "at": client.at}
