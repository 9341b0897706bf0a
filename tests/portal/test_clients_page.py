"""The clients page: which VMs have no handler and why, in which order, and how each VM polls."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.core.access import owner_principal
from forewarn.core.explain.polling import SILENCE_LIMIT_S, PollingPace
from forewarn.core.history import EventDelivery, LastPoll
from forewarn.core.request import RequestedOperation
from forewarn.store.memory import MemoryStore
from tests.portal.conftest import Page, PortalUser
from tests.portal.form_helpers import confirm
from tests.support.operator_api import Api
from tests.support.world import World, a_vm

POLLING, SILENT = PollingPace(1.0, 2.04), PollingPace(SILENCE_LIMIT_S + 30, 1.0)


class Fleet:
    """A world whose VMs poll as the test says."""

    def __init__(self, api: Api) -> None:
        self.world: World = api.world
        self.paces: dict[str, PollingPace] = {}
        api.dependencies = replace(api.dependencies, pace_of=self.paces.get)
        self.user = PortalUser(api, owner_principal("local user ann"))

    def polls(self, name: str, pace: PollingPace = POLLING, **facts: Any) -> None:
        vm = self.world.vm(name)
        polled = LastPoll(
            **{"vm": vm.key, "scope_id": vm.scope_id, "at": self.world.now, "version": "2020-07-01", **facts}
        )
        self.world.do(self.world.store.record_observations([polled], []))
        self.paces[vm.key] = pace

    def deliver(self, name: str, event_id: str, *, after_s: float = 0.0, status: str = "scheduled") -> None:
        vm, event = self.world.vm(name), self.world.store.event(event_id)
        assert event is not None
        delivery = EventDelivery(
            event_id=event_id,
            scope_id=vm.scope_id,
            vm=vm.key,
            status=status,
            version="2020-07-01",
            incarnation=2,
            at=event.published_at + after_s,
        )
        self.world.do(self.world.store.record_observations([], [delivery]))

    def request_restart(self, name: str) -> str:
        [event] = self.world.ask(RequestedOperation.RESTART, name)
        return event.id

    def get(self, query: str = "") -> Page:
        return self.user.get(f"/portal/clients{query}")

    def json(self, query: str = "") -> Any:
        return self.get(f"/portal/clients{query}"[len("/portal/clients") :] + ("&" if query else "?") + "as=json").json

    def names(self, query: str = "") -> list[str]:
        return [client["name"] for client in self.json(query)["clients"]]

    def client(self, name: str) -> Any:
        return next(client for client in self.json()["clients"] if client["name"] == name)


@pytest.fixture
def fleet(api: Api) -> Fleet:
    return Fleet(api)


def test_the_headline_names_a_vm_whose_event_was_not_delivered(fleet: Fleet) -> None:
    fleet.request_restart("db")
    page = fleet.get()
    assert "1 VM with a pending event has no handler: db. The first event may start at 12:15:00 ." in page.text
    assert "no handler: no client has polled yet" in page.text


def test_every_vm_has_a_handler_without_pending_events(fleet: Fleet) -> None:
    page = fleet.get()
    assert "Every VM with a pending event has a handler." in page.text
    assert "never polled 7" in page.text


def test_a_vm_that_received_its_event_is_prepared(fleet: Fleet) -> None:
    event_id = fleet.request_restart("db")
    fleet.polls("db")
    fleet.deliver("db", event_id)
    assert "Every VM with a pending event has a handler." in fleet.get().text
    assert fleet.client("db")["pending"]["delivery"] == "delivered"


def test_a_vm_is_prepared_if_another_vm_of_its_scope_received_the_event(fleet: Fleet) -> None:
    event_id = fleet.request_restart("web-0")
    fleet.deliver("web-1", event_id)
    assert fleet.json()["without_handler"] == 0
    assert fleet.client("web-0")["pending"]["delivery"] == "neighbour"
    assert "delivered to another VM of the scope only" in fleet.get().text


def test_a_polling_vm_receives_its_event_with_the_next_poll(fleet: Fleet) -> None:
    fleet.polls("db")
    fleet.request_restart("db")
    assert fleet.json()["without_handler"] == 0
    assert fleet.client("db")["pending"]["delivery"] == "pending"


def test_a_vm_has_no_handler_if_its_api_version_does_not_list_the_kind(fleet: Fleet) -> None:
    """Spec §3: 2017-08-01 does not list Preempt."""
    fleet.polls("spot", version="2017-08-01")
    fleet.world.ask(RequestedOperation.EVICT, "spot")
    assert "1 VM with a pending event has no handler: spot" in fleet.get().text
    assert (
        fleet.client("spot")["no_handler_reason"]
        == "the client polls with 2017-08-01, which does not list Preempt events"
    )


def test_a_vm_that_stopped_polling_has_no_handler(fleet: Fleet) -> None:
    fleet.polls("db", SILENT)
    fleet.request_restart("db")
    assert fleet.client("db")["no_handler_reason"] == "the client stopped polling"
    assert "silent for 1 min 30 s" in fleet.get().text


def test_a_vm_that_polled_since_and_did_not_receive_the_event_has_no_handler(fleet: Fleet) -> None:
    fleet.request_restart("db")
    fleet.polls("db", at=fleet.world.now + 1)
    assert fleet.client("db")["no_handler_reason"] == "the client polls, but has not received the event"


def test_an_event_that_has_started_is_too_late_to_prepare_for(fleet: Fleet) -> None:
    event_id = fleet.request_restart("db")
    fleet.world.do(fleet.world.control.guests.approve(fleet.world.vm("db").key, (event_id,)))
    fleet.world.do(fleet.world.control.reconciler.catch_up())
    assert fleet.json()["without_handler"] == 0


def test_vms_without_a_handler_come_first_then_those_that_stopped_then_those_that_never_polled(fleet: Fleet) -> None:
    fleet.polls("web-0")
    fleet.polls("web-1", SILENT)
    fleet.polls("pool_1")
    event_id = fleet.request_restart("pool_1")
    fleet.deliver("pool_1", event_id)
    fleet.world.advance(10)
    fleet.request_restart("db")
    names = fleet.names()
    assert names[:2] == ["db", "web-1"]
    assert set(names[2:5]) == {"web-2", "spot", "pool_0"}
    assert names[5:] == ["pool_1", "web-0"]


def test_vms_without_a_handler_are_sorted_by_the_start_of_their_events(fleet: Fleet) -> None:
    fleet.request_restart("db")
    fleet.world.ask(RequestedOperation.EVICT, "spot")  # in 30 s
    assert fleet.names("?only=without-handler") == ["spot", "db"]
    assert (
        "2 VMs with pending events have no handler: spot, db. The first event may start at 12:00:30 ."
        in fleet.get().text
    )


def test_of_several_pending_events_the_undelivered_one_counts(fleet: Fleet) -> None:
    fleet.polls("db", SILENT)
    [first] = fleet.world.ask(RequestedOperation.RESTART, "db")
    fleet.deliver("db", first.id)
    assert fleet.json()["without_handler"] == 0
    fleet.world.do(fleet.world.control.requests.degrade_host("h1", who="ann", notice_s=86400))
    fleet.world.settle()
    data = fleet.client("db")["pending"]
    assert (data["kind"], data["delivery"]) == ("Redeploy", "none")


def test_the_clients_page_filters_vms_without_a_handler_silent_and_never_polling_vms(fleet: Fleet) -> None:
    fleet.polls("db", SILENT)
    fleet.polls("spot")
    fleet.request_restart("web-0")
    assert fleet.names("?only=without-handler") == ["web-0"]
    assert fleet.names("?only=silent") == ["db"]
    assert set(fleet.names("?only=never")) == {"web-0", "web-1", "web-2", "pool_0", "pool_1"}
    refused = fleet.user.request("GET", "/portal/clients?only=everybody")
    assert refused.status == 400
    assert "'everybody' is not a filter of this page." in refused.text


def test_a_stopped_vm_is_not_expected_to_poll(fleet: Fleet) -> None:
    fleet.world.ask(RequestedOperation.DEALLOCATE, "db")
    fleet.world.advance(600)
    assert fleet.client("db")["polling"] == "off"
    assert "db" not in fleet.names("?only=never")


def test_the_clients_page_shows_program_interval_and_api_version(fleet: Fleet) -> None:
    fleet.polls("db", agent="python-requests/2.31", count=42, wait_s=120)
    data = fleet.client("db")
    assert (data["agent"], data["version"], data["polls"]) == ("python-requests/2.31", "2020-07-01", 42)
    assert (data["gap_s"], data["polling"], data["wait_s"]) == (2.04, "now", 120)
    text = fleet.get("?q=DB").text
    assert "python-requests/2.31 2020-07-01 12:00:00 2.0 s long polls" in text


def test_the_clients_page_shows_delivery_delays_and_approvals(fleet: Fleet) -> None:
    for after_s in (1.0, 3.0):
        event_id = fleet.request_restart("db")
        fleet.deliver("db", event_id, after_s=after_s)
        fleet.deliver("db", event_id, after_s=500.0, status="started")
        fleet.world.advance(60)
        fleet.world.approve("db", event_id)
        fleet.world.advance(60)
    data = fleet.client("db")
    assert (data["delivered_after_s"], data["last_delivered_after_s"]) == (2.0, 3.0)
    assert data["approvals"] == 2
    assert data["last_approved_at"] == time_text(fleet.world.now - 60)
    assert "3 s 2 s on average 2 last 12:03:00" in fleet.get().text


def test_an_approval_counts_for_the_vm_that_approved(fleet: Fleet) -> None:
    event_id = fleet.request_restart("web-0")
    fleet.world.approve("web-1", event_id)
    assert (fleet.client("web-0")["approvals"], fleet.client("web-1")["approvals"]) == (0, 1)


def test_markup_in_a_user_agent_is_escaped(fleet: Fleet) -> None:
    fleet.polls("db", agent="<script>alert(1)</script>")
    page = fleet.get()
    assert "<script>alert" not in page.html
    assert "<script>alert(1)</script>" in page.text


def test_the_clients_page_can_be_searched(fleet: Fleet) -> None:
    assert fleet.names("?q=WEB") == ["web-0", "web-1", "web-2"]
    assert 'No results for "nobody"' in fleet.get("?q=nobody").text
    assert len(fleet.names("?q=lab")) == 7
    assert fleet.names("?q=sub/") == []  # the subscription id is not searched


def test_the_clients_of_a_large_fleet_are_paginated(api_of: Callable[..., Api]) -> None:
    vms = [a_vm(f"vm-{number:03}", host="h1") for number in range(120)]
    fleet = Fleet(api_of(vms=vms))
    fleet.request_restart("vm-119")
    first, last = fleet.json("?page=1"), fleet.json("?page=3")
    assert (first["pages"], first["found"], len(first["clients"]), len(last["clients"])) == (3, 120, 50, 20)
    assert first["clients"][0]["name"] == "vm-119"
    names = [client["name"] for page in (1, 2, 3) for client in fleet.json(f"?page={page}")["clients"]]
    assert len(set(names)) == 120
    assert "Page 1 of 3" in fleet.get().text
    refused = fleet.user.request("GET", "/portal/clients?page=4")
    assert refused.status == 400
    assert "Page 4 does not exist: the last one is 3" in refused.text


def test_the_headline_counts_many_vms_without_a_handler_and_names_a_few(api_of: Callable[..., Api]) -> None:
    vms = [a_vm(f"vm-{number}", host="h1") for number in range(8)]
    fleet = Fleet(api_of(vms=vms))
    for number in range(8):
        fleet.request_restart(f"vm-{number}")
    assert "8 VMs with pending events have no handler: vm-0, vm-1, vm-2, vm-3, vm-4 and 3 more." in fleet.get().text


def test_the_clients_page_shows_only_vms_that_the_user_may_read(fleet: Fleet) -> None:
    fleet.request_restart("db")
    fleet.request_restart("web-0")
    other = fleet.user.with_role(
        "Reader", "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/web-0"
    )
    page = other.get("/portal/clients?as=json").json
    assert [client["name"] for client in page["clients"]] == ["web-0"]
    assert (page["total"], page["without_handler"], page["without_handler_names"]) == (1, 1, ["web-0"])
    assert "db" not in other.get("/portal/clients").text.partition("Clients")[2]


def test_the_clients_page_can_be_exported_as_csv(fleet: Fleet) -> None:
    fleet.polls("db", agent="=cmd()")
    fleet.request_restart("db")
    rows = list(csv.DictReader(io.StringIO(fleet.get("?as=csv").content.decode())))
    row = next(row for row in rows if row["name"] == "db")
    assert (row["polling"], row["agent"], row["event_kind"], row["delivery"]) == ("now", "'=cmd()", "Reboot", "pending")
    assert len(rows) == 7


def test_the_clients_page_of_an_empty_fleet_says_how_to_add_vms(api_of: Callable[..., Api]) -> None:
    fleet = Fleet(api_of(vms=[], hosts=[], store=MemoryStore()))
    assert "You cannot see any VMs. If there are none yet, add VMs with forewarn fleet add NAME" in fleet.get().text


def test_the_clients_page_includes_polls_that_are_not_stored_yet(fleet: Fleet) -> None:
    async def observe() -> None:
        vm = fleet.world.vm("db")
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=fleet.world.now, version="2020-07-01", agent="late")
        await fleet.world.store.record_observations([polled], [])
        fleet.paces[vm.key] = POLLING

    fleet.user.api.dependencies = replace(fleet.user.api.dependencies, flush_observations=observe)
    user = PortalUser(fleet.user.api, owner_principal("local user ann"))
    assert "late" in user.get("/portal/clients").text


def test_the_clients_page_is_live(fleet: Fleet) -> None:
    assert 'id="clients" data-live="all polling"' in fleet.get().html


@pytest.mark.parametrize("jump_s", [0.0, 7200.0], ids=["real time", "the clock jumped"])
def test_every_page_shows_how_long_ago_a_vm_polled_in_real_time(fleet: Fleet, jump_s: float) -> None:
    """Spec §12: the lab's clock may jump, and no client polls during the jump."""
    fleet.polls("db", SILENT)
    clock = fleet.world.clock
    clock.apply_setting(clock.setting_after_jump(fleet.world.now + jump_s))
    assert "silent for 1 min 30 s" in fleet.get().text
    assert "the last poll was 1 min 30 s ago" in fleet.user.get("/portal/fleet?q=db").text
    assert "No client there has polled for 1 min 30 s" in fleet.user.get("/portal/vms/db").text
    assert "the last poll was 1 min 30 s ago" in confirm(fleet.user, "restart", {"vm": "db"}).text
    assert fleet.user.get("/portal/vms/db?as=json").json["vm"]["silent_s"] == 90.0


def test_every_page_shows_that_a_vm_polls_although_the_clock_jumped(fleet: Fleet) -> None:
    fleet.polls("db", POLLING)
    clock = fleet.world.clock
    clock.apply_setting(clock.setting_after_jump(fleet.world.now + 7200))
    assert fleet.client("db")["polling"] == "now"
    age = "1 s of real time or 2 h of lab time"
    assert f"db polls (the last poll was {age} ago" in fleet.user.get("/portal/vms/db").text
    assert "No handler is polling" not in confirm(fleet.user, "restart", {"vm": "db"}).text
