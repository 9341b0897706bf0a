"""Rights, roles and grants, and the ids of resources."""

from __future__ import annotations

import pytest

from forewarn.core.access import (
    ROLE_RIGHTS,
    Grant,
    Principal,
    Right,
    Role,
    client_principal,
    owner_principal,
    role_granting,
    vm_principal,
)
from forewarn.core.resource_ids import (
    ROOT_RESOURCE,
    availability_set_resource_id,
    is_within_resource,
    parse_resource_id,
    scale_set_instance_id,
    scale_set_resource_id,
    vm_resource_id,
)
from forewarn.errors import Rejected
from tests.support.world import a_vm

GROUP = "/subscriptions/sub/resourceGroups/lab"
VMS = f"{GROUP}/providers/Microsoft.Compute/virtualMachines"
SETS = f"{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets"


def principal_with(role: Role, over: str) -> Principal:
    return Principal(
        id="client:x", name="client x", grants=(Grant(id="g", role=role, principal="client:x", resource=over),)
    )


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        (Role.READER, "read"),
        (Role.OPERATOR, "read operate"),
        (Role.SCHEDULED_EVENT_CONTRIBUTOR, "read approve"),
        (Role.PLATFORM, "read platform"),
        (Role.ADMINISTRATOR, "read operate approve platform administer"),
    ],
)
def test_a_role_has_exactly_these_rights(role: Role, rights: str) -> None:
    principal = principal_with(role, ROOT_RESOURCE)
    assert {right for right in Right if principal.may(right, VMS)} == set(rights.split())
    assert set(ROLE_RIGHTS) == set(Role)


def test_the_role_with_the_fewest_other_rights_is_proposed() -> None:
    assert [role_granting(right) for right in Right] == list(Role)


@pytest.mark.parametrize(
    ("over", "resource", "is_covered"),
    [
        (ROOT_RESOURCE, ROOT_RESOURCE, True),
        (ROOT_RESOURCE, f"{VMS}/web", True),
        ("/subscriptions/sub", ROOT_RESOURCE, False),
        ("/subscriptions/sub", GROUP, True),
        ("/subscriptions/su", GROUP, False),
        ("/SUBSCRIPTIONS/Sub/resourcegroups/LAB", f"{VMS}/web", True),
        (GROUP, f"{GROUP}-2/providers/Microsoft.Compute/virtualMachines/web", False),
        (f"{VMS}/web", f"{VMS}/web-1", False),
        (f"{VMS}/web", GROUP, False),
        (f"{SETS}/pool", f"{SETS}/pool/virtualMachines/0", True),
        (f"{SETS}/pool/virtualMachines/0", f"{SETS}/pool", False),
    ],
)
def test_a_grant_over_a_resource_covers_everything_below_it_and_nothing_else(
    over: str, resource: str, is_covered: bool
) -> None:
    assert is_within_resource(over, resource) is is_covered
    assert principal_with(Role.READER, over).may(Right.READ, resource) is is_covered


def test_a_principal_without_grants_may_do_nothing() -> None:
    without_grants = Principal(id="vm:1", name="VM web")
    assert not any(without_grants.may(right, f"{VMS}/web") for right in Right)
    assert not without_grants.may_anywhere(Right.READ)
    assert all(owner_principal("ann").may(right, ROOT_RESOURCE) for right in Right)


def test_principal_ids_are_compared_without_case() -> None:
    assert client_principal("CI") == client_principal("ci") != vm_principal("ci")


def test_vms_have_the_resource_ids_of_azure() -> None:
    assert vm_resource_id(a_vm("web-0", availability_set="web")) == f"{VMS}/web-0"
    assert availability_set_resource_id(a_vm("web-0", availability_set="Web")).endswith("/availabilitySets/Web")
    pool = a_vm("Pool_3", scale_set="pool", placement_group="pg")
    assert vm_resource_id(pool) == f"{SETS}/pool/virtualMachines/3"
    assert scale_set_resource_id(pool) == f"{SETS}/pool"
    role = a_vm("Front_IN_0", cloud_service="shop")
    assert vm_resource_id(role).endswith("/cloudServices/shop/roleInstances/Front_IN_0")


@pytest.mark.parametrize(("name", "instance"), [("pool_0", "0"), ("pool_a_b", "a_b"), ("pool_", "pool_"), ("x", "x")])
def test_an_instance_id_is_the_name_without_the_name_of_the_scale_set(name: str, instance: str) -> None:
    assert scale_set_instance_id(a_vm(name, scale_set="pool")) == instance


@pytest.mark.parametrize("text", ["/", "/subscriptions/s", f"{GROUP}/", f"{VMS}/web", f"{SETS}/pool/virtualMachines/0"])
def test_a_typed_resource_id_is_normalized(text: str) -> None:
    assert parse_resource_id(f" {text} ") == (text.rstrip("/") or ROOT_RESOURCE)


@pytest.mark.parametrize("text", ["", "web-0", "/subscriptions", "/subscriptions//x", f"{VMS}/", f"{VMS}/web/disks/0"])
def test_a_text_that_is_not_a_resource_id_is_rejected(text: str) -> None:
    with pytest.raises(Rejected, match="not a resource that roles can be granted over"):
        parse_resource_id(text)
