"""The metrics of events, fleet and service, read from a world in virtual time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from forewarn.control.directory import FleetDirectory
from forewarn.control.executor import ActLimits
from forewarn.core.event import Event
from forewarn.core.explain.polling import SILENCE_LIMIT_S, PollingPace, PollingState
from forewarn.core.fleet import Priority
from forewarn.core.history import LastPoll
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unavailable
from forewarn.machines.simulated import SimulatedBehaviour
from forewarn.metadata.request_counters import RequestTotals
from forewarn.store.memory import MemoryStore
from forewarn.web.metrics import ServiceMetrics
from forewarn.web.polling_report import polling_report
from tests.support.hanging_hypervisor import HangingHostHypervisor
from tests.support.world import World, a_host, a_vm

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
POLLING, SILENT = PollingPace(1.0), PollingPace(SILENCE_LIMIT_S + 1)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class MeteredWorld:
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
        self.request_totals = RequestTotals()
        self.worker_lags: list[tuple[float, float]] = []
        self.fleet_counts = 0
        self.names = FleetDirectory(self.world.store)
        self.metrics = self.world.do(self._new_metrics())

    async def _new_metrics(self) -> ServiceMetrics:
        return ServiceMetrics(
            self.world.control,
            request_totals=lambda: self.request_totals,
            worker_lags=lambda: self.worker_lags,
            count_polling=self._count_polling,
        )

    async def _count_polling(self, live: Sequence[Event]) -> Any:
        self.fleet_counts += 1
        return await polling_report(self.names, self.paces.get, self._paces_by_scope, live)

    def _paces_by_scope(self) -> list[tuple[str, PollingPace]]:
        vms = [(self.world.store.vm(key), pace) for key, pace in self.paces.items()]
        return [(vm.scope_id, pace) for vm, pace in vms if vm is not None]

    def record_poll(self, name: str, pace: PollingPace = POLLING) -> None:
        vm = self.world.vm(name)
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=self.world.now, version="2020-07-01")
        self.world.do(self.world.store.record_observations([polled], []))
        self.paces[vm.key] = pace

    def text(self) -> str:
        self.metrics._fleet_counted_at = -1e9  # count the fleet at every scrape
        return self.world.do(self.metrics.render_all()).decode()

    def samples(self) -> Samples:
        families = read(self.text())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[f"forewarn_{name}", frozenset(labels.items())]


@pytest.fixture
def make_metered() -> Iterator[Callable[..., MeteredWorld]]:
    made: list[MeteredWorld] = []

    def make(**options: Any) -> MeteredWorld:
        made.append(MeteredWorld(**options))
        return made[-1]

    yield make
    for metered in made:
        metered.metrics.close()
        metered.world.close()


@pytest.fixture
def metered(make_metered: Callable[..., MeteredWorld]) -> MeteredWorld:
    return make_metered()


def run_some_events(metered: MeteredWorld) -> None:
    world = metered.world
    [event] = world.ask(RequestedOperation.RESTART, "db")
    metered.record_poll("db")
    world.advance(60)
    world.approve("db", event.id)
    world.advance(60)
    world.ask(RequestedOperation.EVICT, "spot")
    world.advance(3600)
    world.ask(RequestedOperation.DEALLOCATE, "db")
    world.advance(600)


def test_every_series_exists_from_the_first_scrape_and_none_is_added_later(metered: MeteredWorld) -> None:
    before = set(metered.samples())
    run_some_events(metered)
    assert set(metered.samples()) == before


def test_no_label_names_a_vm_an_event_or_a_scope(metered: MeteredWorld) -> None:
    run_some_events(metered)
    assert not re.search('web-|"db|spot|00000000-|lab/', metered.text())


def test_notice_promised_notice_given_and_time_to_approval_are_measured(metered: MeteredWorld) -> None:
    [event] = metered.world.ask(RequestedOperation.RESTART, "db")
    assert metered.value("notice_promised_seconds_sum", kind="Reboot") == 900
    assert metered.value("notice_promised_seconds_bucket", kind="Reboot", le="901.0") == 1
    assert metered.value("notice_promised_seconds_bucket", kind="Reboot", le="601.0") == 0
    assert metered.value("notice_given_seconds_count", kind="Reboot") == 0
    metered.world.advance(60)
    metered.world.approve("db", event.id)
    assert metered.value("approval_seconds_sum", kind="Reboot") == 60
    assert metered.value("notice_given_seconds_sum", kind="Reboot") == 60
    assert metered.value("events_started_total", kind="Reboot", reason="approved") == 1
    metered.world.advance(600)
    assert metered.value("started_seconds_sum", kind="Reboot") == 30
    assert metered.value("started_seconds_count", kind="Reboot") == 1
    assert metered.value("events_over_total", kind="Reboot", ending="finished") == 1
    assert metered.value("acts_total", verb="reboot", outcome="performed") == 1


def test_an_event_without_approval_starts_as_due(metered: MeteredWorld) -> None:
    metered.world.ask(RequestedOperation.RESTART, "db")
    metered.world.advance(1000)
    assert metered.value("events_started_total", kind="Reboot", reason="due") == 1
    assert metered.value("events_started_total", kind="Reboot", reason="early") == 0
    assert metered.value("notice_given_seconds_sum", kind="Reboot") == 900
    assert metered.value("approval_seconds_count", kind="Reboot") == 0


def test_a_host_failure_starts_events_without_notice(metered: MeteredWorld) -> None:
    metered.world.do(metered.world.control.requests.fail_host("h1", who="ann"))
    metered.world.settle()
    assert metered.value("events_started_total", kind="Redeploy", reason="without_notice") > 0
    assert metered.value("notice_promised_seconds_count", kind="Redeploy") == 0


def test_a_withdrawn_event_is_counted_as_over_but_not_as_started(metered: MeteredWorld) -> None:
    [event] = metered.world.ask(RequestedOperation.RESTART, "db")
    metered.world.do(metered.world.control.requests.withdraw(event.id, who="ann", reason="changed my mind"))
    assert metered.value("events_over_total", kind="Reboot", ending="withdrawn") == 1
    assert metered.value("started_seconds_count", kind="Reboot") == 0


def test_an_operation_without_an_event_counts_its_acts_only(metered: MeteredWorld) -> None:
    metered.world.ask(RequestedOperation.DEALLOCATE, "db")
    metered.world.advance(600)
    assert metered.value("acts_total", verb="deallocate", outcome="performed") == 1
    assert not any(number for (name, _), number in metered.samples().items() if name == "forewarn_events_over_total")


def test_live_events_are_gauges_with_the_age_of_the_oldest_started_one(metered: MeteredWorld) -> None:
    [event] = metered.world.ask(RequestedOperation.RESTART, "db")
    assert metered.value("events", kind="Reboot", state="scheduled") == 1
    assert metered.value("event_started_oldest_seconds") == 0
    metered.world.do(metered.world.control.guests.approve(metered.world.vm("db").key, (event.id,)))
    metered.world.do(metered.world.control.reconciler.catch_up())
    assert metered.value("events", kind="Reboot", state="scheduled") == 0
    assert metered.value("events", kind="Reboot", state="started") == 1
    metered.world.advance(10)
    assert metered.value("event_started_oldest_seconds") == 10
    metered.world.advance(600)
    assert metered.value("events", kind="Reboot", state="started") == 0
    assert metered.value("event_started_oldest_seconds") == 0


def test_failed_acts_and_retried_acts_are_counted(metered: MeteredWorld) -> None:
    metered.world.hypervisor.set_behaviour(
        SimulatedBehaviour.from_rules([{"then": "unavailable", "times": 99, "verb": "reboot"}])
    )
    [event] = metered.world.ask(RequestedOperation.RESTART, "db")
    metered.world.approve("db", event.id)
    metered.world.advance(3600)
    assert metered.value("acts_total", verb="reboot", outcome="failed") == 1
    assert metered.value("act_retries_total", verb="reboot") == 4
    assert metered.value("events_over_total", kind="Reboot", ending="failed") == 1


def test_live_events_are_known_after_a_restart_and_not_counted_again(metered: MeteredWorld) -> None:
    [event] = metered.world.ask(RequestedOperation.RESTART, "db")
    metered.metrics.close()
    metered.world.restart()
    metered.names = FleetDirectory(metered.world.store)
    metered.metrics = metered.world.do(metered._new_metrics())
    assert metered.value("events", kind="Reboot", state="scheduled") == 1
    assert metered.value("notice_promised_seconds_count", kind="Reboot") == 0
    metered.world.advance(60)
    metered.world.approve("db", event.id)
    assert metered.value("notice_given_seconds_sum", kind="Reboot") == 60


def test_vms_are_counted_by_polling_state(metered: MeteredWorld) -> None:
    metered.record_poll("web-0")
    metered.record_poll("db", SILENT)
    metered.world.ask(RequestedOperation.DEALLOCATE, "spot")
    metered.world.advance(600)
    counts = {state: metered.value("vms", polling=state) for state in PollingState}
    assert counts == {PollingState.ACTIVE: 1, PollingState.STOPPED: 1, PollingState.NEVER: 1, PollingState.OFF: 1}
    assert (metered.value("scopes_enabled"), metered.value("scopes_polling")) == (3, 1)


def test_vms_without_handler_and_unwatched_scopes_are_counted(metered: MeteredWorld) -> None:
    metered.record_poll("db")
    metered.world.ask(RequestedOperation.RESTART, "db")
    metered.world.ask(RequestedOperation.RESTART, "web-0")
    assert metered.value("vms_without_handler") == 1
    assert metered.value("scopes_unwatched") == 1
    metered.world.advance(1000)
    assert metered.value("vms_without_handler") == 0
    assert metered.value("scopes_unwatched") == 0


def test_a_removed_vm_is_not_counted(metered: MeteredWorld) -> None:
    before = metered.value("vms", polling="never")
    metered.world.ask(RequestedOperation.DELETE, "db")
    metered.world.advance(3600)
    assert metered.value("vms", polling="never") == before - 1


def test_the_fleet_count_is_reused_for_scrapes_in_quick_succession(metered: MeteredWorld) -> None:
    metered.text()
    fleet_counts = metered.fleet_counts
    for _ in range(5):
        metered.world.do(metered.metrics.render_all())
    assert metered.fleet_counts == fleet_counts


def test_failed_store_writes_are_counted(make_metered: Callable[..., MeteredWorld]) -> None:
    store = MemoryStore()
    metered = make_metered(store=store)
    store.fail_next(Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        metered.world.do(
            metered.world.control.requests.request_for_vms(
                RequestedOperation.RESTART, [metered.world.vm("db")], who="ann"
            )
        )
    assert metered.value("store_write_failures_total") == 1


def test_overdue_work_shows_as_reconciler_lag(metered: MeteredWorld) -> None:
    metered.world.ask(RequestedOperation.RESTART, "db")
    assert metered.value("reconciler_lag_seconds") == 0
    metered.world.clock.apply_setting(metered.world.clock.setting_after_jump(metered.world.now + 900 + 42))
    assert metered.value("reconciler_lag_seconds") == pytest.approx(42, abs=1.1)
    metered.world.settle()
    metered.world.advance(60)
    assert metered.value("reconciler_lag_seconds") == 0


def test_workers_are_labelled_by_number_and_a_missing_one_is_infinitely_silent(metered: MeteredWorld) -> None:
    assert "forewarn_worker_silent_seconds{" not in metered.text()
    metered.worker_lags = [(0.01, 0.2), (float("inf"), float("inf"))]
    assert metered.value("worker_silent_seconds", worker="1") == 0.2
    assert metered.value("worker_lag_seconds", worker="1") == 0.01
    assert metered.value("worker_silent_seconds", worker="2") == float("inf")


def test_the_owner_does_not_export_the_requests_that_workers_export(metered: MeteredWorld) -> None:
    metered.request_totals = RequestTotals(answered=(("poll", "2020-07-01", 200, 7),))
    own = metered.world.do(metered.metrics.render_own()).decode()
    assert 'forewarn_polls_total{code="200",version="2020-07-01"} 7.0' in own
    metered.worker_lags = [(0.0, 0.0)]
    assert "forewarn_polls_total" not in metered.world.do(metered.metrics.render_own()).decode()
    assert metered.value("polls_total", code="200", version="2020-07-01") == 7


def test_two_services_in_one_process_have_separate_metrics(make_metered: Callable[..., MeteredWorld]) -> None:
    one, other = make_metered(), make_metered()
    one.world.ask(RequestedOperation.RESTART, "db")
    assert other.value("notice_promised_seconds_count", kind="Reboot") == 0


def test_every_metric_is_documented_with_its_labels(metered: MeteredWorld) -> None:
    metered.worker_lags = [(0.0, 0.0)]
    page = DOCS.read_text(encoding="utf-8").partition("\n## Host nodes")[0]  # the rest is of other processes
    rows = re.findall(r"^\| `(forewarn_\w+)` (.*?)\|", page, re.MULTILINE)
    documented = {name.removesuffix("_total"): set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    families = {family.name: family for family in read(metered.text()) if family.name.startswith("forewarn_")}
    exported = {
        name: {label for s in family.samples for label in s.labels} - {"le"} for name, family in families.items()
    }
    assert documented == {**exported, "forewarn_worker_last_message_seconds": set()}


def test_acts_that_the_hypervisor_does_not_answer_are_counted(make_metered: Callable[..., MeteredWorld]) -> None:
    limits = ActLimits(per_host=1, unanswered_after_s=0.001)
    metered = make_metered(hypervisor=HangingHostHypervisor("h1"), limits=limits)
    assert metered.value("acts_unanswered") == metered.value("act_unanswered_oldest_seconds") == 0
    metered.world.ask(RequestedOperation.POWER_OFF, "web-0", "db")
    assert metered.value("acts_in_progress") == metered.value("acts_unanswered") == 1
    assert metered.value("act_unanswered_oldest_seconds") > 0
    assert metered.value("acts_waiting_for_host") == 1
