"""The PowerShell of docs/how-to/azure.md, parsed and run without PowerShell: each call does what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import TokenIssuer
from forewarn.core.access import Role
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.service.first_start import sample_fleet
from forewarn.web.authentication import BearerAuthenticator
from tests.support.markdown_pages import ROOT, blocks
from tests.support.powershell import PowerShellSession, ScriptError, run_script

BASE = "https://localhost:8443"
GROUP = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/lab"
TRUST, CALLS, AZ = (block.text for block in blocks(ROOT / "docs/how-to/azure.md") if block.language == "powershell")


class AzureService:
    """The API of a service with the sample fleet, as cmdlets call it with the token of the client `scripts`."""

    def __init__(self, arm_of: Callable[..., Any], signing_key: Any, *, advances: bool = True) -> None:
        sign_in = TokenService(issuer=TokenIssuer(f"{BASE}/adfs", signing_key), tenant_id="t")
        fleet = read_fleet_file(sample_fleet())
        self.arm = arm_of(sign_in=sign_in, hosts=fleet.hosts, vms=fleet.vms)
        self._secret = self.arm.api.post("/access/clients", {"id": "scripts"})["secret"]
        for role in (Role.OPERATOR, Role.SCHEDULED_EVENT_CONTRIBUTOR):
            self.arm.api.post("/access/grants", {"role": role, "principal": "scripts", "resource": GROUP})
        self._client = self.arm.behind(BearerAuthenticator(sign_in=sign_in, store=self.arm.world.store))
        self._advances = advances
        self.token = ""
        self.slept_s = 0

    def session(self, **cmdlets: Any) -> PowerShellSession:
        own = {"Get-Content": lambda given, _: self._secret, "Start-Sleep": self._sleep}
        calling = dict.fromkeys(("Invoke-RestMethod", "Invoke-WebRequest"), self._called)
        return PowerShellSession({**own, **calling, **{name.replace("_", "-"): each for name, each in cmdlets.items()}})

    def call(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        answer = self._client.call(method, path, body, headers)
        assert answer.status < 300, answer.content
        return answer

    def _called(self, given: dict[str, Any], _: Any) -> Any:
        assert given["Uri"].startswith(f"{BASE}/")
        headers = {name.lower(): value for name, value in given.get("Headers", {}).items()}
        body = ""
        if "Body" in given:
            headers["content-type"], body = "application/x-www-form-urlencoded", urlencode(given["Body"])
        answer = self.call(str(given["Method"]).upper(), given["Uri"].removeprefix(BASE), body.encode(), headers)
        if not answer.content:
            return {"Headers": {name: [value] for name, value in answer.headers.items()}}
        self.token = answer.json.get("access_token", self.token)
        return answer.json

    def _sleep(self, given: dict[str, Any], _: Any) -> None:
        self.slept_s += given["Seconds"]
        if self._advances:
            self.arm.world.advance(given["Seconds"])


def test_the_calls_of_the_page_sign_in_restart_a_vm_and_wait(arm_of: Any, signing_key: Any) -> None:
    azure = AzureService(arm_of, signing_key)
    run_script(CALLS, azure.session())
    assert 900 <= azure.slept_s < 1000  # spec §6: a restart has 15 minutes of notice
    assert [event.rules.kind for event in azure.arm.world.store.events()] == ["Reboot"]


def test_the_polling_loop_gives_up_after_half_an_hour(arm_of: Any, signing_key: Any) -> None:
    azure = AzureService(arm_of, signing_key, advances=False)
    with pytest.raises(ScriptError, match="the operation is InProgress"):
        run_script(CALLS, azure.session())
    assert azure.slept_s == 1800


def sent_by_az(cmdlet: str, given: dict[str, Any]) -> tuple[str, str]:
    """Path and JSON body that Azure's own cmdlet posts for these parameters."""
    compute = f"{GROUP}/providers/Microsoft.Compute"
    match cmdlet:
        case "Restart-AzVM":
            return f"{compute}/virtualMachines/{given['Name']}/restart", ""
        case "Set-AzVM":
            assert given["Redeploy"] is True
            return f"{compute}/virtualMachines/{given['Name']}/redeploy", ""
        case "Restart-AzVmss":
            ids = ", ".join(f'"{one}"' for one in given["InstanceId"])
            return f"{compute}/virtualMachineScaleSets/{given['VMScaleSetName']}/restart", f'{{"instanceIds": [{ids}]}}'
    resource = f"{compute}/{given['ResourceType']}/{given['ResourceName']}"
    return f"{resource}/providers/Microsoft.Maintenance/scheduledevents/{given['ScheduledEventId']}/acknowledge", ""


def test_the_cmdlets_of_the_page_restart_redeploy_and_approve(arm_of: Any, signing_key: Any) -> None:
    azure = AzureService(arm_of, signing_key)
    token = re.split(r"^\$compute", CALLS, flags=re.MULTILINE)[0]  # until it has signed in
    signed_in: list[Any] = []

    def post(cmdlet: str) -> Any:
        def run(given: dict[str, Any], _: Any) -> None:
            events = azure.arm.world.store.events()
            path, body = sent_by_az(cmdlet, given | ({"ScheduledEventId": events[0].id} if events else {}))
            headers = {"authorization": f"Bearer {azure.token}", "content-type": "application/json"}
            azure.call("POST", f"{path}?api-version=2024-11-01", body.encode(), headers)

        return run

    names = ("Restart-AzVM", "Set-AzVM", "Restart-AzVmss", "Approve-AzScheduledEvent")
    shell = azure.session(
        ConvertTo_SecureString=lambda given, _: given["String"],
        New_Object=lambda given, _: given["ArgumentList"],
        Add_AzEnvironment=lambda given, _: None,
        Connect_AzAccount=lambda given, _: signed_in.append(given["Credential"]),
        Import_Certificate=lambda given, _: None,
        **{name.replace("-", "_"): post(name) for name in names},
    )
    shell.set("eventId", "")
    for script in (TRUST, token, AZ):
        run_script(script, shell)

    events = azure.arm.world.store.events()
    assert signed_in[0][0] == "scripts"
    assert [event.rules.kind for event in events] == ["Reboot", "Redeploy", "Reboot", "Reboot"]
    assert [event.approved_by in ("", "policy") for event in events] == [False, True, True, True]
