"""Base class of the store suites: opens the store under test and runs scenarios on it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from forewarn.core.cause import Cause
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.health import CheckOutcome, Measurement
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry, LastPoll
from forewarn.core.request import (
    MaintenanceRequest,
    PlannedEvent,
    RequestedOperation,
    Rollout,
    RolloutImpact,
    RolloutState,
)
from forewarn.store.interface import Store

# Sample rows for tests of a store; a test passes only the fields it is about.

replace_fields = msgspec.structs.replace  # a copy of a frozen struct with some fields changed


def sample_vm(name: str, **facts: Any) -> Vm:
    """Return a VM of availability set `web` on host `h1`; `facts` sets or replaces fields by name."""
    where = {"subscription_id": "sub", "resource_group": "group", "location": "north", "availability_set": "web"}
    return Vm(**{"name": name, "vm_id": f"id of {name}", "host": "h1", **where, **facts})


SAMPLE_SCOPE_ID = sample_vm("any").scope_id  # the scope of the sample VMs


def sample_event(event_id: str, **facts: Any) -> Event:
    """Return a scheduled restart of `web-0`, of request `r1`; `facts` sets or replaces fields by name."""
    given: dict[str, Any] = {
        "scope_id": SAMPLE_SCOPE_ID,
        "request_id": "r1",
        "cause": Cause.USER_RESTART,
        "requested_by": "ann",
    }
    return Event(**{"id": event_id, "vms": ("web-0",), "published_at": 10.0, "not_before": 910.0, **given, **facts})


def finished_event(event: Event, at: float) -> Event:
    """Return a copy of the event that is over since `at`, with the ending FINISHED."""
    return replace_fields(event, status=EventState.OVER, over_at=at, ending=Ending.FINISHED)


def sample_request(request_id: str, **facts: Any) -> MaintenanceRequest:
    """Return a request to restart `web-0`, made by `ann` at 1.5; `facts` sets or replaces fields by name."""
    return MaintenanceRequest(
        **{
            "id": request_id,
            "operation": RequestedOperation.RESTART,
            "requested_by": "ann",
            "requested_at": 1.5,
            "targets": ("web-0",),
            **facts,
        }
    )


def sample_rollout(request_id: str, *, closed: bool = False, **facts: Any) -> MaintenanceRequest:
    """Return the request of a paused rollout over host `h1`, open unless `closed`."""
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",), progress=RolloutState.PAUSED, closed=closed)
    return sample_request(request_id, operation=RequestedOperation.ROLLOUT, rollout=rollout, **facts)


def sample_planned_event(event_id: str, **facts: Any) -> PlannedEvent:
    """Return a planned host update of `web-0`, of request `r1`, with 900 seconds of notice."""
    given: dict[str, Any] = {
        "request_id": "r1",
        "scope_id": SAMPLE_SCOPE_ID,
        "cause": Cause.HOST_UPDATE,
        "requested_by": "ann",
    }
    return PlannedEvent(**{"event_id": event_id, "vms": ("web-0",), "notice_s": 900.0, **given, **facts})


def sample_measurement(at: float, **facts: Any) -> Measurement:
    """Return a good measurement of check `c` of request `r1` at lab time `at`; `facts` sets other fields."""
    return Measurement(**{"request_id": "r1", "check": "c", "at": at, "outcome": CheckOutcome.GOOD, **facts})


def sample_history_entry(text: str, **facts: Any) -> HistoryEntry:
    """Return a history entry of kind FLEET with this text, at 5.0; `facts` sets or replaces fields."""
    return HistoryEntry(**{"at": 5.0, "kind": EntryKind.FLEET, "text": text, **facts})


def sample_delivery(event_id: str, vm: str = "web-0", **facts: Any) -> EventDelivery:
    """Return the record that a poll at 20.0 showed the event to the VM, with the status SCHEDULED."""
    given: dict[str, Any] = {
        "scope_id": SAMPLE_SCOPE_ID,
        "status": EventState.SCHEDULED.value,
        "version": "2020-07-01",
        "incarnation": 2,
    }
    return EventDelivery(**{"event_id": event_id, "vm": vm, "at": 20.0, **given, **facts})


def sample_poll(vm: str, at: float, **facts: Any) -> LastPoll:
    """Return the last poll of a VM, at lab time `at` in the sample scope, with the count 1."""
    return LastPoll(**{"vm": vm, "scope_id": SAMPLE_SCOPE_ID, "at": at, "version": "2020-07-01", "count": 1, **facts})


StoreScenario = Callable[[Store], Awaitable[None]]  # one part of a test, run on an open store

LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)


class StoreSuite(ABC):
    """Base class of the conformance tests of a store, without tests of its own; a subclass defines `open`."""

    @abstractmethod
    def open(self) -> Store:
        """Open the store under test, on a running event loop; `run_scenarios` closes it.

        At the first call in a test the store is empty; a later call in the same test must find what was committed.
        """

    def run_scenarios(self, *scenarios: StoreScenario) -> None:
        """Run the scenarios in order, each in a new event loop with a newly opened store; close it after each."""
        for scenario in scenarios:
            asyncio.run(self._run_one(scenario))

    async def _run_one(self, scenario: StoreScenario) -> None:
        store = self.open()
        try:
            await scenario(store)
        finally:
            await store.close()
