"""The Python library and failures: a killed service, a failed act, too many operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from tests.support.web_service import open_web_service

pytestmark = pytest.mark.azure
GROUP = "shop"
FAILING = """
[[simulate]]
verb = "reboot"
then = "fail"
note = "the disk did not come back"
"""
MANY_VMS = """
[defaults]
resource_group = "shop"

[[hosts]]
name = "host-{n}"
count = 5

[[availability_sets]]
name = "crowd"

[[vms]]
name = "crowd-{n}"
count = 101
availability_set = "crowd"
"""


def test_an_operation_outlives_the_service_that_began_it(
    tmp_path: Path, fleet: str, compute_of: Callable[..., Any]
) -> None:
    with open_web_service(tmp_path, fleet=fleet) as console:
        # A busy machine starts a service more slowly than the library's usual four tries.
        compute = compute_of(console, retry_total=60, retry_connect=60, retry_backoff_max=1)
        poller = compute.virtual_machines.begin_restart(GROUP, "web-0")
        poller.wait(1.5)
        console.service.kill()
        console.service.start()
        assert not poller.done()

        console.approve_until_over("web-0", poller.done)
        poller.result(timeout=30)
        assert poller.status() == "Succeeded"


def test_a_failed_act_raises_an_error_with_the_reason(
    tmp_path: Path, fleet: str, compute_of: Callable[..., Any]
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(FAILING, encoding="utf-8")
    with open_web_service(tmp_path / "data", fleet=fleet, arguments=("--config", str(config))) as console:
        compute = compute_of(console)
        poller = compute.virtual_machines.begin_restart(GROUP, "web-0")
        console.approve_all("web-0")
        with pytest.raises(HttpResponseError, match="the disk did not come back"):
            poller.result(timeout=30)
        assert poller.status() == "Failed"


def test_an_event_that_is_withdrawn_ends_its_operation(
    tmp_path: Path, fleet: str, compute_of: Callable[..., Any]
) -> None:
    with open_web_service(tmp_path, fleet=fleet) as console:
        compute = compute_of(console)
        poller = compute.virtual_machines.begin_restart(GROUP, "web-0")
        (event_id,) = console.scheduled_event_ids("web-0")
        assert console.service.forewarn("withdraw", event_id, "--reason", "not today").returncode == 0
        with pytest.raises(HttpResponseError, match="not today"):
            poller.result(timeout=30)
        assert poller.status() == "Canceled"


@pytest.mark.parametrize("most", [2, 100])
def test_a_user_operation_beyond_the_limit_is_refused_with_a_message(
    tmp_path: Path, compute_of: Callable[..., Any], most: int
) -> None:
    with open_web_service(tmp_path, fleet=MANY_VMS, max_user_operations=str(most)) as console:
        compute = compute_of(console)
        for number in range(most):
            compute.virtual_machines.begin_restart(GROUP, f"crowd-{number}", polling=False)
        with pytest.raises(HttpResponseError, match=str(most)) as refused:
            compute.virtual_machines.begin_restart(GROUP, f"crowd-{most}", polling=False)
        assert refused.value.status_code in (409, 429)
        assert len(console.scheduled_event_ids("crowd-0")) == most
