"""Request metrics: few labels, and all series exist from the start."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families as read

from forewarn.core.faults import Fault, FaultKind
from forewarn.metadata import Limits
from forewarn.metadata.metrics import CODE_LABELS, VERSION_LABELS, RequestMetrics
from forewarn.metadata.request_counters import RequestTotals, sum_totals
from tests.metadata.conftest import MakeRequest, RunScenario, World

OLD = "/metadata/scheduledevents?api-version=2017-08-01"


def samples(totals: RequestTotals) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    registry.register(RequestMetrics(lambda: totals))
    families = read(generate_latest(registry).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(totals: RequestTotals, name: str, **labels: str) -> float:
    return samples(totals)[f"forewarn_{name}", frozenset(labels.items())]


def test_every_metric_series_exists_from_the_start() -> None:
    rows = [
        (of, version, status, 1)
        for of in ("poll", "approval", "instance", "token", "unknown caller", "other", "unheard of")
        for version in (*VERSION_LABELS, "")
        for status in (0, 200, 304, 400, 404, 410, 429, 500, 503)
        if of != "poll" or version
    ]
    before, after = samples(RequestTotals()), samples(RequestTotals(answered=tuple(rows), accepted=5))
    assert set(before) == set(after)
    assert not any(before.values())
    total = sum(
        number for (name, _), number in after.items() if name in ("forewarn_polls_total", "forewarn_requests_total")
    )
    assert total == len(rows)


def test_polls_are_counted_by_version_and_code(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            tag = (await client.ask()).headers["etag"]
        await client.ask(If_None_Match=tag)
        await client.ask(OLD)
        await client.ask("/metadata/scheduledevents?api-version=2031-01-01")
        await client.ask("/metadata/scheduledevents")
        await client.ask(method="POST", body=b'{"StartRequests":[]}')
        await client.ask("/metadata/instance?api-version=2021-02-01")
        await world.ask(vm="unknown")
        totals = world.server.request_totals()
        assert value(totals, "polls_total", version="2020-07-01", code="200") == 3
        assert value(totals, "polls_total", version="2020-07-01", code="304") == 1
        assert value(totals, "polls_total", version="2017-08-01", code="200") == 1
        assert value(totals, "polls_total", version="other", code="4xx") == 1
        assert value(totals, "polls_total", version="none", code="4xx") == 1
        assert value(totals, "requests_total", route="approval", code="200") == 1
        assert value(totals, "requests_total", route="instance", code="200") == 1
        assert value(totals, "requests_total", route="unknown_caller", code="4xx") == 1
        assert value(totals, "connections_opened_total", outcome="accepted") == 2
        assert value(totals, "connections") == 1  # the unknown caller was disconnected

    run_scenario(scenario)


def test_rate_limited_polls_are_counted_as_throttled(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        statuses = [(await client.ask()).status for _ in range(4)]
        assert 429 in statuses
        assert value(world.server.request_totals(), "polls_total", version="2020-07-01", code="429") == statuses.count(
            429
        )

    run_scenario(scenario, limits=Limits(requests_per_s=1))


def test_resets_and_store_failures_are_counted(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        world.server.set_faults(
            [Fault(id="f", kind=FaultKind.RESET, set_by="ann", set_at=0.0, name="a", vm="a", count=1)]
        )
        client = await world.connect()
        path = b"/metadata/scheduledevents?api-version=2020-07-01"
        client.send(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n")
        assert await client.is_closed()
        world.backend.is_unavailable = True
        assert (await world.ask(method="POST", body=b'{"StartRequests":[{"EventId":"E"}]}')).status == 503
        totals = world.server.request_totals()
        assert value(totals, "polls_total", version="2020-07-01", code="reset") == 1
        assert value(totals, "requests_total", route="approval", code="5xx") == 1

    run_scenario(scenario)


def test_held_polls_are_a_gauge(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        client.send(request_bytes(If_None_Match=tag, Prefer="wait=300"))
        await world.until(lambda: world.server.counters.held == 1)
        assert value(world.server.request_totals(), "long_polls_waiting") == 1
        client.reset()
        await world.until(lambda: world.server.counters.held == 0)
        assert value(world.server.request_totals(), "long_polls_waiting") == 0

    run_scenario(scenario)


def test_the_counts_of_processes_are_summed_and_outlive_a_process() -> None:
    one = RequestTotals(answered=(("poll", "2020-07-01", 200, 3),), accepted=2, held=1, connections=2)
    other = RequestTotals(
        answered=(("poll", "2020-07-01", 200, 4), ("token", "", 200, 1)), accepted=1, refused=1, held=5
    )
    assert sum_totals(one.without_gauges(), other) == RequestTotals(
        answered=(("poll", "2020-07-01", 200, 7), ("token", "", 200, 1)), accepted=3, refused=1, held=5
    )
    assert sum_totals() == RequestTotals()


@pytest.mark.parametrize("label", ["version", "code", "route"])
def test_the_values_of_metric_labels_are_bounded(label: str) -> None:
    registry = CollectorRegistry()
    strange = tuple((f"of-{n}", f"version-{n}", 200 + n, 1) for n in range(400))
    registry.register(RequestMetrics(lambda: RequestTotals(answered=strange)))
    found = set(re.findall(rf'{label}="([^"]+)"', generate_latest(registry).decode()))
    assert found <= {
        *VERSION_LABELS,
        *CODE_LABELS,
        "approval",
        "instance",
        "token",
        "unknown_caller",
        "other",
        "accepted",
        "refused",
    }
