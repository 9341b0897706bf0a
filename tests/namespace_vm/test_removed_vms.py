"""A removed VM leaves no process behind in the service that started its supervisor."""

from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess, eventually

pytestmark = pytest.mark.namespaces
FLEET = """
[[hosts]]
name = "host-0"

[[vms]]
name = "web-{n}"
count = 2
program = ["sleep", "1000"]
"""


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_supervisor_of_a_removed_vm_is_not_left_as_a_zombie(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET) as service:
        try:
            eventually(lambda: len(service.api("GET", "/vm-supervisors").json["supervisors"]) == 2)
            assert len(children_of(service.pid)) == 2
            assert service.api("DELETE", "/fleet/vms/web-0").status == 200
            eventually(lambda: len(children_of(service.pid)) == 1)
        finally:
            service.api("DELETE", "/fleet/vms/web-1")
            eventually(lambda: not service.api("GET", "/vm-supervisors").json["supervisors"])
