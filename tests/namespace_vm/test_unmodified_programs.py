"""Programs with 169.254.169.254 built in run inside a VM as Debian and PyPI ship them (spec §2).

They are not patched, configured or told where the service is. `make test-namespaces` fetches them with
install_programs.sh; the test of a missing one is skipped with its name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess, eventually

pytestmark = pytest.mark.namespaces

FLEET = """
[defaults]
location = "westeurope"
resource_group = "shop"
tags = { team = "shop" }

[[hosts]]
name = "host-{n}"
count = 3

[[vms]]
name = "web-{n}"
count = 2
size = "Standard_E4s_v5"

[[scale_sets]]
name = "workers"
count = 2
computer_name_prefix = "worker"
"""
PROGRAMS = Path(__file__).parents[2] / ".venv-real"
UNPACKED = PROGRAMS / "debian" / "usr" / "lib"
DEBIAN = Path("/usr/bin/python3")  # the one that Debian's packages are made for
PYPI = PROGRAMS / "bin" / "python"
CLOUD_INIT = UNPACKED / "python3" / "dist-packages" / "cloudinit"
WAAGENT = UNPACKED / "python3" / "dist-packages" / "azurelinuxagent"
AGENT = UNPACKED / "ocf" / "resource.d" / "heartbeat" / "azure-events-az"
NAME_URL = "http://169.254.169.254/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS_URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"

Inside = Callable[..., str]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that only simulates approved acts, so that no program is rebooted before it has printed its result."""
    simulated = {"FOREWARN_HYPERVISOR": "simulated"}
    with ServiceProcess(data=tmp_path_factory.mktemp("lab"), fleet=FLEET, environment=simulated) as service:
        yield service


@pytest.fixture
def inside(lab: ServiceProcess) -> Inside:
    """Run a program in a VM to its end; returns its output."""

    def run(vm: str, *arguments: str | Path, options: tuple[str, ...] = (), **environment: str) -> str:
        line = [
            sys.executable,
            "-m",
            "forewarn",
            "--data",
            str(lab.data),
            "vm",
            "run",
            vm,
            *(options or ["--isolated"]),
        ]
        clean = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
        done = subprocess.run(
            [*line, "--", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=clean | environment,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def needs(*programs: str | Path) -> pytest.MarkDecorator:
    """Skip the test if one of these programs is missing."""
    missing = [str(program) for program in programs if shutil.which(program) is None and not Path(program).is_dir()]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} missing: see `make test-namespaces`")


def by_debian(script: str) -> tuple[str | Path, ...]:
    """Debian's Python, which also finds packages that are only unpacked."""
    return "env", f"PYTHONPATH={CLOUD_INIT.parent}", DEBIAN, "-c", script


def restart(lab: ServiceProcess, vm: str) -> str:
    answer = lab.api("POST", "/requests", {"operation": "restart", "vms": [vm]})
    assert answer.status == 202, answer.body
    return str(answer.json["events"][0]["id"])


def settle(lab: ServiceProcess, vm: str) -> None:
    """Carry out what is pending for the VM."""
    lab.advance(3600)
    eventually(lambda: lab.poll(vm)["Events"] == [])


READ_BY_CLOUD_INIT = """
import json
from cloudinit.sources import DataSourceAzure as azure

whole = azure.get_metadata_from_imds(0, azure.MetadataType.ALL, azure.IMDS_VER_WANT)
least = azure.get_metadata_from_imds(0, azure.MetadataType.ALL, azure.IMDS_VER_MIN)
network = azure.get_metadata_from_imds(0, azure.MetadataType.NETWORK)
print(json.dumps([whole["compute"], least["compute"], network, azure._hostname_from_imds(whole)]))
"""


@needs(DEBIAN, CLOUD_INIT)
def test_cloud_init_reads_the_instance_metadata(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.6; the hostname it would give a scale-set VM is spec §4.2's."""
    whole, least, network, hostname = json.loads(inside("workers_1", *by_debian(READ_BY_CLOUD_INIT)))

    assert whole == least
    assert (whole["name"], whole["vmScaleSetName"], whole["location"]) == ("workers_1", "workers", "westeurope")
    assert hostname == "worker000001"
    assert len(network["interface"]) == 1
    assert len(network["interface"][0]["macAddress"]) == 12


READ_BY_WAAGENT = """
import json
from azurelinuxagent.common.protocol.imds import get_imds_client

client = get_imds_client("168.63.129.16")
compute = client.get_compute()
print(json.dumps([vars(compute), compute.image_origin, client.validate()]))
"""


@needs(DEBIAN, WAAGENT)
def test_walinuxagent_reads_and_validates_the_instance_metadata(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.6."""
    compute, _, verdict = json.loads(inside("web-1", *by_debian(READ_BY_WAAGENT)))

    assert verdict == [True, ""]
    assert (compute["name"], compute["vmSize"], compute["tags"]) == ("web-1", "Standard_E4s_v5", "team:shop")
    assert (compute["resourceGroupName"], compute["osType"]) == ("shop", "Linux")


DISCOVER = """
import json
from azurelinuxagent.common.dhcp import get_dhcp_handler
from azurelinuxagent.common.utils.restutil import http_get

handler = get_dhcp_handler()
handler.skip_cache = True  # a lease file of the machine that runs the tests is none of this VM
handler.send_dhcp_req()
url = "http://%s/metadata/instance/compute?api-version=2018-02-01" % handler.endpoint
print(handler.endpoint, json.loads(http_get(url, headers={"Metadata": True}, use_proxy=False).read())["name"])
"""


@needs(DEBIAN, WAAGENT)
def test_walinuxagent_discovers_its_endpoint_by_dhcp(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.5: option 245, and the service behind it."""
    output = inside("web-0", *by_debian(DISCOVER), options=("--no-vnet",))

    assert output.splitlines()[-1] == "168.63.129.16 web-0"


DETECTORS = """
import json
from cloud_detect import provider
from elasticapm.utils.cloud import azure_metadata
from newrelic.common.utilization import AzureUtilization
from opentelemetry.resource.detector.azure import AzureVMResourceDetector

print(json.dumps([dict(AzureVMResourceDetector().detect().attributes), azure_metadata(), AzureUtilization.detect(),
                  provider()]))
"""


@needs(PYPI)
def test_telemetry_detectors_identify_the_vm(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.6: OpenTelemetry's, Elastic's, New Relic's, and cloud-detect."""
    opentelemetry, elastic, newrelic, provider = json.loads(inside("workers_0", PYPI, "-c", DETECTORS))

    compute = json.loads(lab.guest("workers_0", "GET", "/metadata/instance?api-version=2021-02-01").body)["compute"]
    assert opentelemetry["host.name"] == "workers_0"
    assert opentelemetry["host.id"] == compute["vmId"]
    assert opentelemetry["cloud.resource_id"] == compute["resourceId"]
    assert opentelemetry["azure.vm.scaleset.name"] == "workers"
    assert (opentelemetry["cloud.platform"], opentelemetry["cloud.region"]) == ("azure_vm", "westeurope")
    assert elastic["instance"] == {"id": compute["vmId"], "name": "workers_0"}
    assert newrelic["name"] == "workers_0"
    assert provider == "azure"


@needs("ruby", "facter")
def test_facter_identifies_the_vm(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.6."""
    read = "puts JSON.generate(Facter::Resolvers::Az.resolve(:metadata))"
    output = json.loads(inside("web-0", "ruby", "-rjson", "-rfacter", "-e", read))
    assert output["compute"]["name"] == "web-0"


@needs("ruby", "ohai")
def test_ohai_chooses_a_version_from_the_error_and_identifies_the_vm(
    lab: ServiceProcess, inside: Inside, tmp_path: Path
) -> None:
    """Spec §10: a request without api-version is refused with the newest ones."""
    (tmp_path / "azure.json").write_text("{}")
    read = (
        "Ohai.config[:hints_path] = ARGV; system = Ohai::System.new; system.all_plugins(['azure']);"
        "puts JSON.generate(system.data['azure']['metadata']['compute'])"
    )
    output = json.loads(inside("web-0", "ruby", "-rjson", "-rohai", "-e", read, tmp_path).splitlines()[-1])
    assert output["name"] == "web-0"


@needs("curl")
def test_the_documented_curl_commands_work_unchanged(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.1, §5: read, approve, and see the event gone."""
    event_id = restart(lab, "web-0")

    document = json.loads(inside("web-0", "sh", "-c", f"curl -s -H Metadata:true '{EVENTS_URL}'"))
    assert [event["EventId"] for event in document["Events"]] == [event_id]
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    assert inside("web-0", "sh", "-c", f"curl -s -H Metadata:true -X POST -d '{body}' '{EVENTS_URL}'") == ""
    settle(lab, "web-0")
    assert json.loads(inside("web-0", "curl", "-s", "-H", "Metadata:true", EVENTS_URL))["Events"] == []


@needs("wget")
def test_wget_reads_the_scheduled_events(lab: ServiceProcess, inside: Inside) -> None:
    """Spec §2.1."""
    assert inside("web-1", "wget", "-qO-", "--header=Metadata: true", NAME_URL) == "web-1"


HANDLER = Path(__file__).parent / "vendor_handler.py"


@pytest.mark.parametrize(("vm", "hostname"), [("web-0", "web-0"), ("workers_1", "worker000001")])
def test_the_documented_handler_approves_its_own_events(
    lab: ServiceProcess, inside: Inside, vm: str, hostname: str
) -> None:
    """Spec §4.2: in a scale set the hostname is not the name, so this handler finds no events there."""
    event_id = restart(lab, vm)

    by_hostname, by_name, named = inside(vm, sys.executable, HANDLER).splitlines()

    assert named == f"{hostname} is called {vm}"
    assert by_hostname == (f"approved {event_id}" if hostname == vm else "nothing for us")
    assert by_name == f"approved {event_id}"
    assert lab.api("GET", f"/events/{event_id}").json["approved_by"] == vm
    settle(lab, vm)


@needs(AGENT, DEBIAN, "sh")
def test_pacemakers_agent_drains_its_node_and_approves(lab: ServiceProcess, inside: Inside, tmp_path: Path) -> None:
    """Spec §5: form-encoded JSON with its own api-version; a script stands in for the cluster."""
    cluster = _cluster(tmp_path)
    monitor = [AGENT, "monitor"]
    event_id = restart(lab, "web-0")

    inside("web-0", *monitor, **cluster)  # sees the event, and puts the node into standby
    assert (tmp_path / "web-0.azure-events-az_curNodeState").read_text() == "STOPPING"
    assert lab.poll("web-0")["Events"][0]["EventStatus"] == "Scheduled"
    inside("web-0", *monitor, **cluster)  # nothing runs here any more: approves
    assert (tmp_path / "web-0.azure-events-az_curNodeState").read_text() == "IN_EVENT"
    assert lab.api("GET", f"/events/{event_id}").json["approved_by"] == "web-0"
    settle(lab, "web-0")
    inside("web-0", *monitor, **cluster)  # it is over: back online
    assert (tmp_path / "web-0.azure-events-az_curNodeState").read_text() == "AVAILABLE"


def _cluster(directory: Path) -> dict[str, str]:
    programs = directory / "bin"
    programs.mkdir()
    for name in ("crm_attribute", "crm_node", "crm_resource", "crm_simulate"):
        (programs / name).symlink_to(Path(__file__).parent / "fake_cluster_command")
    return {"OCF_ROOT": str(UNPACKED / "ocf"), "CLUSTER": str(directory), "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("tool", "loopback"), [("pasta", "127.0.0.1"), ("slirp4netns", "10.0.2.2")])
def test_with_outbound_network_the_hosts_loopback_and_the_service_are_reachable(
    lab: ServiceProcess, inside: Inside, tmp_path: Path, tool: str, loopback: str
) -> None:
    """The lab's port on the host's loopback, where 127.0.0.1 identifies web-0."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} missing: see `make test-namespaces`")
    (tmp_path / tool).symlink_to(shutil.which(tool) or "")  # and no other is found
    ask = (
        "import sys, urllib.request as u\n"
        "for url in sys.argv[1:]:\n"
        "    print(u.urlopen(u.Request(url, headers={'Metadata': 'true'}), timeout=20).read().decode())\n"
    )
    outside = NAME_URL.replace("169.254.169.254", f"{loopback}:{lab.port}")

    output = inside("web-1", sys.executable, "-c", ask, NAME_URL, outside, options=("--grace", "5"), PATH=str(tmp_path))

    assert output.split() == ["web-1", "web-0"]
