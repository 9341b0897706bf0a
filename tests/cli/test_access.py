"""The access commands: clients, secrets and grants."""

import stat
from pathlib import Path
from typing import Any

import pytest

from forewarn.cli.access import ROLES
from forewarn.core.access import Role

GROUP = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/lab"


def grants(lab: Any) -> list[tuple[str, str, str]]:
    return [(grant["role"], grant["principal"], grant["resource"]) for grant in lab.json("access", "show")["grants"]]


def test_the_cli_offers_exactly_the_roles_of_the_service() -> None:
    assert set(ROLES) == {role.value for role in Role}


def test_a_new_clients_secret_is_shown_once(lab: Any) -> None:
    made = lab.json("access", "client", "add", "ci", "--name", "the builds")
    assert (made["id"], made["name"]) == ("ci", "the builds")
    assert len(made["secret"]) == 43
    shown = lab.good("access", "show")
    assert "the builds" in shown
    assert made["secret"] not in shown + lab.good("history", "--json")
    message = lab.good("access", "client", "renew", "ci")
    assert "Store it now: it cannot be shown again." in message
    assert made["secret"] not in message
    assert lab.good("access", "client", "remove", "ci") == "Client ci is removed.\n"


def test_a_secret_can_go_into_a_file_instead(lab: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    made = lab.json("access", "client", "add", "ci", "--secret-file", str(file))
    assert "secret" not in made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = file.read_text()
    assert len(first) == 44
    assert first.strip() not in lab.good("access", "client", "renew", "ci", "--secret-file", str(file))
    assert file.read_text() != first
    assert "is not overwritten" in lab.refused("access", "client", "add", "cd", "--secret-file", str(file))
    lost = str(tmp_path / "no" / "secret")
    assert "does not exist: create it" in lab.refused("access", "client", "add", "cd", "--secret-file", lost)
    assert [client["id"] for client in lab.json("access", "show")["clients"]] == ["ci"]


@pytest.mark.parametrize(
    ("arguments", "over", "called"),
    [
        (["--everything"], "/", "everything"),
        (["--over-group", "LAB"], "/resourceGroups/lab", "resource group lab of subscription sub"),
        (["--over-vm", "web"], "/virtualMachines/web", "VM web of resource group lab of subscription sub"),
        (["--over", f"{GROUP}/"], "/resourceGroups/lab", "resource group lab"),
        (["--over", "/subscriptions/other"], "/subscriptions/other", "/subscriptions/other"),
    ],
    ids=["everything", "group", "vm", "resource", "subscription"],
)
def test_a_role_is_granted_over_the_given_resource(lab: Any, arguments: list[str], over: str, called: str) -> None:
    lab.good("access", "client", "add", "ci")
    granted = lab.json("access", "grant", "operator", "--to", "ci", *arguments)
    assert (granted["role"], granted["principal"]) == ("Operator", "client:ci")
    assert granted["resource"].endswith(over)
    assert len(grants(lab)) == 1
    message = lab.good("access", "revoke", granted["id"][:8])
    assert message == f"client ci no longer has the role Operator over {called}.\n"
    assert grants(lab) == []


def test_a_role_is_granted_to_a_vm_or_an_external_user(lab: Any) -> None:
    assert lab.json("access", "grant", "Reader", "--to-vm", "web", "--over-vm", "web")["principal"].startswith("vm:")
    granted = lab.json("access", "grant", "Reader", "--to-external", "ann@example.org", "--everything")
    assert granted["principal"] == "oidc:ann@example.org"


def test_removing_a_client_shows_how_many_grants_go_with_it(lab: Any) -> None:
    lab.good("access", "client", "add", "ci")
    lab.good("access", "grant", "Reader", "--to", "ci", "--everything")
    assert lab.good("access", "client", "remove", "ci") == "Client ci is removed, and 1 grant with it.\n"


def test_a_grant_needs_one_principal_and_one_resource(lab: Any) -> None:
    lab.good("access", "client", "add", "ci")
    assert lab.refused("access", "grant", "Reader", "--everything").startswith(
        "no grantee is given, or several: give one of --to CLIENT"
    )
    both = lab.refused("access", "grant", "Reader", "--to", "ci", "--over-vm", "web", "--everything")
    assert both.startswith("no resource is given, or several: give one of --over RESOURCE")
    group = lab.refused("access", "grant", "Reader", "--to", "ci", "--over-group", "x")
    assert group.startswith("no VM is in resource group 'x': the groups are ")
    client = lab.refused("access", "grant", "Reader", "--to", "nobody", "--everything")
    assert client == "client 'nobody' does not exist: `forewarn access show` lists the clients"
    vm = lab.refused("access", "grant", "Reader", "--to-vm", "nobody", "--everything")
    assert vm == "VM 'nobody' does not exist: `forewarn fleet show` lists the VMs"
    assert "'King' is not one of" in lab.refused("access", "grant", "King", "--to", "ci", "--everything")


def test_completion_offers_clients_and_grants(lab: Any) -> None:
    lab.good("access", "client", "add", "ci")
    granted = lab.json("access", "grant", "Reader", "--to", "ci", "--everything")["id"]
    for typed, offered in ((("client", "remove", "c"), "ci"), (("revoke", granted[:3]), granted)):
        arguments = ["forewarn", "access", *typed]
        env = {"COMP_WORDS": " ".join(arguments), "COMP_CWORD": str(len(arguments) - 1)}
        shown = lab("", _FOREWARN_COMPLETE="bash_complete", **env).stdout
        assert shown.split() == [f"plain,{offered}"]
