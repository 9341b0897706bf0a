"""The real service over a site of real VMs, and what its one guest does about events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.service_process import ServiceProcess, eventually
from tests.vms.hosts import HOST_NAMES, VM, HostSetup, QemuSite, Site, wait_for

CRASH_POINT = Path(__file__).parent / "crash_point"
ACT_S = 240.0  # for an act with a boot, on a very busy machine
FLEET = f"""
[[hosts]]
name = "{HOST_NAMES[0]}"
[[hosts]]
name = "{HOST_NAMES[1]}"
[[vms]]
name = "{VM}"
host = "{HOST_NAMES[0]}"
priority = "Spot"
"""


class VmService(ServiceProcess):
    """`forewarn serve` for a site. The guest polls and approves by itself."""

    def __init__(self, site: Site, *, data: Path | None = None, crash_point: str = "") -> None:
        config = site.directory / "settings.toml"
        config.write_text(f'hypervisor = "{site.hypervisor}"\nstart_grace_s = 1\n{site.settings_toml()}')
        super().__init__(
            data=data or site.directory / "data",
            fleet=FLEET,
            command="serve",
            arguments=("--config", str(config), "--hypervisor", site.hypervisor),
            environment={"PYTHONPATH": str(CRASH_POINT), "CRASH_POINT": crash_point} if crash_point else {},
        )
        self.site = site

    def wait_until_polled(self) -> None:
        """Wait until the guest has polled, on the host where it runs."""
        eventually(lambda: self.api("GET", f"/vms/{VM}").json["polls"] > 0, within_s=ACT_S)

    def request(self, ask: str, *, notice_s: float = 0) -> str:
        """Request an operation on the VM, with the minimum notice or this one; returns the id of its event."""
        return self._event_of("/requests", {"operation": ask, "vms": [VM], "notice_s": notice_s})

    def roll_out(self, impact: str) -> str:
        """Request maintenance of the first host; returns the id of the event of the VM."""
        self._post("/rollouts", {"impact": impact, "hosts": [HOST_NAMES[0]]})
        return eventually(self._first_event_id)

    def _first_event_id(self) -> str:
        events = self.api("GET", f"/events?all=true&vm={VM}").json["events"]
        return str(events[0]["id"]) if events else ""

    def _event_of(self, path: str, body: dict[str, Any]) -> str:
        return str(self._post(path, body)["events"][0]["id"])

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.api("POST", path, body)
        assert answer.status in (200, 201, 202), answer.body
        return answer.json

    def wait_for_end(self, event_id: str) -> list[str]:
        """Wait until the event is over; returns the texts of the history about it."""

        def is_over() -> bool:
            return bool(self.api("GET", f"/events/{event_id}").json["status"] == "over")

        try:
            eventually(is_over, within_s=ACT_S)
        except AssertionError as error:
            error.add_note(str(self.api("GET", f"/events/{event_id}").json["acts"]))
            raise
        entries = self.api("GET", f"/history?event={event_id}").json["entries"]
        return [entry["text"] for entry in entries]

    def wait_until_killed(self) -> None:
        """Wait until the service has reached its crash point; then it can be started again, without one."""
        eventually(lambda: not self.is_running, within_s=ACT_S)
        self.kill()  # takes its exit code
        self.environment = {}

    def host_of_vm(self) -> str:
        """Return the host of the VM in the fleet; "" if it is on none."""
        return str(self.api("GET", f"/vms/{VM}").json["host"] or "")

    def check_approved_by_agent(self, host: HostSetup, kind: str, event_id: str) -> None:
        """Check that Pacemaker's agent in the guest saw the event, prepared for it, and then approved it."""
        approved = wait_for(f"forceEvents: postData = .*'StartRequests': .*'EventId': '{event_id}'", host.console)
        seen = host.console_text()[: approved.start()]
        assert re.search(rf'can handle local events .*"EventId": "{event_id}".*"EventType": "{kind}"', seen)
        assert "put node standby" in seen
        eventually(lambda: self.api("GET", f"/events/{event_id}").json["approved_by"] == VM)


class QemuService(VmService):
    """`forewarn serve` for a site of plain QEMU, whose guest runs the lab's script."""

    site: QemuSite

    def __init__(self, site: QemuSite, *, crash_point: str = "") -> None:
        super().__init__(site, crash_point=crash_point)

    def __enter__(self) -> QemuService:
        self.start()
        return self

    def wait_until_polled(self) -> None:
        """Wait until the guest has seen a document, on the host where it runs."""
        wait_for(r"^doc \{", self.site.hosts[HOST_NAMES[0]].console)
