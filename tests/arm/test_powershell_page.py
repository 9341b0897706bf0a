"""docs/reference/powershell.md, parsed and run without PowerShell: each call is answered as the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from msgspec.structs import replace as changed

from forewarn.arm.routes import ROUTES
from forewarn.arm.routing import ArmRoute
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import TokenIssuer
from forewarn.core.access import Role
from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.fleet import Priority, Vm
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.core.request import RequestedOperation
from forewarn.service.first_start import sample_fleet
from forewarn.web.authentication import BearerAuthenticator
from tests.support.powershell import PowerShellSession, ScriptError, run_script
from tools.docs.azure_api import MAINTENANCE_SECTION, section_of, success_statuses
from tools.docs.powershell import powershell_markdown

BASE = "https://localhost:8443"
EVENT_ID = "11111111-2222-3333-4444-555555555555"
PAGE = powershell_markdown(ROUTES)  # equal to docs/reference/powershell.md, see test_generated_pages.py
BLOCK = re.compile(r"^```powershell\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALLING = ("Invoke-RestMethod", "Invoke-WebRequest", "Invoke-AzRestMethod")
CLOSED = [route for route in ROUTES if route.right is not None and section_of(route) != MAINTENANCE_SECTION]


def blocks(title: str) -> list[str]:
    """The PowerShell blocks under a second-level heading."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return BLOCK.findall(section)


@dataclass(frozen=True)
class Request:
    """The HTTP request that a cmdlet would send."""

    cmdlet: str
    method: str
    target: str
    body: bytes
    headers: dict[str, str]

    @property
    def route(self) -> ArmRoute:
        path = urlsplit(self.target).path
        (found,) = [one for one in ROUTES if one.method == self.method and one.match_path(path) is not None]
        return found


def sent(cmdlet: str, given: dict[str, Any]) -> Request:
    """The request of a cmdlet: a hashtable body becomes a form; Az adds address, content type and token."""
    method = str(given.get("Method", "Get")).upper()
    if cmdlet == "Invoke-AzRestMethod":
        body = given.get("Payload", "").encode()
        return Request(cmdlet, method, given["Path"], body, {"authorization": "Bearer of Az"})
    headers = {name.lower(): value for name, value in given.get("Headers", {}).items()}
    body = given.get("Body", "")
    if isinstance(body, dict):
        headers["content-type"], body = "application/x-www-form-urlencoded", urlencode(body)
    elif body:
        headers["content-type"] = given["ContentType"]
    assert given["Uri"].startswith(f"{BASE}/")
    return Request(cmdlet, method, given["Uri"].removeprefix(BASE), body.encode(), headers)


def shell_for(ask: Callable[[Request], Any], **cmdlets: Any) -> PowerShellSession:
    """A shell that has run the page up to its calls; its token is not valid."""
    calling = {name: lambda given, _, name=name: ask(sent(name, given)) for name in CALLING}
    nothing = dict.fromkeys(("Import-Certificate", "Add-AzEnvironment", "Connect-AzAccount"), lambda given, _: None)
    named = {name.replace("_", "-"): cmdlet for name, cmdlet in cmdlets.items()}
    shell = PowerShellSession({"Get-Content": lambda given, _: "the secret", **calling, **nothing, **named})
    shell.set("base", BASE)
    shell.set("headers", {"Authorization": "Bearer T"})
    (names,) = blocks("Names")
    run_script(names, shell)
    return shell


def asked_by(text: str) -> list[Request]:
    """The requests of a block, if every response had tags."""
    asked: list[Request] = []

    def ask(request: Request) -> Any:
        asked.append(request)
        return {"tags": {}}

    run_script(text, shell_for(ask))
    return asked


def test_every_route_that_needs_a_right_is_called_in_both_ways() -> None:
    asked = [request for block in blocks("Calls") for request in asked_by(block)]
    called = {(request.cmdlet, request.route.method, request.route.path) for request in asked}
    wanted = {
        (name, route.method, route.path) for route in CLOSED for name in ("Invoke-RestMethod", "Invoke-AzRestMethod")
    }
    assert called == wanted, "docs/reference/powershell.md does not call every route: run `make docs`"


def a_fleet(route: ArmRoute) -> dict[str, Any]:
    """The sample fleet; all VMs are Spot for an eviction."""
    proposal = read_fleet_file(sample_fleet())
    vms: Sequence[Vm] = proposal.vms
    if route.path.endswith("/simulateEviction"):
        vms = [changed(vm, priority=Priority.SPOT, terminate_notice_min=0) for vm in vms]
    return {"hosts": proposal.hosts, "vms": vms}


def an_arm(arm_of: Callable[..., Any], route: ArmRoute) -> Any:
    """A strict service with the sample fleet, in a state where the route succeeds."""
    arm = arm_of(**a_fleet(route))
    arm.api.dependencies = replace(arm.api.dependencies, strict_api_versions=True)
    arm = type(arm)(arm.api)
    world = arm.world
    names = {"VMs": ["web-0"], "Availability sets": ["db-0"], "Operations": ["web-0"]}
    of = names.get(section_of(route), ["workers_0", "workers_1"])
    if route.path.endswith("/start"):
        world.ask(RequestedOperation.POWER_OFF, *of)
        world.advance(60)
    elif route.path.endswith("/performMaintenance"):
        for host in sorted({world.vm(name).host for name in of}):
            world.do(world.control.requests.degrade_host(host, who="operator", notice_s=86400))
        world.settle()
    elif "/scheduledevents" in route.path or "/operations/" in route.path:
        world.ask(RequestedOperation.REDEPLOY, of[0])
    return arm


def ids_in(arm: Any) -> dict[str, str]:
    """The ids that a user would look up; ids count up, so they are the same in every world."""
    events, requests = arm.world.store.events(), arm.world.store.requests()
    return {"eventId": events[0].id if events else "", "operationId": requests[0].id if requests else ""}


@pytest.mark.parametrize("block", blocks("Calls"), ids=lambda block: re.findall(r'"(\S+)\?', block)[-1])
def test_every_call_of_the_page_is_answered_as_the_page_says(arm_of: Callable[..., Any], block: str) -> None:
    """Each call has its own world, since a second restart of a VM would be refused."""
    route = asked_by(block)[-1].route
    answered: list[tuple[str, int]] = []

    def ask(request: Request) -> Any:
        arm = an_arm(arm_of, request.route)
        answer = arm.call(request.method, request.target, request.body, request.headers)
        answered.append((request.cmdlet, answer.status))
        assert answer.status in success_statuses(request.route), answer.content
        assert request.headers["authorization"].startswith("Bearer ")
        return json.loads(answer.content) if answer.content else None

    shell = shell_for(ask)
    for name, value in ids_in(an_arm(arm_of, route)).items():
        shell.set(name, value)
    run_script(block, shell)

    usual = success_statuses(route)[0]
    assert answered[-2:] == [("Invoke-RestMethod", usual), ("Invoke-AzRestMethod", usual)]
    assert f"({usual}):\n\n```powershell\n{block}" in PAGE


def sent_by_az(cmdlet: str, given: dict[str, Any]) -> tuple[str, str, Any]:
    """Method, path and JSON body that Azure's own cmdlet sends for these parameters."""
    group = f"/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/{given['ResourceGroupName']}"
    compute = f"{group}/providers/Microsoft.Compute"
    if cmdlet == "Restart-AzVM":
        return "POST", f"{compute}/virtualMachines/{given['Name']}/restart", None
    if cmdlet == "Set-AzVM":
        assert given["Redeploy"] is True
        return "POST", f"{compute}/virtualMachines/{given['Name']}/redeploy", None
    if cmdlet == "Restart-AzVmss":
        body = {"instanceIds": given["InstanceId"]}
        return "POST", f"{compute}/virtualMachineScaleSets/{given['VMScaleSetName']}/restart", body
    resource = f"{compute}/{given['ResourceType']}/{given['ResourceName']}"
    event = f"providers/Microsoft.Maintenance/scheduledevents/{given['ScheduledEventId']}"
    return "POST", f"{resource}/{event}/acknowledge", None


CMDLETS = ("Restart-AzVM", "Set-AzVM", "Restart-AzVmss", "Approve-AzScheduledEvent")


@pytest.mark.parametrize("block", blocks("Cmdlets"), ids=CMDLETS)
def test_a_cmdlet_sends_the_request_that_the_page_shows_beside_it(arm_of: Callable[..., Any], block: str) -> None:
    typed: list[tuple[str, str, Any]] = []
    requests: list[Request] = []
    cmdlets = {
        name.replace("-", "_"): lambda given, _, name=name: typed.append(sent_by_az(name, given)) for name in CMDLETS
    }
    shell = shell_for(requests.append, **cmdlets)
    shell.set("eventId", EVENT_ID)
    run_script(block, shell)
    (request,) = requests
    assert typed == [(request.method, urlsplit(request.target).path, json.loads(request.body or "null"))]

    arm = an_arm(arm_of, request.route)
    target = request.target.replace(EVENT_ID, ids_in(arm)["eventId"])
    answer = arm.call(request.method, target, request.body, request.headers)
    assert re.search(rf"\({answer.status}: [^)]*\):\n\n```powershell\n{re.escape(block)}", PAGE)
    (listed, *others) = arm.world.events()
    kinds = {"Restart-AzVM": "Reboot", "Restart-AzVmss": "Reboot"}
    assert listed.rules.kind == kinds.get(block.split()[0], "Redeploy")
    assert len(others) == (1 if block.startswith("Restart-AzVmss") else 0)
    assert (listed.approved_by not in ("", "policy")) == block.startswith("Approve-AzScheduledEvent")


def test_the_notice_that_the_page_names_is_that_of_the_contract() -> None:
    """Spec §6.3."""
    for cause, text in (
        (Cause.USER_RESTART, "a Reboot with 15 minutes"),
        (Cause.USER_REDEPLOY, "a Redeploy with 10 minutes"),
    ):
        assert text in PAGE
        assert f"{CAUSE_RULES[cause].minimum_notice_s // 60} minutes" in text


def test_the_sign_in_of_the_page_gives_a_valid_token(arm_of: Any, signing_key: Any) -> None:
    sign_in = TokenService(issuer=TokenIssuer(f"{BASE}/adfs", signing_key), tenant_id="t")
    arm = arm_of(sign_in=sign_in, **a_fleet(CLOSED[0]))
    made = arm.api.post("/access/clients", {"id": "scripts"})
    for role in (Role.OPERATOR, Role.SCHEDULED_EVENT_CONTRIBUTOR):
        over = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/lab"
        arm.api.post("/access/grants", {"role": role, "to": "scripts", "over": over})
    behind = arm.behind(BearerAuthenticator(sign_in=sign_in, store=arm.world.store))
    statuses_seen: list[int] = []

    def ask(request: Request) -> Any:
        answer = behind.call(request.method, request.target, request.body, request.headers)
        statuses_seen.append(answer.status)
        return json.loads(answer.content) if answer.content else None

    shell = shell_for(ask, Get_Content=lambda given, _: made["secret"])
    (lines,) = blocks("Sign in")
    run_script(lines, shell)
    run_script('Invoke-RestMethod -Method Post -Uri "$base$vmId/restart?$version" -Headers $headers', shell)
    assert statuses_seen == [200, 202]


class Waiting:
    """Answers the page's polling loop; lab time passes while it sleeps."""

    def __init__(self, arm: Any, advances: bool = True) -> None:
        self._arm, self._advances = arm, advances
        self.slept_s = 0

    def ask(self, request: Request) -> Any:
        answer = self._arm.call(request.method, request.target, request.body, request.headers)
        assert answer.status < 300, answer.content
        if request.cmdlet == "Invoke-WebRequest":
            return {"Headers": {name: [value] for name, value in answer.headers.items()}}
        return answer.json

    def sleep(self, given: dict[str, Any], _: Any) -> None:
        self.slept_s += given["Seconds"]
        if self._advances:
            self._arm.world.advance(given["Seconds"])

    def run(self) -> None:
        (lines,) = blocks("Wait for an operation")
        run_script(lines, shell_for(self.ask, Start_Sleep=self.sleep))


def test_the_polling_loop_waits_until_the_operation_is_over(arm_of: Any) -> None:
    waiting = Waiting(arm_of(**a_fleet(CLOSED[0])))
    waiting.run()
    assert 900 <= waiting.slept_s < 1000  # spec §6: a restart has 15 minutes of notice


def test_the_polling_loop_gives_up_after_half_an_hour(arm_of: Any) -> None:
    waiting = Waiting(arm_of(**a_fleet(CLOSED[0])), advances=False)
    with pytest.raises(ScriptError, match="the operation is InProgress"):
        waiting.run()
    assert waiting.slept_s == 1800


def test_untested_blocks_of_the_page_can_be_parsed() -> None:
    shell = shell_for(
        lambda request: {"access_token": "T"},
        ConvertTo_SecureString=lambda given, _: given["String"],
        New_Object=lambda given, _: given["ArgumentList"],
    )
    for title in ("Trust", "Sign in", "Az"):
        (lines,) = blocks(title)
        run_script(lines, shell)
    assert shell.get("credential") == ["scripts", "the secret"]


def test_every_powershell_block_is_covered_by_these_tests() -> None:
    read = [
        block
        for title in ("Cmdlets", "Trust", "Sign in", "Az", "Names", "Wait for an operation")
        for block in blocks(title)
    ]
    assert len(read) == len(CMDLETS) + 5
    assert [*read, *blocks("Calls")] == BLOCK.findall(PAGE)
    assert PAGE.count("```powershell") == len(read) + len(CLOSED)
