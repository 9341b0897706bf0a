"""The images are built from the Containerfiles, and run as the compose files say, each container in its namespaces.

The base image is Debian's Python, because no registry is needed for it; everything else is what users build and run.
"""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from forewarn.metadata.listeners import run_in_namespace
from tests.support.containers import (
    BASE,
    ROOT,
    Container,
    Image,
    ImageBuilder,
    Network,
    addresses,
    load_compose,
    run,
)
from tests.support.service_process import eventually
from tests.support.wheel import build_distributions, the_wheel

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(900)]  # building takes minutes on a busy machine

DEPLOY = ROOT / "deploy"
METADATA = "169.254.169.254"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
VERSION = "1.2.3"
_COUNTER = itertools.count()
Images = dict[str, Image]


def _skip_reason() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "containers made of namespaces need root, on Linux"
    if shutil.which("buildah") is None or not BASE.exists():
        return "there is no builder of images: `make test-namespaces` installs buildah, and makes a base image"
    return ""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """The image of each Containerfile, by the name that the compose files use."""
    if reason := _skip_reason():
        pytest.skip(reason)
    context = tmp_path_factory.mktemp("images")
    wheel = the_wheel(build_distributions(context))  # in context/dist, where the Containerfiles look for it
    python = run("chroot", str(BASE), "/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", python]
    run(*download, "--dest", str(context / "wheels"), f"{wheel}[server,agent]", timeout_s=180)
    builder = ImageBuilder(context / "buildah")
    try:
        yield {
            f"forewarn-{name}": builder.build(DEPLOY / f"{name}.Containerfile", context, context / "wheels", VERSION)
            for name in ("server", "agent")
        }
    finally:
        builder.close()


class ComposeProject:
    """The containers of a compose file; with `network_mode: host` all are in the namespace `host`."""

    def __init__(self, path: Path, images: Images, directory: Path, stack: ExitStack) -> None:
        self._path = path
        self._images = images
        self._directory = directory
        self._stack = stack
        self.file = load_compose(path)
        self.network = Network(stack, f"fwc{os.getpid()}x{next(_COUNTER)}")
        self._host = ""

    def start(self, name: str) -> Container:
        """Start the container of a service."""
        service = self.file["services"][name]
        container = Container(
            self._images[service["image"]],
            service,
            namespace=self._namespace(name, service),
            folder=self._path.parent,
            volumes=self._directory / "volumes",
            log=self._directory / f"{name}.log",
        )
        self._stack.callback(container.kill)
        return container

    def start_healthy(self, name: str) -> Container:
        """Start the container of a service, and return when its health check succeeds."""
        container = self.start(name)
        eventually(container.is_healthy, 60)
        return container

    def stranger(self, name: str, address: str) -> str:
        """A namespace on the same network that is no container of the file."""
        namespace = self.network.namespace(name)
        self.network.attach(namespace, address)
        return namespace

    @property
    def host(self) -> str:
        """The namespace of the machine, for containers that share its network."""
        self._host = self._host or self.network.namespace("host")
        return self._host

    def _namespace(self, name: str, service: dict[str, Any]) -> str:
        if service.get("network_mode") == "host":
            return self.host
        (address,) = addresses(service)
        (subnet,) = (entry["subnet"] for entry in self.file["networks"]["metadata"]["ipam"]["config"])
        return self.stranger(name, f"{address}/{subnet.partition('/')[2]}")


def asked_from(namespace: str) -> tuple[int, str]:
    """What the metadata address answers to a caller in this namespace who asks for its name."""

    def ask() -> tuple[int, str]:
        with closing(http.client.HTTPConnection(METADATA, timeout=15)) as connection:
            connection.request("GET", NAME, headers={"Metadata": "true"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    found: tuple[int, str] = run_in_namespace(namespace, ask)
    return found


@pytest.fixture
def project(request: pytest.FixtureRequest, images: Images, tmp_path: Path) -> Iterator[ComposeProject]:
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        yield ComposeProject(DEPLOY / request.param / "compose.yaml", images, tmp_path, stack)


@pytest.mark.parametrize("name", ["server", "agent"])
def test_an_image_has_labels_a_user_without_rights_and_only_our_programs_added(images: Images, name: str) -> None:
    image = images[f"forewarn-{name}"]
    labels = {key.rpartition(".")[2]: text for key, text in image.config["Labels"].items() if "opencontainers" in key}
    assert (labels["title"], labels["version"], labels["licenses"]) == (f"forewarn-{name}", VERSION, "MIT")
    assert int(image.config["User"]) > 999
    (data,) = image.config["Volumes"]
    owner = (image.tree / data.lstrip("/")).stat()
    assert (owner.st_uid, owner.st_mode & 0o777) == (int(image.config["User"]), 0o700)
    assert not list((image.tree / "opt/forewarn").rglob("pip")), "the image has pip"
    assert not (image.tree / "wheel").exists()
    added = int(run("du", "-s", "--block-size=1M", str(image.tree / "opt/forewarn")).split()[0])
    assert added < {"server": 130, "agent": 40}[name], f"{added} MB"


@pytest.mark.parametrize("project", ["lab"], indirect=True)
def test_each_container_of_the_lab_is_a_vm_by_its_address_and_writes_only_to_its_volumes(
    project: ComposeProject,
) -> None:
    service = project.start_healthy("forewarn")
    for name, container in {name: project.start(name) for name in ("web-0", "web-1")}.items():
        eventually(container.is_healthy, 60)
        asked = container.execute("python", "-c", ASK_NAME)
        assert (asked.stdout, asked.stderr) == (name, "")
        assert int(Path(f"/proc/{container.pid}").stat().st_uid) == container.uid > 999
    assert asked_from(project.stranger("other", "169.254.169.77/24"))[0] == 404
    requested = service.execute("forewarn", "restart", "web-0", "--json")
    assert requested.returncode == 0, requested.stderr
    eventually(lambda: "approved by web-0" in service.execute("forewarn", "explain", "web-0").stdout, 60)
    assert "approved by" not in service.execute("forewarn", "explain", "web-1").stdout
    for path in ("/", "/opt/forewarn", "/etc/forewarn"):
        written = service.execute("python", "-c", f"open('{path}/x', 'w')")
        assert "Read-only file system" in written.stderr or "Permission denied" in written.stderr
    assert service.stop() == 0


@pytest.mark.parametrize("project", ["serve"], indirect=True)
def test_the_service_needs_no_privilege_beside_the_container_that_opens_its_sockets(project: ComposeProject) -> None:
    project.network.attach(project.host, "10.0.0.1/24")
    project.network.ip(project.host, f"addr add {METADATA}/32 dev lo")
    helper = project.start("sockets")
    service = project.start_healthy("forewarn")
    assert (helper.uid, service.uid > 999) == (0, True)
    assert "CapEff:\t0000000000000000" in Path(f"/proc/{service.pid}/status").read_text()
    for name, address in (("web-0", "10.0.0.10"), ("web-1", "10.0.0.11")):
        vm = project.stranger(name, f"{address}/24")
        project.network.ip(vm, f"route add {METADATA} via 10.0.0.1")
        assert eventually(lambda vm=vm: asked_from(vm)) == (200, name)  # type: ignore[misc]


ASK_NAME = f"""
import urllib.request as u
request = u.Request('http://{METADATA}{NAME}', headers={{'Metadata': 'true'}})
print(u.urlopen(request, timeout=15).read().decode(), end='')
"""
