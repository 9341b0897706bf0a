"""Clients, their secrets and grants: added, shown and removed (the right to administer)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forewarn.auth.client_secrets import secret_matches
from forewarn.core.fleet import Orchestration
from forewarn.store.sqlite import SqliteStore
from tests.support.world import a_host, a_vm

GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"


def grant(api: Any, to: str, over: str, role: str = "Reader") -> Any:
    return api.post("/access/grants", {"role": role, "principal": to, "resource": over})


def texts(api: Any) -> list[str]:
    return [entry.text for entry in api.world.store.history() if entry.kind == "access"]


def test_a_client_is_shown_its_secret_once_and_the_service_keeps_a_hash(api: Any) -> None:
    made = api.post("/access/clients", {"id": "Bot", "name": "A bot"})
    assert (made["id"], made["name"], made["principal"]) == ("bot", "A bot", "client:bot")
    stored = api.world.store.client("bot")
    assert secret_matches(made["secret"], stored.secret_hash)
    (shown,) = api.get("/access")["clients"]
    assert set(shown) == {"id", "name", "principal", "created_by", "created_at"}
    assert texts(api) == ["client A bot (bot) added by local user ann"]
    assert made["secret"] not in api.call("GET", "/history").content.decode()


def test_a_client_without_an_id_gets_a_guid(api: Any) -> None:
    assert len(api.post("/access/clients", {})["id"]) == 36


def test_a_new_secret_ends_the_old_one(api: Any) -> None:
    old = api.post("/access/clients", {"id": "bot"})["secret"]
    new = api.post("/access/clients/BOT/secret")["secret"]
    known = api.world.store.client("bot").secret_hash
    assert secret_matches(new, known)
    assert not secret_matches(old, known)
    assert texts(api)[-1] == "client bot was given a new secret by local user ann"


def test_the_grants_of_a_removed_client_are_removed(api: Any) -> None:
    api.post("/access/clients", {"id": "bot"})
    api.post("/access/clients", {"id": "other"})
    gone, kept = grant(api, "bot", "/"), grant(api, "other", "/")
    removed = api.delete("/access/clients/bot")
    assert [g["id"] for g in removed["grants"]] == [gone["id"]]
    assert [g["id"] for g in api.get("/access")["grants"]] == [kept["id"]]
    assert texts(api)[-1] == "client bot removed with 1 grant by local user ann"


BAD_IDS = ["a b", "-x", "ü", "x" * 101, "a/b"]


@pytest.mark.parametrize("bad", BAD_IDS, ids=range(len(BAD_IDS)))
def test_a_client_id_that_needs_quoting_is_rejected(api: Any, bad: str) -> None:
    assert api.refused("POST", "/access/clients", {"id": bad})[:2] == (400, "Rejected")


def test_a_client_id_is_unique(api: Any) -> None:
    api.post("/access/clients", {"id": "bot"})
    status, code, message = api.refused("POST", "/access/clients", {"id": "BOT"})
    assert (status, code) == (409, "Refused")
    assert message.startswith("client 'bot' exists already")
    assert message.endswith("with POST /forewarn/v1/access/clients/bot/secret")


def test_an_unprintable_client_name_is_rejected(api: Any) -> None:
    assert api.refused("POST", "/access/clients", {"name": "a\nb"})[:2] == (400, "Rejected")


def test_one_of_two_concurrent_additions_of_a_client_is_refused(api_of: Any, tmp_path: Path) -> None:
    api = api_of(store=SqliteStore.open(tmp_path / "forewarn.db"))

    async def both() -> list[int]:
        calls = (api.calling("POST", "/access/clients", {"id": "bot"}) for _ in range(2))
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert sorted(api.world.do(both())) == [200, 409]


def test_a_client_removed_during_a_grant_leaves_no_grant_behind(api_of: Any, tmp_path: Path) -> None:
    """A later client with the same id must not inherit it."""
    api = api_of(store=SqliteStore.open(tmp_path / "forewarn.db"))
    api.post("/access/clients", {"id": "bot"})

    async def both() -> list[int]:
        asked = {"role": "Administrator", "principal": "bot", "resource": "/"}
        calls = (api.calling("POST", "/access/grants", asked), api.calling("DELETE", "/access/clients/bot"))
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert api.world.do(both()) == [200, 200]
    assert api.get("/access") == {"clients": [], "grants": []}


OVER = [
    ("/", "/"),
    (f"{GROUP}/", GROUP),
    ("db", f"{COMPUTE}/virtualMachines/db"),
    ("lab/web-0", f"{COMPUTE}/virtualMachines/web-0"),
    ("pool_1", f"{COMPUTE}/virtualMachineScaleSets/pool/virtualMachines/1"),
    ("pool", f"{COMPUTE}/virtualMachineScaleSets/pool"),
]


@pytest.mark.parametrize(("given", "over"), OVER)
def test_a_role_is_granted_over_a_resource_or_a_name(api: Any, given: str, over: str) -> None:
    api.post("/access/clients", {"id": "bot", "name": "A bot"})
    granted = grant(api, "bot", given, role="Operator")
    assert (granted["resource"], granted["principal"], granted["principal_name"]) == (
        over,
        "client:bot",
        "client A bot (bot)",
    )
    assert granted["rights"] == ["read", "operate"]
    found = "everything" if over == "/" else over
    assert texts(api)[-1] == f"role Operator over {found} granted to client A bot (bot) by local user ann"


def test_a_role_over_an_availability_set_is_rejected(api: Any) -> None:
    api.post("/access/clients", {"id": "bot"})
    status, code, message = api.refused(
        "POST", "/access/grants", {"role": "Reader", "principal": "bot", "resource": "web"}
    )
    assert (status, code) == (400, "Rejected")
    assert "would apply to none of its VMs" in message


def test_a_role_over_a_flexible_scale_set_is_rejected(api_of: Callable[..., Any]) -> None:
    """Spec §14.5: the ids of its VMs are not below that of the set."""
    api = api_of(
        vms=[a_vm("flex_0a1b2c3d", scale_set="flex", orchestration=Orchestration.FLEXIBLE)], hosts=[a_host("h1")]
    )
    api.post("/access/clients", {"id": "bot"})
    refused = api.refused("POST", "/access/grants", {"role": "Reader", "principal": "bot", "resource": "flex"})
    assert refused == (
        400,
        "Rejected",
        "a role over flexible scale set 'flex' would apply to none of its VMs: grant it over the VMs or their group",
    )
    assert grant(api, "bot", "flex_0a1b2c3d")["resource"] == f"{COMPUTE}/virtualMachines/flex_0a1b2c3d"


@pytest.mark.parametrize("below", ["", "/virtualMachines/flex_0a1b2c3d"], ids=["set", "path-below-the-set"])
def test_a_role_over_a_flexible_scale_set_by_its_id_is_no_role_over_its_vms(
    api_of: Callable[..., Any], below: str
) -> None:
    """Spec §14.5; a resource id can be granted over before anybody knows what it will be."""
    api = api_of(
        vms=[a_vm("flex_0a1b2c3d", scale_set="flex", orchestration=Orchestration.FLEXIBLE)], hosts=[a_host("h1")]
    )
    api.post("/requests", {"operation": "restart", "vms": ["flex_0a1b2c3d"]})
    (event,) = api.world.events()
    over_set = api.holding("Administrator", f"{COMPUTE}/virtualMachineScaleSets/flex{below}")
    assert over_set.get("/fleet")["vms"] == []
    assert over_set.get("/events")["events"] == []
    for method, path, body in (
        ("GET", "/vms/flex_0a1b2c3d", None),
        ("POST", "/requests", {"operation": "restart", "vms": ["flex_0a1b2c3d"]}),
        ("POST", "/vms/flex_0a1b2c3d/perform-maintenance", None),
        ("GET", f"/events/{event.id}", None),
        ("POST", f"/events/{event.id}/approve", None),
    ):
        assert over_set.refused(method, path, body)[:2] == (404, "NotFound"), path


def test_a_role_is_granted_to_a_vm_and_to_an_external_user(api: Any) -> None:
    vm = api.world.vm("db")
    of_vm = grant(api, "db", "/")
    assert (of_vm["principal"], of_vm["principal_name"]) == (f"vm:{vm.vm_id}", "VM db")
    assert grant(api, of_vm["principal"], "/")["id"] == of_vm["id"]
    outside = grant(api, "oidc:Ann-42", "/")
    assert (outside["principal"], outside["principal_name"]) == ("oidc:Ann-42", "oidc:Ann-42")


def test_a_name_of_a_client_and_a_vm_must_be_qualified(api: Any) -> None:
    api.post("/access/clients", {"id": "db"})
    status, code, message = api.refused(
        "POST", "/access/grants", {"role": "Reader", "principal": "db", "resource": "/"}
    )
    assert (status, code) == (409, "Refused")
    assert message == "'db' is a client and a VM: say 'client:db' or 'vm:db'"
    assert grant(api, "client:db", "/")["principal"] == "client:db"
    assert grant(api, "vm:db", "/")["principal_name"] == "VM db"


UNKNOWN = [
    ({"principal": "nobody"}, 404),
    ({"resource": "nothing"}, 404),
    ({"resource": "/x"}, 400),
    ({"role": "King"}, 400),
]


@pytest.mark.parametrize(("changed", "status"), UNKNOWN, ids=lambda value: str(value))
def test_a_grant_with_an_unknown_name_is_refused(api: Any, changed: dict[str, str], status: int) -> None:
    api.post("/access/clients", {"id": "bot"})
    asked = {"role": "Reader", "principal": "bot", "resource": "/", **changed}
    assert api.refused("POST", "/access/grants", asked)[0] == status


def test_a_role_is_granted_to_a_client_whose_id_is_given_in_another_case(api: Any) -> None:
    api.post("/access/clients", {"id": "bot"})
    assert grant(api, "client:BOT", "/")["principal"] == "client:bot"


def test_an_existing_grant_is_not_made_twice(api: Any) -> None:
    api.post("/access/clients", {"id": "bot"})
    first = grant(api, "bot", GROUP)
    assert grant(api, "bot", GROUP.upper().replace("SUBSCRIPTIONS", "subscriptions")) == first
    assert len(api.get("/access")["grants"]) == 1


def test_a_role_is_revoked_even_the_last_one_over_everything(api: Any) -> None:
    """The owner of the socket can always grant again."""
    api.post("/access/clients", {"id": "bot"})
    granted = grant(api, "bot", "/", role="Administrator")
    assert api.delete(f"/access/grants/{granted['id'].upper()}") == granted
    assert api.get("/access")["grants"] == []
    assert texts(api)[-1] == "role Administrator over everything revoked from client bot by local user ann"


def test_a_caller_is_shown_their_identity(api: Any) -> None:
    me = api.get("/access/me")
    assert (me["id"], me["name"]) == ("owner", "local user ann")
    assert [(g["role"], g["resource"]) for g in me["grants"]] == [("Administrator", "/")]


def test_a_role_is_granted_over_a_resource_group_by_its_name(api: Any) -> None:
    api.post("/access/clients", {"id": "ops"})
    granted = api.post("/access/grants", {"role": "Reader", "principal": "ops", "resource": "group:LAB"})
    assert granted["resource"] == "/subscriptions/sub/resourceGroups/lab"
    status, _, message = api.refused(
        "POST", "/access/grants", {"role": "Reader", "principal": "ops", "resource": "group:none"}
    )
    assert (status, message) == (
        404,
        "no VM is in resource group 'none': the groups are lab; or give a resource id",
    )
