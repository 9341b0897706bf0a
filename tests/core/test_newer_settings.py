"""Settings of Azure's newer policy and profile: OS image notices and the last running VM (spec §14)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import AutoApproval
from forewarn.core.request import RequestedOperation
from tests.support.world import World, a_host, a_vm

RESTARTS = AutoApproval(restart=True)


@pytest.fixture
def world() -> Iterator[World]:
    facts: dict[str, Any] = {"availability_set": "web", "auto_approve": RESTARTS, "approves_all_down": False}
    vms = [a_vm(f"web-{n}", update_domain=n, host="h1", **facts) for n in (0, 1)]
    single = a_vm("db", host="h2", auto_approve=RESTARTS, approves_all_down=False, os_image_notice_min=15)
    made = World(
        vms=[*vms, single, a_vm("plain", host="h2", auto_approve=RESTARTS)], hosts=[a_host("h1"), a_host("h2")]
    )
    yield made
    made.close()


def restart(world: World, vm: str) -> Event:
    (event,) = world.ask(RequestedOperation.RESTART, vm)
    return event


def test_a_reimage_with_os_image_notification_gives_a_reboot_with_its_notice(world: World) -> None:
    """Spec §14.1."""
    (event,) = world.ask(RequestedOperation.REIMAGE, "db")
    (shown,) = json.loads(world.document("db"))["Events"]
    assert (shown["EventType"], shown["EventSource"], shown["Description"]) == ("Reboot", "User", "")
    assert (event.cause, event.not_before - event.published_at) == (Cause.ANNOUNCED_REIMAGE, 900)
    world.advance(3600)
    over = world.store.event(event.id)
    assert over is not None
    assert (over.ending, [str(act.verb) for act in over.acts]) == (Ending.FINISHED, ["reimage"])


def test_a_reimage_without_the_profile_is_performed_at_once(world: World) -> None:
    """Spec §14.1, §6.4."""
    (event,) = world.ask(RequestedOperation.REIMAGE, "plain")
    assert (event.cause, event.listed) == (Cause.REIMAGE, False)


def test_a_delete_replaces_an_announced_reimage(world: World) -> None:
    """Spec §14.1."""
    (reimage,) = world.ask(RequestedOperation.REIMAGE, "db")
    world.ask(RequestedOperation.DELETE, "db")
    over = world.store.event(reimage.id)
    assert over is not None
    assert (over.ending, over.reason) == (Ending.WITHDRAWN, "replaced by user delete")


def test_policy_approves_a_restart_while_another_vm_of_the_scope_runs(world: World) -> None:
    """Spec §14.2: the second restart would leave no VM running, so it waits."""
    assert restart(world, "web-0").status is EventState.STARTED
    second = restart(world, "web-1")
    assert (second.status, second.approved_at) == (EventState.SCHEDULED, None)
    assert second.not_before - second.published_at == 900
    world.approve("web-0", second.id)
    world.advance(60)
    assert world.store.event(second.id).started_at is not None  # type: ignore[union-attr]


def test_a_vm_that_is_powered_off_does_not_count_as_running(world: World) -> None:
    """Spec §14.2."""
    world.ask(RequestedOperation.POWER_OFF, "web-1")
    world.advance(60)
    assert restart(world, "web-0").status is EventState.SCHEDULED


@pytest.mark.parametrize(("vm", "status"), [("db", EventState.SCHEDULED), ("plain", EventState.STARTED)])
def test_a_single_vm_is_always_the_last_one(world: World, vm: str, status: EventState) -> None:
    """Spec §14.2: with Azure's default, policy approves its restart all the same."""
    assert restart(world, vm).status is status
