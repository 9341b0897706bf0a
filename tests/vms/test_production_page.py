"""The steps of docs/how-to/production.md, from the domains of a host to the first announced reboot of a real guest.

The commands are those of the page, in the network of a host with libvirt's bridge, with paths and the URI of the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.markdown_pages import blocks
from tests.support.service_process import eventually
from tests.vms.hosts import DEVICE, HOST_NAMES, ROOT, START_S, VM, HostSetup, wait_for
from tests.vms.libvirt_hosts import LibvirtSite

pytestmark = [pytest.mark.vms, pytest.mark.timeout(1200)]
PAGE = ROOT / "docs" / "how-to" / "production.md"
ADDRESS = "192.168.122.10"  # of the guest, as on the page


class PageReader:
    """Runs blocks of the page on a host, as its reader does."""

    def __init__(self, site: LibvirtSite, directory: Path) -> None:
        self._host = site.hosts[HOST_NAMES[0]]
        self._substitutes = {
            "qemu:///system": site.uri(HOST_NAMES[0]),
            "/etc/forewarn": str(directory / "etc"),
            "/var/lib/forewarn": str(directory / "data"),
        }
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FOREWARN_API": "",
        }

    def block(self, language: str, marker: str) -> str:
        """Return the first block of this language that contains the text, with the substitutes."""
        text = next(block.text for block in blocks(PAGE) if block.language == language and marker in block.text)
        for old, new in self._substitutes.items():
            text = text.replace(old, new)
        return text

    def run(self, script: str) -> str:
        done = subprocess.run(
            self._line(script), capture_output=True, text=True, timeout=START_S, check=False, env=self._environment
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, script: str, log: Path) -> Iterator[None]:
        """Run a script whose last command stays in the foreground, until the block ends."""
        with log.open("wb") as output:
            lines = script.strip().splitlines()
            script = "\n".join([*lines[:-1], f"exec {lines[-1]}"])
            child = subprocess.Popen(self._line(script), stdout=output, stderr=output, env=self._environment)
        try:
            yield
        finally:
            child.terminate()
            child.wait(timeout=START_S)

    def _line(self, script: str) -> list[str]:
        return ["ip", "netns", "exec", self._host.namespace, "sh", "-euc", script]


@contextmanager
def bridge_of_libvirt(host: HostSetup) -> Iterator[None]:
    """Give the host the bridge of libvirt's network `default`, with the guest's tap in it; removed afterwards."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", "-n", host.namespace, *arguments], check=True)

    ip("link", "add", "virbr0", "type", "bridge")
    ip("link", "set", DEVICE, "master", "virbr0")
    ip("address", "add", "192.168.122.1/24", "dev", "virbr0")
    ip("link", "set", "virbr0", "up")
    try:
        yield
    finally:
        ip("link", "del", "virbr0")


def test_the_page_leads_from_the_domains_of_a_host_to_an_announced_reboot(
    libvirt_agent_site: LibvirtSite, tmp_path: Path
) -> None:
    site, host = libvirt_agent_site, libvirt_agent_site.hosts[HOST_NAMES[0]]
    reader = PageReader(site, tmp_path)
    with bridge_of_libvirt(host):
        site.start_guest(address=ADDRESS)
        assert "1 VM on 1 host" in reader.run(reader.block("sh", "fleet import"))
        fleet = tmp_path / "etc" / "fleet.toml"
        assert f'name = "{VM}"' in fleet.read_text()
        fleet.write_text(reader.block("toml", ADDRESS))
        (tmp_path / "etc" / "forewarn.toml").write_text(reader.block("toml", "[machines]"))
        log = tmp_path / "service.log"
        with reader.running(reader.block("sh", "forewarn serve"), log):
            wait_for("the service is up", log, within_s=60)
            show = f"forewarn --data {tmp_path}/data fleet show {VM} --json"
            eventually(lambda: json.loads(reader.run(show))["polls"] > 0, within_s=START_S)
            reader.run(reader.block("sh", f"restart {VM}"))
            first, second = eventually(lambda: host.boots() if len(host.boots()) == 2 else [], within_s=START_S)
            assert first != second
            explained = reader.run(reader.block("sh", f"explain {VM}"))
    assert "forceEvents: postData" in host.console_text(), "the agent in the guest approved"
    assert "Reboot, requested by local user root (user restart): finished" in explained
