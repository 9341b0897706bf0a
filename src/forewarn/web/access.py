"""Access handlers: clients and their secrets, role grants, the caller's identity, sign-in links."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from forewarn.auth.claims import Claims
from forewarn.auth.sessions import SignInIdentity
from forewarn.auth.token_service import TokenService, claims_of_client
from forewarn.base.times import Timestamp, timestamp
from forewarn.control.access import ClientCredentials, client_title
from forewarn.core.access import (
    ADMIN_CLIENT_ID,
    ROLE_RIGHTS,
    Grant,
    Principal,
    RegisteredClient,
    Right,
    Role,
    client_principal,
    owner_principal,
    vm_principal,
)
from forewarn.core.fleet import Vm
from forewarn.core.limits import NonEmptyText
from forewarn.core.resource_ids import ROOT_RESOURCE, parse_resource_id, scale_set_resource_id, vm_resource_id
from forewarn.core.scope import Scope
from forewarn.errors import NotFound, Refused, Rejected, Remedy, Unauthenticated
from forewarn.store.interface import Store
from forewarn.web.authentication import principal_for_claims
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import GROUP_PREFIX, HandlerCall, StrictBody
from forewarn.web.views import BaseView

_OWNER_ID = owner_principal("").id
_CLIENT_ID_PREFIX = client_principal("")


def sign_in_link_identity(caller: Principal, sign_in: TokenService, store: Store) -> SignInIdentity:
    """Return whom a sign-in link that `caller` creates signs in; creates no link.

    A client signs in itself. For the owner of the service it is the client `admin`, or the owner (`is_owner`) if
    callers sign in at an external issuer, or if `admin` is not an administrator.
    """
    if caller.id == _OWNER_ID:
        return _administrator_identity(sign_in, store) or _owner_identity(caller)
    if not caller.id.startswith(_CLIENT_ID_PREFIX):
        raise Refused(f"sign-in links are for clients and for the owner of the service, not for {caller.name}: sign in")
    return _client_identity(caller.id.removeprefix(_CLIENT_ID_PREFIX), store)


def _administrator_identity(sign_in: TokenService, store: Store) -> SignInIdentity | None:
    if sign_in.external is not None or store.client(ADMIN_CLIENT_ID) is None:
        return None
    identity = _client_identity(ADMIN_CLIENT_ID, store)
    is_administrator = principal_for_claims(identity.claims, store).may(Right.ADMINISTER, ROOT_RESOURCE)
    return identity if is_administrator else None


def _client_identity(client_id: str, store: Store) -> SignInIdentity:
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    return SignInIdentity(claims=claims_of_client(client))


def _owner_identity(owner: Principal) -> SignInIdentity:
    return SignInIdentity(claims=Claims(ids=(_OWNER_ID,), name=owner.name, tenant="", expires_at=0), is_owner=True)


_OIDC_PREFIX = "oidc:"


class NewClient(StrictBody, frozen=True, kw_only=True):
    """A client to add, without any role; the service generates its secret.

    An empty `id` stands for a new GUID. An id has ASCII letters, digits, `.`, `_` and `-`, the first a letter or digit;
    it is stored in lower case.
    """

    id: Annotated[str, Meta(max_length=100)] = ""  # "": a new GUID
    name: Annotated[str, Meta(max_length=200)] = ""  # for people; printable characters; "": none


class NewGrant(StrictBody, frozen=True, kw_only=True):
    """A role to grant to a client, a VM or a user, over a resource.

    `principal` is a client's id, a VM (its name, `group/name`, key or vm id), or `oidc:ID` for a user of an external
    issuer. `resource` is a resource id (`/` is everything), the name of a VM, a uniform scale set or a cloud service,
    or `group:NAME` for a resource group. The letter case of names and ids is ignored, except for the ID after `oidc:`.
    """

    role: Role
    principal: (
        NonEmptyText  # may begin with `client:` or `vm:`, which is needed if a client and a VM have the same name
    )
    resource: NonEmptyText  # the role applies to this resource and everything within it


class AccessClientView(BaseView, frozen=True, kw_only=True):
    """A client of the service, without its secret; `created_by` and `created_at` say who added it and when."""

    id: str  # in lower case
    name: str  # for people; "": none
    principal: str  # its principal id in grants: `client:ID`
    created_by: str  # the name of who added it
    created_at: Timestamp


class ClientWithSecretView(AccessClientView, frozen=True, kw_only=True):
    """A client with its new secret in plain text, which no later response shows.

    It also has the fields of AccessClientView.
    """

    secret: str  # in plain text
    secret_file: str  # the file with the administrator's secret, which this call does not change; "": another client


class GrantView(BaseView, frozen=True, kw_only=True):
    """A granted role: its rights, the principal that has it, and the resource that it applies to."""

    id: str  # a GUID, lower case
    role: Role
    rights: tuple[Right, ...]  # that the role includes
    principal: str  # the id of the principal that has the role, such as `client:ci`
    principal_name: str  # the principal's name, for people; its id if it is unknown
    resource: str  # a resource id; "/": everything
    granted_by: str  # the name, for people, of the principal that granted it; "forewarn" or "": the service itself
    granted_at: Timestamp


class RemovedClientView(AccessClientView, frozen=True, kw_only=True):
    """A client that was removed, with its grants, which were also removed.

    It has the fields of AccessClientView, as they were.
    """

    grants: tuple[GrantView, ...]


class AccessView(BaseView, frozen=True, kw_only=True):
    """All clients, sorted by id, and all granted roles, in the order they were added."""

    clients: tuple[AccessClientView, ...]
    grants: tuple[GrantView, ...]


class CallerView(BaseView, frozen=True, kw_only=True):
    """The caller: the principal's id, its name as history entries show it, and the roles granted to it."""

    id: str  # `owner`, `client:ID`, `vm:VM_ID` or `oidc:ID`
    name: str  # as in history entries
    grants: tuple[GrantView, ...]


class SignInLinkView(BaseView, frozen=True, kw_only=True):
    """A link that signs `user` in to the portal once, until `ends_at`."""

    url: str  # a secret: anybody who opens it first is signed in
    user: str  # the name of the user that it signs in
    ends_at: Timestamp  # in real time


async def show_access(context: RequestContext, call: HandlerCall) -> AccessView:
    """List the clients and the granted roles."""
    return AccessView(
        clients=tuple(map(_client_view, context.store.clients())), grants=_grant_views(context, context.store.grants())
    )


async def show_caller(context: RequestContext, call: HandlerCall) -> CallerView:
    """Show the caller's identity and roles."""
    caller = context.principal
    grants = tuple(_grant_view(grant, caller.name) for grant in caller.grants)
    return CallerView(id=caller.id, name=caller.name, grants=grants)


async def add_client(context: RequestContext, call: HandlerCall, body: NewClient) -> ClientWithSecretView:
    """Add a client; its secret is in this response only."""
    return _with_secret_view(
        context, await context.control.access.add_client(client_id=body.id, name=body.name, who=context.caller_name)
    )


async def renew_client_secret(context: RequestContext, call: HandlerCall) -> ClientWithSecretView:
    """Replace a client's secret; the new one is in this response only, and the old one is invalid at once."""
    return _with_secret_view(
        context, await context.control.access.renew_secret(call.path_params["id"], who=context.caller_name)
    )


async def remove_client(context: RequestContext, call: HandlerCall) -> RemovedClientView:
    """Remove a client and its grants."""
    client, grants = await context.control.access.remove_client(call.path_params["id"], who=context.caller_name)
    removed = tuple(_grant_view(grant, client_title(client)) for grant in grants)
    return RemovedClientView(grants=removed, **_client_fields(client))


async def grant_role(context: RequestContext, call: HandlerCall, body: NewGrant) -> GrantView:
    """Grant a role to a client, a VM or a user of an external issuer; an existing grant stays as it is."""
    to = _resolve_principal(context, body.principal)
    name = _principal_names(context, [to])[to]
    granted = await context.control.access.grant(
        body.role, to=to, over=_resolve_resource(context, body.resource), who=context.caller_name, name=name
    )
    return _grant_view(granted, name)


async def revoke_role(context: RequestContext, call: HandlerCall) -> GrantView:
    """Revoke a granted role."""
    found = context.control.access.find_grant(call.path_params["id"])
    name = _principal_names(context, [found.principal])[found.principal]
    return _grant_view(await context.control.access.revoke(found.id, who=context.caller_name, name=name), name)


async def create_sign_in_link(context: RequestContext, call: HandlerCall) -> SignInLinkView:
    """Create a link that signs the caller in to the portal once, within 15 minutes."""
    links, sign_in = context.dependencies.sign_in_links, context.dependencies.sign_in
    if links is None or sign_in is None:
        raise Refused("this service has no portal: give it an address with the setting 'api'")
    identity = sign_in_link_identity(context.principal, sign_in, context.store)
    link = links.create(identity)
    name = context.caller_name if identity.is_owner else principal_for_claims(identity.claims, context.store).name
    return SignInLinkView(url=link.url, user=name, ends_at=timestamp(link.ends_at))


def _resolve_principal(context: RequestContext, text: str) -> str:
    """The principal id of a client's id, a VM's name, or `oidc:ID`."""
    name = text.strip()
    if name.casefold().startswith(_OIDC_PREFIX) and len(name) > len(_OIDC_PREFIX):
        return _OIDC_PREFIX + name[len(_OIDC_PREFIX) :]  # ids of an issuer are case-sensitive
    kind, _, rest = name.partition(":")
    client = context.store.client((rest if kind == "client" else name).casefold())
    vm = _find_vm(context, rest if kind == "vm" else name)
    if client is not None and vm is not None:
        raise Refused(f"{text!r} is a client and a VM: say 'client:{client.id}' or 'vm:{vm.name}'")
    if client is not None:
        return client_principal(client.id)
    if vm is not None:
        return vm_principal(vm.vm_id)
    if kind == "client" and rest:
        raise NotFound(f"client {rest!r} does not exist", Remedy.LIST_CLIENTS)
    if kind == "vm" and rest:
        raise NotFound(f"VM {rest!r} does not exist", Remedy.LIST_VMS)
    raise NotFound(
        f"{text!r} is neither a client nor a VM (a user of an external issuer is written 'oidc:ID')",
        Remedy.LIST_CLIENTS,
    )


def _find_vm(context: RequestContext, name: str) -> Vm | None:
    """The VM with this name or vm id."""
    try:
        return context.directory.find(name)
    except NotFound:
        return next((vm for vm in context.store.vms() if vm.vm_id.casefold() == name.casefold()), None)


def _resolve_resource(context: RequestContext, text: str) -> str:
    if text.strip().startswith("/"):
        return parse_resource_id(text)
    if text.startswith(GROUP_PREFIX):
        return context.directory.unfiltered.find_group(text.removeprefix(GROUP_PREFIX))
    try:
        return vm_resource_id(context.directory.find(text))
    except NotFound:
        return _set_resource(context.find_scope(text), text)


def _set_resource(scope: Scope, text: str) -> str:
    vm = scope.vms[0] if scope.vms else None
    if vm is not None and vm.is_uniform_instance:
        return scale_set_resource_id(vm)
    if vm is not None and vm.cloud_service:
        return vm_resource_id(vm).rpartition("/roleInstances/")[0]
    # Azure's ids of VMs are not below the id of their availability set or flexible scale set.
    kind = "flexible scale set" if vm is not None and vm.is_flexible else "availability set"
    raise Rejected(f"a role over {kind} {text!r} would apply to none of its VMs: grant it over the VMs or their group")


def _grant_views(context: RequestContext, grants: list[Grant]) -> tuple[GrantView, ...]:
    names = _principal_names(context, {grant.principal for grant in grants})
    return tuple(_grant_view(grant, names[grant.principal]) for grant in grants)


def _principal_names(context: RequestContext, principals: list[str] | set[str]) -> dict[str, str]:
    """Names of these principals for people, by their ids."""
    known = {client.principal_id: client_title(client) for client in context.store.clients()}
    if any(principal.startswith("vm:") for principal in principals):
        known |= {vm_principal(vm.vm_id): f"VM {vm.name}" for vm in context.store.vms(removed=True)}
    return {principal: known.get(principal, principal) for principal in principals}


def _grant_view(grant: Grant, name: str) -> GrantView:
    return GrantView(
        id=grant.id,
        role=grant.role,
        rights=tuple(right for right in Right if right in ROLE_RIGHTS[grant.role]),
        principal=grant.principal,
        principal_name=name,
        resource=grant.resource,
        granted_by=grant.granted_by,
        granted_at=timestamp(grant.granted_at),
    )


def _with_secret_view(context: RequestContext, credentials: ClientCredentials) -> ClientWithSecretView:
    api = context.dependencies.service_info().get("api") or {}
    is_administrator = credentials.client.id == api.get("client_id")
    kept_in = str(api.get("admin_secret") or "") if is_administrator else ""
    return ClientWithSecretView(secret=credentials.secret, secret_file=kept_in, **_client_fields(credentials.client))


def _client_view(client: RegisteredClient) -> AccessClientView:
    return AccessClientView(**_client_fields(client))


def _client_fields(client: RegisteredClient) -> dict[str, Any]:
    return {
        "id": client.id,
        "name": client.name,
        "principal": client.principal_id,
        "created_by": client.created_by,
        "created_at": timestamp(client.created_at),
    }
