"""Authorization model: rights, the roles that hold them, grants of roles over resources, principals.

A principal may do something if one of its grants has a role with that right over the resource or one above it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from forewarn.core.resource_ids import ROOT_RESOURCE, is_within_resource

ADMIN_CLIENT_ID = "admin"  # the client that a service has from its first start


class Right(StrEnum):
    """What somebody must be allowed to do."""

    READ = "read"
    OPERATE = "operate"  # ask for maintenance of one's VMs, and change their settings
    APPROVE = "approve"  # say that an event may start
    PLATFORM = "platform"  # hosts, the fleet, rollouts, other people's events, faults, the clock, the service
    ADMINISTER = "administer"  # clients, grants, webhooks, and copies of the store, which hold their secrets


class Role(StrEnum):
    READER = "Reader"
    OPERATOR = "Operator"
    SCHEDULED_EVENT_CONTRIBUTOR = "ScheduledEventContributor"
    PLATFORM = "Platform"
    ADMINISTRATOR = "Administrator"


ROLE_RIGHTS: dict[Role, frozenset[Right]] = {
    Role.READER: frozenset({Right.READ}),
    Role.OPERATOR: frozenset({Right.READ, Right.OPERATE}),
    Role.SCHEDULED_EVENT_CONTRIBUTOR: frozenset({Right.READ, Right.APPROVE}),
    Role.PLATFORM: frozenset({Right.READ, Right.PLATFORM}),
    Role.ADMINISTRATOR: frozenset(Right),
}


def role_granting(right: Right) -> Role:
    """The role that brings this right, and little else."""
    return next(role for role, rights in ROLE_RIGHTS.items() if right in rights)


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A role, given to one principal over a resource and all that lies within it."""

    id: str
    role: Role
    to: str  # the id of a principal
    over: str  # a resource id, or EVERYTHING
    by: str = ""
    at: float = 0


class RegisteredClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program that signs in with a secret of its own. The secret itself is nowhere."""

    id: str
    secret_hash: bytes
    name: str = ""
    by: str = ""
    at: float = 0

    @property
    def principal_id(self) -> str:
        return client_principal(self.id)


def client_principal(client_id: str) -> str:
    return f"client:{client_id.casefold()}"


def vm_principal(vm_id: str) -> str:
    """A VM's managed identity. It goes with the VM: one that comes back under the same name is another."""
    return f"vm:{vm_id.casefold()}"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever is asking, with all that was granted."""

    id: str
    name: str  # how the history calls them
    grants: tuple[Grant, ...] = ()

    def may(self, right: Right, over: str) -> bool:
        return any(right in ROLE_RIGHTS[grant.role] and is_within_resource(grant.over, over) for grant in self.grants)

    def may_all(self, right: Right, resources: Iterable[str]) -> bool:
        return all(self.may(right, resource) for resource in resources)

    def may_anywhere(self, right: Right) -> bool:
        return any(right in ROLE_RIGHTS[grant.role] for grant in self.grants)


def owner_principal(name: str) -> Principal:
    """Whoever the service belongs to: allowed everything."""
    everything = Grant(id="owner", role=Role.ADMINISTRATOR, to="owner", over=ROOT_RESOURCE)
    return Principal(id="owner", name=name, grants=(everything,))
