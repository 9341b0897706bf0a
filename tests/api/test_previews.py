"""Previews: they need the rights of the request, refuse with the same words, and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"


def unchanged(api: Any, target: str, body: Any = None) -> Any:
    before = api.stored()
    answer = api.post(target, body)
    assert api.stored() == before
    return answer


def test_a_preview_of_a_request_shows_its_events(api: Any) -> None:
    shown = unchanged(api, "/requests/preview", {"operation": "restart", "vms": ["db", "web-0"]})
    (done,) = [api.post("/requests", {"operation": "restart", "vms": ["db", "web-0"]})]
    facts = ("scope", "kind", "vms", "published_at", "not_before", "listed")
    assert [[e[f] for f in facts] for e in shown["events"]] == [[e[f] for f in facts] for e in done["events"]]
    assert shown["summary"][0] == "2 events over 2 VMs, published at once."


def test_a_preview_of_a_rollout_shows_one_update_domain_after_the_other(api: Any) -> None:
    """Spec §6.2."""
    shown = unchanged(api, "/rollouts/preview", {"impact": "reboot", "scope": "web"})
    assert [(e["batch"], e["update_domain"], e["vms"]) for e in shown["events"]] == [
        (1, 0, ["web-0"]),
        (2, 1, ["web-1"]),
        (3, 2, ["web-2"]),
    ]
    assert shown["summary"] == [
        "Reboot of 3 VMs in 1 wave: web.",
        "If nobody approves, it is over in 46 min 30 s.",
    ]


def test_a_preview_of_a_rollout_that_cannot_end_says_why_as_its_plan_does(api: Any) -> None:
    """Spec §13.6."""
    api.post("/budgets", {"name": "all", "max_vms": 1})
    body = {"impact": "reboot", "hosts": ["h1", "h2", "h3"]}
    plan, shown = api.post("/rollouts/plan", body), api.post("/rollouts/preview", body)
    assert 'the budget "all" allows 1 of ' in shown["summary"][-1]
    assert set(shown["summary"]) <= set(plan["summary"])


def test_a_preview_of_a_host_failure_shows_the_vms_that_must_leave(api: Any) -> None:
    shown = unchanged(api, "/hosts/h1/degrade/preview", {"in_s": 7 * 86400})
    assert sorted(name for event in shown["events"] for name in event["vms"]) == ["db", "pool_0", "pool_1", "web-0"]
    shown = unchanged(api, "/hosts/h1/fail/preview")
    assert {event["starts_at"] == event["published_at"] for event in shown["events"]} == {True}
    assert shown["summary"] == [
        "4 events over 4 VMs, published at once.",
        "4 events start at once, without notice: web-0, db, pool_0, pool_1.",
        "If every act takes its usual time, everything is done in 2 min.",
    ]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/requests", {"operation": "evict", "vms": ["db"]}),
        ("/requests", {"operation": "restart", "vms": ["db", "DB"]}),
        ("/requests", {"operation": "restart", "vms": ["nobody"]}),
        ("/requests", {"operation": "restart", "vms": ["db"], "notice_s": 10}),
        ("/rollouts", {"impact": "update"}),
        ("/rollouts", {"impact": "update", "hosts": ["h9"]}),
        ("/rollouts", {"impact": "update", "hosts": ["h1"], "notice_s": 10}),
        ("/hosts/h1/degrade", {"in_s": 10}),
        ("/hosts/h9/fail", None),
    ],
)
def test_a_preview_refuses_with_the_same_words_as_the_request(api: Any, target: str, body: Any) -> None:
    assert api.refused("POST", f"{target}/preview", body) == api.refused("POST", target, body)


def test_a_preview_needs_the_same_right_as_the_request(api: Any) -> None:
    operator = api.holding("Operator", DB)
    assert operator.post("/requests/preview", {"operation": "restart", "vms": ["db"]})["vms"] == 1
    assert operator.call("POST", "/requests/preview", {"operation": "restart", "vms": ["web-0"]}).status == 404
    assert operator.call("POST", "/rollouts/preview", {"impact": "update", "hosts": ["h1"]}).status == 403
    reader = api.holding("Reader", "/")
    assert reader.call("POST", "/requests/preview", {"operation": "restart", "vms": ["db"]}).status == 403


def test_a_preview_of_a_disabled_scope_says_that_it_happens_at_once(asleep: Any) -> None:
    """Spec §8.2."""
    shown = unchanged(asleep, "/requests/preview", {"operation": "restart", "vms": ["db"]})
    assert [(event["listed"], event["kind"]) for event in shown["events"]] == [(False, None)]
    assert "disabled there" in shown["summary"][0]


def test_concurrent_previews_of_one_caller_run_one_after_the_other(api_of: Callable[..., Any]) -> None:
    api = api_of()

    async def several() -> list[int]:
        calls = [api.calling("POST", "/requests/preview", {"operation": "restart", "vms": ["db"]}) for _ in range(5)]
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert api.world.do(several()) == [200] * 5
