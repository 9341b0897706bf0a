"""`Idempotency-Key`: a repeated call is one request, also after a restart and at the same time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.commit import Commit
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
from forewarn.web.api_routes import ROUTES
from tests.support.operator_api import Answer, Api, make_world

RESTART = {"operation": "restart", "vms": ["db"]}
RECORDING = {
    "vm": "theirs",
    "api_version": "2020-07-01",
    "started_at": "2020-09-13T12:26:40Z",
    "answers": [
        {
            "at_s": 0,
            "date": "2020-09-13T12:26:40Z",
            "status": 200,
            "body": "eyJEb2N1bWVudEluY2FybmF0aW9uIjoxLCJFdmVudHMiOltdfQ==",
        },
    ],
}
# Every route that creates requests, with a call that it accepts.
CALLS: dict[str, tuple[str, Any]] = {
    "/requests": ("/requests", RESTART),
    "/rollouts": ("/rollouts", {"impact": "reboot", "hosts": ["h1"]}),
    "/replays": ("/replays", {"vm": "db", "recording": RECORDING}),
    "/hosts/{name}/degrade": ("/hosts/h1/degrade", {"in_s": 3600}),
    "/hosts/{name}/fail": ("/hosts/h1/fail", None),
    "/vms/{name:path}/perform-maintenance": ("/vms/db/perform-maintenance", None),
}
KEYED_ROUTES = [route.path for route in ROUTES if route.show_repeated is not None]


def call(api: Api, target: str, body: Any, key: str = "k1") -> Answer:
    return api.call("POST", target, body, headers={"idempotency-key": key})


def request_id(answer: Answer) -> str:
    """The id of the request, rollout or replay that an answer is about."""
    view = answer.json
    return str(view.get("request", view)["id"])


def prepared(api: Api, route: str) -> Api:
    """The API, with pending maintenance of `db` if the route needs that."""
    if route.endswith("perform-maintenance"):
        api.post("/rollouts", {"impact": "reboot", "hosts": ["h1"]})
    return api


@pytest.mark.parametrize("route", KEYED_ROUTES)
def test_a_repeated_call_with_the_same_key_is_one_request(api: Api, route: str) -> None:
    before = len(prepared(api, route).world.store.requests())
    first, second = call(api, *CALLS[route]), call(api, *CALLS[route])
    assert first.status == second.status, second.content
    assert first.status in (200, 202)
    assert request_id(first) == request_id(second)
    assert len(api.world.store.requests()) == before + 1


@pytest.mark.parametrize("route", KEYED_ROUTES)
def test_without_a_key_a_repeated_call_is_another_request_or_refused(api: Api, route: str) -> None:
    prepared(api, route)
    target, body = CALLS[route]
    first, second = api.call("POST", target, body), api.call("POST", target, body)
    assert first.status in (200, 202)
    assert second.status == 409 or request_id(first) != request_id(second)


@pytest.mark.parametrize("route", KEYED_ROUTES)
def test_calls_with_one_key_at_the_same_time_are_one_request(api: Api, route: str) -> None:
    before = len(prepared(api, route).world.store.requests())
    target, body = CALLS[route]

    async def at_once() -> list[Answer]:
        return await asyncio.gather(
            *(api.calling("POST", target, body, headers={"idempotency-key": "k1"}) for _ in range(8))
        )

    answers = api.world.do(at_once())
    assert {answer.status for answer in answers} <= {200, 202}
    assert len({request_id(answer) for answer in answers}) == 1
    assert len(api.world.store.requests()) == before + 1


def test_a_call_repeated_after_a_restart_is_one_request(tmp_path: Path) -> None:
    """A restart and a failover leave only what the store has: the key is part of it."""
    world = make_world(store=SqliteStore.open(tmp_path / "forewarn.db"))
    first = call(Api(world), "/requests", RESTART)
    world.do(world.store.close())
    world.store = SqliteStore.open(tmp_path / "forewarn.db")
    world.restart()
    second = call(Api(world), "/requests", RESTART)
    requests = world.store.requests()
    world.close()
    assert (first.status, first.json) == (second.status, second.json)
    assert [request.id for request in requests] == [request_id(first)]


class HeldStore(MemoryStore):
    """A store that can hold its commits; one whose caller is cancelled meanwhile is written all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.held = 0

    async def commit(self, commit: Commit) -> int:
        return await asyncio.shield(asyncio.create_task(self._commit_when_open(commit)))

    async def _commit_when_open(self, commit: Commit) -> int:
        self.held += 1
        await self.is_open.wait()
        return await super().commit(commit)


def test_a_call_repeated_after_the_first_one_was_cancelled_is_one_request(api_of: Callable[..., Api]) -> None:
    """The client of the first call is gone, but its request is still being written."""
    store = HeldStore()
    api = api_of(store=store)

    async def cancelled_then_repeated() -> Answer:
        def start() -> asyncio.Task[Answer]:
            return asyncio.create_task(api.calling("POST", "/requests", RESTART, headers={"idempotency-key": "k1"}))

        store.is_open.clear()
        before, first = store.held, start()
        await _until(lambda: store.held == before + 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = start()
        await _until(lambda: store.held == before + 2)
        store.is_open.set()
        return await second

    answer = api.world.do(cancelled_then_repeated())
    assert answer.status == 202, answer.content
    assert [request.id for request in store.requests()] == [request_id(answer)]
    assert len(store.events()) == 1


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never became true")


def test_a_repeated_call_shows_the_request_as_it_is_now(api: Api) -> None:
    first = call(api, "/requests", RESTART)
    api.world.advance(15 * 60)
    second = call(api, "/requests", RESTART)
    assert [event["status"] for event in first.json["events"]] == ["scheduled"]
    assert [event["status"] for event in second.json["events"]] == ["started"]


def test_a_call_is_repeated_even_if_it_could_not_be_made_now(api: Api) -> None:
    body = {"operation": "delete", "vms": ["pool_0"]}
    first = call(api, "/requests", body)
    api.world.advance(3600)
    assert api.call("POST", "/requests", body).status == 404
    second = call(api, "/requests", body)
    assert (second.status, request_id(second)) == (202, request_id(first))


DIFFERENT = {
    "another VM": ("/requests", {"operation": "restart", "vms": ["web-0"]}),
    "another operation": ("/requests", {"operation": "redeploy", "vms": ["db"]}),
    "another route": ("/rollouts", {"impact": "reboot", "hosts": ["h1"]}),
    "another host": ("/hosts/h2/fail", None),
}


@pytest.mark.parametrize(("target", "body"), DIFFERENT.values(), ids=DIFFERENT)
def test_the_same_key_with_another_call_is_rejected_and_changes_nothing(api: Api, target: str, body: Any) -> None:
    known = request_id(call(api, "/requests", RESTART))
    before = api.stored()
    assert call(api, target, body).error == (
        400,
        "Rejected",
        f"the key of this call is that of request {known}, which asked for something else: "
        "give each request an Idempotency-Key of its own",
    )
    assert api.stored() == before


def test_blanks_and_the_order_of_members_do_not_make_another_call(api: Api) -> None:
    first = call(api, "/requests", b'{"operation": "restart", "vms": ["db"]}')
    second = call(api, "/requests", b'{"vms":["db"],"operation":"restart"}')
    assert request_id(first) == request_id(second)


def test_the_key_of_a_rejected_call_can_be_used_again(api: Api) -> None:
    assert call(api, "/requests", {"operation": "restart", "vms": ["nobody"]}).status == 404
    assert call(api, "/requests", RESTART).status == 202


def test_two_callers_with_the_same_key_make_two_requests(api: Api) -> None:
    bob = api.holding("Administrator", "/", name="client bob")
    first = call(api, "/requests", RESTART)
    second = call(bob, "/requests", {"operation": "restart", "vms": ["web-0"]})
    assert (first.status, second.status) == (202, 202)
    assert request_id(first) != request_id(second)


def test_a_caller_who_lost_the_right_to_see_the_request_is_not_shown_it(api: Api) -> None:
    user = "oidc:ann"
    with_rights = api.holding("Operator", "/", name=user)
    without = api.holding("Operator", name=user)
    assert call(with_rights, "/requests", RESTART).status == 202
    assert call(without, "/requests", RESTART).status == 404


BAD_KEYS = {"empty": "", "too long": "k" * 256, "not ASCII": "schlüssel", "with a line break": "a\tb"}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_bad_key_is_rejected_with_one_sentence(api: Api, key: str) -> None:
    before = api.stored()
    status, code, message = call(api, "/requests", RESTART, key).error
    assert (status, code) == (400, "Rejected")
    assert message.startswith("the header Idempotency-Key is not valid: send it once")
    assert api.stored() == before


def test_a_key_is_forgotten_with_its_request(api: Api) -> None:
    first = call(api, "/requests", {"operation": "reapply", "vms": ["db"]})
    api.world.advance(40 * 86400)
    api.world.do(api.world.store.prune(api.world.now))
    second = call(api, "/requests", RESTART)
    assert (second.status, request_id(second)) == (202, request_id(first))
    assert second.json["request"]["operation"] == "restart"


def test_a_call_that_creates_no_request_ignores_the_key(api: Api) -> None:
    body = {"kind": "gone", "vm": "db"}
    first, second = call(api, "/faults", body), call(api, "/faults", body)
    assert (first.status, second.status) == (200, 200)
    assert first.json["id"] != second.json["id"]


def test_openapi_has_the_header_for_each_route_that_creates_requests(api: Api) -> None:
    paths = api.get("/openapi.json")["paths"]
    found = [
        path
        for path, methods in paths.items()
        for parameter in methods.get("post", {}).get("parameters", ())
        if (parameter["in"], parameter["name"]) == ("header", "Idempotency-Key")
    ]
    assert sorted(found) == sorted(path.replace(":path", "") for path in KEYED_ROUTES)


def test_every_route_that_creates_requests_takes_a_key(api: Api) -> None:
    """A route whose answer names a new request has a way to repeat it."""
    assert sorted(KEYED_ROUTES) == sorted(CALLS)


def test_a_request_without_a_key_is_stored_without_a_digest(api: Api) -> None:
    api.post("/requests", RESTART)
    (request,) = api.world.store.requests()
    assert (request.call_digest, request.called_at) == ("", 0)


def test_the_answer_of_a_request_does_not_show_its_digest(api: Api) -> None:
    answer = call(api, "/requests", RESTART)
    assert "digest" not in json.dumps(answer.json)
