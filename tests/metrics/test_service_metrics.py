"""What Prometheus is told of events, the fleet and the service, read off a world in virtual time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from forewarn.core.event import Event
from forewarn.core.fleet import Priority
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unavailable
from forewarn.explain.polling import SILENCE_LIMIT_S, PollingPace, PollingState
from forewarn.hypervisor.simulated import SimulatedBehaviour
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metrics.service_metrics import ServiceMetrics
from forewarn.store.interface import LastPoll
from forewarn.store.memory import MemoryStore
from forewarn.web.directory import FleetDirectory
from forewarn.web.polling_report import polling_report
from tests.support.world import World, a_host, a_vm

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
LIVELY, SILENT = PollingPace(1.0), PollingPace(SILENCE_LIMIT_S + 1)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class House:
    """A world and its metrics."""

    def __init__(self, **options: Any) -> None:
        hosts = [a_host("h1"), a_host("h2")]
        vms = [
            *(a_vm(f"web-{n}", availability_set="web") for n in range(2)),
            a_vm("db"),
            a_vm("spot", priority=Priority.SPOT),
        ]
        self.world = World(hosts=hosts, vms=vms, **options)
        self.paces: dict[str, PollingPace] = {}
        self.counted = RequestTotals()
        self.behind: list[tuple[float, float]] = []
        self.looks = 0
        self.names = FleetDirectory(self.world.store)
        self.metrics = self.world.do(self._made())

    async def _made(self) -> ServiceMetrics:
        return ServiceMetrics(
            self.world.control, counted=lambda: self.counted, behind=lambda: self.behind, attend=self._attend
        )

    async def _attend(self, live: Sequence[Event]) -> Any:
        self.looks += 1
        return await polling_report(self.names, self.paces.get, self._by_scope, live)

    def _by_scope(self) -> list[tuple[str, PollingPace]]:
        asked = [(self.world.store.vm(key), pace) for key, pace in self.paces.items()]
        return [(vm.scope_id, pace) for vm, pace in asked if vm is not None]

    def asks(self, name: str, pace: PollingPace = LIVELY) -> None:
        vm = self.world.vm(name)
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=self.world.now, version="2020-07-01")
        self.world.do(self.world.store.record_observations([polled], []))
        self.paces[vm.key] = pace

    def text(self) -> str:
        self.metrics._fleet_counted_at = -1e9  # every look is a fresh one
        return self.world.do(self.metrics.render_all()).decode()

    def samples(self) -> Samples:
        families = read(self.text())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[f"forewarn_{name}", frozenset(labels.items())]


@pytest.fixture
def house_of() -> Iterator[Callable[..., House]]:
    made: list[House] = []

    def make(**options: Any) -> House:
        made.append(House(**options))
        return made[-1]

    yield make
    for house in made:
        house.metrics.close()
        house.world.close()


@pytest.fixture
def house(house_of: Callable[..., House]) -> House:
    return house_of()


def live_a_little(house: House) -> None:
    world = house.world
    [event] = world.ask(RequestedOperation.RESTART, "db")
    house.asks("db")
    world.advance(60)
    world.approve("db", event.id)
    world.advance(60)
    world.ask(RequestedOperation.EVICT, "spot")
    world.advance(3600)
    world.ask(RequestedOperation.DEALLOCATE, "db")
    world.advance(600)


def test_every_series_is_there_from_the_first_scrape_and_none_comes_later(house: House) -> None:
    before = set(house.samples())
    live_a_little(house)
    assert set(house.samples()) == before


def test_no_label_tells_a_vm_an_event_or_a_scope(house: House) -> None:
    live_a_little(house)
    assert not re.search('web-|"db|spot|00000000-|lab/', house.text())


def test_the_notice_promised_and_got_and_the_time_until_approval(house: House) -> None:
    [event] = house.world.ask(RequestedOperation.RESTART, "db")
    assert house.value("notice_promised_seconds_sum", kind="Reboot") == 900
    assert house.value("notice_promised_seconds_bucket", kind="Reboot", le="901.0") == 1
    assert house.value("notice_promised_seconds_bucket", kind="Reboot", le="601.0") == 0
    assert house.value("notice_got_seconds_count", kind="Reboot") == 0
    house.world.advance(60)
    house.world.approve("db", event.id)
    assert house.value("approval_seconds_sum", kind="Reboot") == 60
    assert house.value("notice_got_seconds_sum", kind="Reboot") == 60
    assert house.value("events_started_total", kind="Reboot", why="approved") == 1
    house.world.advance(600)
    assert house.value("started_seconds_sum", kind="Reboot") == 30
    assert house.value("started_seconds_count", kind="Reboot") == 1
    assert house.value("events_over_total", kind="Reboot", ending="finished") == 1
    assert house.value("acts_total", verb="reboot", outcome="performed") == 1


def test_an_event_that_nobody_approves_is_due(house: House) -> None:
    house.world.ask(RequestedOperation.RESTART, "db")
    house.world.advance(1000)
    assert house.value("events_started_total", kind="Reboot", why="due") == 1
    assert house.value("events_started_total", kind="Reboot", why="early") == 0
    assert house.value("notice_got_seconds_sum", kind="Reboot") == 900
    assert house.value("approval_seconds_count", kind="Reboot") == 0


def test_a_host_that_fails_gives_no_notice_and_promises_none(house: House) -> None:
    house.world.do(house.world.control.requests.fail_host("h1", who="ann"))
    house.world.settle()
    assert house.value("events_started_total", kind="Redeploy", why="without_notice") > 0
    assert house.value("notice_promised_seconds_count", kind="Redeploy") == 0


def test_what_is_withdrawn_ended_so_and_never_started(house: House) -> None:
    [event] = house.world.ask(RequestedOperation.RESTART, "db")
    house.world.do(house.world.control.requests.withdraw(event.id, who="ann", reason="changed my mind"))
    assert house.value("events_over_total", kind="Reboot", ending="withdrawn") == 1
    assert house.value("started_seconds_count", kind="Reboot") == 0


def test_what_is_carried_out_at_once_is_no_event_but_its_acts_count(house: House) -> None:
    house.world.ask(RequestedOperation.DEALLOCATE, "db")
    house.world.advance(600)
    assert house.value("acts_total", verb="deallocate", outcome="performed") == 1
    assert not any(number for (name, _), number in house.samples().items() if name == "forewarn_events_over_total")


def test_events_that_are_not_over_are_a_gauge_with_the_age_of_the_oldest_that_started(house: House) -> None:
    [event] = house.world.ask(RequestedOperation.RESTART, "db")
    assert house.value("events", kind="Reboot", state="scheduled") == 1
    assert house.value("event_started_oldest_seconds") == 0
    house.world.do(house.world.control.guests.approve(house.world.vm("db").key, (event.id,)))
    house.world.do(house.world.control.reconciler.run_until_idle())
    assert house.value("events", kind="Reboot", state="scheduled") == 0
    assert house.value("events", kind="Reboot", state="started") == 1
    house.world.advance(10)
    assert house.value("event_started_oldest_seconds") == 10
    house.world.advance(600)
    assert house.value("events", kind="Reboot", state="started") == 0
    assert house.value("event_started_oldest_seconds") == 0


def test_acts_that_fail_and_acts_that_are_tried_again(house: House) -> None:
    house.world.hypervisor.set_behaviour(
        SimulatedBehaviour.from_rules([{"then": "unavailable", "times": 99, "verb": "reboot"}])
    )
    [event] = house.world.ask(RequestedOperation.RESTART, "db")
    house.world.approve("db", event.id)
    house.world.advance(3600)
    assert house.value("acts_total", verb="reboot", outcome="failed") == 1
    assert house.value("act_retries_total", verb="reboot") == 4
    assert house.value("events_over_total", kind="Reboot", ending="failed") == 1


def test_what_is_live_when_the_service_starts_is_known_and_not_counted_again(house: House) -> None:
    [event] = house.world.ask(RequestedOperation.RESTART, "db")
    house.metrics.close()
    house.world.restart()
    house.names = FleetDirectory(house.world.store)
    house.metrics = house.world.do(house._made())
    assert house.value("events", kind="Reboot", state="scheduled") == 1
    assert house.value("notice_promised_seconds_count", kind="Reboot") == 0
    house.world.advance(60)
    house.world.approve("db", event.id)
    assert house.value("notice_got_seconds_sum", kind="Reboot") == 60


def test_who_asks_and_who_does_not(house: House) -> None:
    house.asks("web-0")
    house.asks("db", SILENT)
    house.world.ask(RequestedOperation.DEALLOCATE, "spot")
    house.world.advance(600)
    told = {word: house.value("vms", asks=word) for word in PollingState}
    assert told == {PollingState.ACTIVE: 1, PollingState.STOPPED: 1, PollingState.NEVER: 1, PollingState.OFF: 1}
    assert (house.value("scopes_enabled"), house.value("scopes_asking")) == (3, 1)


def test_vms_that_will_be_hit_unprepared_and_scopes_that_nobody_watches(house: House) -> None:
    house.asks("db")
    house.world.ask(RequestedOperation.RESTART, "db")
    house.world.ask(RequestedOperation.RESTART, "web-0")
    assert house.value("vms_unprepared") == 1
    assert house.value("scopes_unwatched") == 1
    house.world.advance(1000)
    assert house.value("vms_unprepared") == 0
    assert house.value("scopes_unwatched") == 0


def test_a_removed_vm_is_not_counted(house: House) -> None:
    before = house.value("vms", asks="never")
    house.world.ask(RequestedOperation.DELETE, "db")
    house.world.advance(3600)
    assert house.value("vms", asks="never") == before - 1


def test_the_fleet_is_counted_once_in_a_while_however_many_ask(house: House) -> None:
    house.text()
    looks = house.looks
    for _ in range(5):
        house.world.do(house.metrics.render_all())
    assert house.looks == looks


def test_writes_that_fail_are_counted(house_of: Callable[..., House]) -> None:
    store = MemoryStore()
    house = house_of(store=store)
    store.fail_next(Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        house.world.do(
            house.world.control.requests.request_for_vms(RequestedOperation.RESTART, [house.world.vm("db")], who="ann")
        )
    assert house.value("store_write_failures_total") == 1


def test_what_is_due_and_not_done_is_late(house: House) -> None:
    house.world.ask(RequestedOperation.RESTART, "db")
    assert house.value("reconciler_lag_seconds") == 0
    house.world.clock.apply_setting(house.world.clock.setting_after_jump(house.world.now + 900 + 42))
    assert house.value("reconciler_lag_seconds") == pytest.approx(42, abs=1.1)
    house.world.settle()
    house.world.advance(60)
    assert house.value("reconciler_lag_seconds") == 0


def test_workers_are_told_apart_by_number_and_a_missing_one_is_infinitely_late(house: House) -> None:
    assert "forewarn_worker_silent_seconds{" not in house.text()
    house.behind = [(0.01, 0.2), (float("inf"), float("inf"))]
    assert house.value("worker_silent_seconds", worker="1") == 0.2
    assert house.value("worker_lag_seconds", worker="1") == 0.01
    assert house.value("worker_silent_seconds", worker="2") == float("inf")


def test_the_owner_leaves_to_workers_what_they_answered(house: House) -> None:
    house.counted = RequestTotals(answered=(("poll", "2020-07-01", 200, 7),))
    own = house.world.do(house.metrics.render_own()).decode()
    assert 'forewarn_polls_total{outcome="200",version="2020-07-01"} 7.0' in own
    house.behind = [(0.0, 0.0)]
    assert "forewarn_polls_total" not in house.world.do(house.metrics.render_own()).decode()
    assert house.value("polls_total", outcome="200", version="2020-07-01") == 7


def test_two_services_in_a_process_count_for_themselves(house_of: Callable[..., House]) -> None:
    one, other = house_of(), house_of()
    one.world.ask(RequestedOperation.RESTART, "db")
    assert other.value("notice_promised_seconds_count", kind="Reboot") == 0


def test_every_metric_is_documented_with_its_labels(house: House) -> None:
    house.behind = [(0.0, 0.0)]
    rows = re.findall(r"^\| `(forewarn_\w+)` \| (.*?) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name.removesuffix("_total"): set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    ours = {family.name: family for family in read(house.text()) if family.name.startswith("forewarn_")}
    shown = {name: {label for s in family.samples for label in s.labels} - {"le"} for name, family in ours.items()}
    assert documented == {**shown, "forewarn_worker_heard_seconds": set()}
