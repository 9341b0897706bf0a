"""The proxy on the listening socket of a VM made of namespaces."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from forewarn.crash_test import answers
from forewarn.crash_test.timeline import ConnectionOpened, Observation, Polled
from forewarn.lab import Lab
from tests.support.crash_handlers import make_shell_machine
from tests.support.proxied_lab import lab_address, make_proxy

pytestmark = pytest.mark.crash

# Polls once: its exit status is 0, or 7 if the connection is refused.
POLL_PROGRAM = """
import sys, urllib.error, urllib.request
url = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
try:
    urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=5).read()
except urllib.error.URLError as error:
    sys.exit(7 if isinstance(error.reason, ConnectionRefusedError) else 1)
"""


@pytest.mark.namespaces
def test_connections_inside_a_vm_are_refused_and_accepted_again_afterwards(tmp_path: Path) -> None:
    machine = make_shell_machine(tmp_path, "sleep 600", in_namespaces=True)
    program = tmp_path / "poll.py"
    program.write_text(POLL_PROGRAM)
    observations: list[Observation] = []

    async def scenario(upstream: tuple[str, int]) -> list[int | None]:
        listener = await machine.open(lambda output: None, lambda ended: None)
        proxy = make_proxy(listener, upstream, observations)
        await proxy.start()
        try:
            codes = []
            for substitute in (None, answers.refuses_connections(), None, answers.refuses_connections(), None):
                proxy.substitute(substitute)
                codes.append(await machine.run(f"{sys.base_prefix}/bin/python3 {program}", 30))
            return codes
        finally:
            await proxy.close()

    try:
        with Lab(["a"]) as lab:
            assert asyncio.run(scenario(lab_address(lab))) == [0, 7, 0, 7, 0]
    finally:
        machine.close()
    assert [item.status for item in observations if isinstance(item, Polled)] == [200] * 3
    assert len([item for item in observations if isinstance(item, ConnectionOpened)]) == 3
