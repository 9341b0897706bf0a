"""`GET /metrics` at the console: for callers who may read everything, by token or by portal session."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.requests import Request

from forewarn.core.access import Grant, Principal, Role, owner_principal
from forewarn.errors import Unauthenticated
from forewarn.service.web_server import build_web_app
from forewarn.web.portal.context import CurrentSession
from tests.support.operator_api import Answer, Api

METRICS = b"forewarn_vms 7\n"
GROUP = "/subscriptions/sub/resourceGroups/lab"


@pytest.fixture
def metrics_api(api: Api) -> Api:
    async def metrics() -> bytes:
        return METRICS

    api.dependencies = replace(api.dependencies, render_metrics=metrics)
    api.app = build_web_app(api.dependencies)
    return api


def scrape(api: Api) -> Answer:
    return api.call("GET", "/metrics", prefix="")


def test_metrics_are_plain_text_that_is_not_cached(metrics_api: Api) -> None:
    answer = scrape(metrics_api)
    assert (answer.status, answer.content) == (200, METRICS)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"


def test_a_reader_of_everything_may_read_metrics(metrics_api: Api) -> None:
    assert scrape(metrics_api.holding("Reader", "/")).status == 200


def test_a_reader_of_a_part_may_not_read_metrics_of_the_whole(metrics_api: Api) -> None:
    status, code, message = scrape(metrics_api.holding("Reader", GROUP)).error
    assert (status, code) == (403, "Forbidden")
    assert message.startswith("client ci does not have the right to read over everything")


def test_an_unauthenticated_caller_may_not_read_metrics(metrics_api: Api) -> None:
    answer = scrape(metrics_api.without_token())
    assert answer.status == 401
    assert METRICS not in answer.content


def test_a_service_without_metrics_says_so(api: Api) -> None:
    assert scrape(api).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_metrics_are_read_only(metrics_api: Api, method: str) -> None:
    answer = metrics_api.call(method, "/metrics", prefix="")
    assert answer.status in (404, 405)
    assert METRICS not in answer.content


async def _no_token(request: Request) -> Principal:
    raise Unauthenticated("send a token")


def _with_session_of(metrics_api: Api, principal: Principal | None) -> Api:
    async def authenticate_user(request: Request) -> CurrentSession:
        if principal is None:
            raise Unauthenticated("nobody is signed in")
        return CurrentSession(principal=principal, csrf_token="t", ends_at=float("inf"))

    return metrics_api._with(build_web_app(metrics_api.dependencies, _no_token, authenticate_session=authenticate_user))


def test_a_portal_session_may_read_metrics(metrics_api: Api) -> None:
    assert scrape(_with_session_of(metrics_api, owner_principal("ann"))).content == METRICS


def test_a_portal_session_needs_the_same_right_for_metrics(metrics_api: Api) -> None:
    grant = Grant(id="g", role=Role.READER, principal="client:ci", resource=GROUP)
    user = Principal(id="client:ci", name="client ci", grants=(grant,))
    assert scrape(_with_session_of(metrics_api, user)).status == 403


def test_a_program_without_a_token_learns_what_to_send(metrics_api: Api) -> None:
    assert scrape(_with_session_of(metrics_api, None)).error[2] == "send a token"
