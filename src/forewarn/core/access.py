"""Authorization model: rights, the roles that hold them, grants of roles over resources, principals.

A principal may do something if one of its grants has a role with that right over the resource or one above it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.resource_ids import ROOT_RESOURCE, is_within_resource

ADMIN_CLIENT_ID = "admin"  # the client that a service has from its first start


class Right(StrEnum):
    """A permission that an operation requires over a resource. No right includes another: roles combine them."""

    READ = "read"  # see VMs and their events
    OPERATE = "operate"  # request maintenance of VMs, change their settings, and their maintenance configurations
    APPROVE = "approve"  # approve events
    PLATFORM = "platform"  # hosts, the fleet, rollouts, other people's events, faults, the clock, the service
    ADMINISTER = "administer"  # clients, grants, webhooks, backups, and programs that run on the service's machine


class Role(StrEnum):
    """A named set of rights; ROLE_RIGHTS lists them. The values are the names that people type."""

    READER = "Reader"  # may read
    OPERATOR = "Operator"  # may read and operate
    SCHEDULED_EVENT_CONTRIBUTOR = "ScheduledEventContributor"  # may read and approve
    PLATFORM = "Platform"  # may read, and do what the right PLATFORM covers
    ADMINISTRATOR = "Administrator"  # has every right


# The roles with the fewest rights come first: `role_granting` depends on it.
ROLE_RIGHTS: dict[Role, frozenset[Right]] = {
    Role.READER: frozenset({Right.READ}),
    Role.OPERATOR: frozenset({Right.READ, Right.OPERATE}),
    Role.SCHEDULED_EVENT_CONTRIBUTOR: frozenset({Right.READ, Right.APPROVE}),
    Role.PLATFORM: frozenset({Right.READ, Right.PLATFORM}),
    Role.ADMINISTRATOR: frozenset(Right),
}


def role_granting(right: Right) -> Role:
    """Return the role with this right that has the fewest other rights: the first one in ROLE_RIGHTS."""
    return next(role for role, rights in ROLE_RIGHTS.items() if right in rights)


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A role that one principal (`to`, its id) has over a resource and everything below it."""

    id: str  # a GUID, lower case; "owner" for that of the service's owner, which is not stored
    role: Role
    principal: (
        str  # the id of a principal: `client:…` and `vm:…` in lower case, or `oidc:…`, the id that its issuer gives
    )
    resource: str  # a resource id, whose letter case does not matter, or ROOT_RESOURCE (`/`: everything)
    granted_by: str = ""  # the name of who granted it
    granted_at: LabTime = 0


class RegisteredClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client program that signs in with its id and a secret. Only a salted hash of the secret is stored."""

    id: str  # in lower case
    secret_hash: bytes  # salted, of the secret; `auth.client_secrets` makes and checks it
    name: str = ""  # for people; "": its id
    created_by: str = ""  # the name of who added it
    created_at: LabTime = 0

    @property
    def principal_id(self) -> str:
        """The id that grants name this client by: `client:<id>` in lower case."""
        return client_principal(self.id)


def client_principal(client_id: str) -> str:
    """Return the principal id of the client with this id, which may have any letter case."""
    return f"client:{client_id.casefold()}"


def vm_principal(vm_id: str) -> str:
    """Return the principal id of a VM's managed identity: `vm:<vm_id>` in lower case."""
    # A VM that was deleted and added again under its old name has another vm_id, so another principal.
    return f"vm:{vm_id.casefold()}"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated caller of an operation, with all grants that it had when it was authenticated."""

    id: str  # as `Grant.to` names it: `client:…`, `vm:…`, `oidc:…` or `owner`
    name: str  # as history entries show it
    grants: tuple[Grant, ...] = ()  # for a caller of an external issuer, also grants to its other ids, such as groups

    def may(self, right: Right, over: str) -> bool:
        """Return whether a grant to this principal includes the right over the resource with the id `over`."""
        return any(
            right in ROLE_RIGHTS[grant.role] and is_within_resource(grant.resource, over) for grant in self.grants
        )

    def may_all(self, right: Right, resources: Iterable[str]) -> bool:
        """Return whether the principal has the right over every one of these resource ids; True for none."""
        return all(self.may(right, resource) for resource in resources)

    def may_anywhere(self, right: Right) -> bool:
        """Return whether any grant to the principal includes the right, over any resource."""
        return any(right in ROLE_RIGHTS[grant.role] for grant in self.grants)


def owner_principal(name: str) -> Principal:
    """Return the principal of the service's owner: Administrator over everything, `name` in the history."""
    everything = Grant(id="owner", role=Role.ADMINISTRATOR, principal="owner", resource=ROOT_RESOURCE)
    return Principal(id="owner", name=name, grants=(everything,))
