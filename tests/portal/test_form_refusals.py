"""Forms that are rejected: by the API, for missing rights, for bad input or a wrong CSRF token."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forewarn.web.api_routes import ROUTES
from forewarn.web.portal.form_catalog import FORMS
from tests.portal.conftest import TOKEN, PortalUser
from tests.portal.form_helpers import (
    DB,
    FORM_TYPE,
    Fields,
    form_path,
    request_restart,
    start_rollout,
)

BY_NAME = {(line.method, line.path): line for line in ROUTES}
REFUSED: list[tuple[str, Fields, str, str, Any]] = [
    ("restart", {"vm": "nobody"}, "POST", "/requests", {"operation": "restart", "vms": ["nobody"]}),
    (
        "restart",
        {"vm": "db", "notice": "10s"},
        "POST",
        "/requests",
        {"operation": "restart", "vms": ["db"], "notice_s": 10},
    ),
    ("restart", {"vm": ["db", "DB"]}, "POST", "/requests", {"operation": "restart", "vms": ["db", "DB"]}),
    ("evict", {"vm": "db"}, "POST", "/requests", {"operation": "evict", "vms": ["db"]}),
    ("start", {"vm": "db"}, "POST", "/requests", {"operation": "start", "vms": ["db"]}),
    ("perform-maintenance", {"vm": "db"}, "POST", "/vms/db/perform-maintenance", None),
    ("approve", {"event": "nothing"}, "POST", "/events/nothing/approve", None),
    ("withdraw", {"event": "nothing"}, "POST", "/events/nothing/withdraw", {}),
    ("rollout", {"impact": "update"}, "POST", "/rollouts", {"impact": "update"}),
    ("rollout", {"impact": "update", "host": "h9"}, "POST", "/rollouts", {"impact": "update", "hosts": ["h9"]}),
    ("rollout-pause", {"rollout": "nothing"}, "POST", "/rollouts/nothing/pause", None),
    ("degrade", {"host": "h1", "in": "1m"}, "POST", "/hosts/h1/degrade", {"in_s": 60}),
    ("fail", {"host": "h9"}, "POST", "/hosts/h9/fail", None),
    ("repair", {"host": "h1"}, "POST", "/hosts/h1/repair", None),
    ("confirm-down", {"host": "h1"}, "POST", "/hosts/h1/confirm-down", None),
    ("fault", {"kind": "gon", "vm": "db"}, "POST", "/faults", {"kind": "gon", "vm": "db"}),
    ("fault", {"kind": "gone"}, "POST", "/faults", {"kind": "gone"}),
    (
        "fault",
        {"kind": "gone", "vm": "db", "for": "2h"},
        "POST",
        "/faults",
        {"kind": "gone", "vm": "db", "duration_s": 7200},
    ),
    ("fault-clear", {}, "POST", "/faults/clear", {}),
    ("fault-clear", {"fault": "f9"}, "POST", "/faults/clear", {"ids": ["f9"]}),
    ("storm", {"seed": "1", "for": "2d"}, "POST", "/faults/storm", {"seed": 1, "duration_s": 172800}),
    ("clock-advance", {"by": "400d"}, "POST", "/clock/advance", {"by_s": 400 * 86400}),
    ("clock-speed", {"speed": "-1"}, "POST", "/clock/speed", {"speed": -1}),
]


@pytest.mark.parametrize(("name", "fields", "method", "target", "body"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_form_is_rejected_as_the_api_rejects_the_call(
    portal: PortalUser, name: str, fields: Fields, method: str, target: str, body: Any
) -> None:
    status, _, sentence = portal.api.refused(method, target, body)
    before = portal.api.stored()
    page = portal.post(form_path(name), {**fields, "confirmed": "yes"})
    assert portal.api.stored() == before
    problem, _, remedy = sentence.rpartition(": ")
    has_api_remedy = "/forewarn/v1" in remedy or "short_notice" in remedy  # the portal words these in its own terms
    assert page.status == status
    assert (problem if has_api_remedy else sentence) in page.text
    assert "/forewarn/v1" not in page.text
    typed = [value for values in fields.values() for value in ([values] if isinstance(values, str) else values)]
    kept = [value for value in typed if re.search(rf'value="(sub/lab/)?{value}"', page.html, re.IGNORECASE)]
    assert kept == typed


def test_most_rejections_come_before_the_confirmation(portal: PortalUser) -> None:
    late = (
        "rollout-pause",
        "repair",
        "confirm-down",
        "clock",
        "storm",
        "fault-clear",
        "fault",
    )  # rejected only when the action runs
    for name, fields, *_ in REFUSED:
        if not name.startswith(late):
            assert portal.post(form_path(name), fields).status >= 400, name


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("restart", {}, "restart needs at least one VM: choose or enter one"),
        ("restart", {"vm": "db", "notice": "soon"}, "'soon' is not a duration: write it like 15m, 7d, 1h30m"),
        ("restart", {"vm": "db", "short_notice": "yes"}, "a short notice needs a length: fill in the notice"),
        ("approve", {}, "Event is missing: fill it in"),
        ("rollout", {"max_failures": "many", "host": "h1"}, "'many' is not a number: write one such as 1"),
        (
            "rollout",
            {"all_hosts": "yes", "scope": "web"},
            "a rollout is for hosts or for one scope: choose one of them",
        ),
        ("clock-advance", {}, "the clock advances by a duration or to a time: give one of them"),
        ("clock-advance", {"until": "noon"}, "'noon' is not a time: write it like 2026-11-18T21:08:06Z"),
        ("storm", {"seed": "nan"}, "'nan' is not a number"),
        ("storm", {"seed": "1.5"}, "the body is not valid: seed"),
    ],
)
def test_invalid_input_is_explained_above_the_form(
    portal: PortalUser, name: str, fields: Fields, sentence: str
) -> None:
    before = portal.api.stored()
    page = portal.post(form_path(name), fields)
    assert portal.api.stored() == before
    assert page.status == 400
    assert sentence in page.text
    assert FORMS[name].title in page.text


def test_an_unknown_form_is_not_found(portal: PortalUser) -> None:
    assert portal.request("GET", form_path("explode")).status == 404
    assert portal.post(form_path("explode")).status == 404


@pytest.mark.parametrize("name", FORMS)
def test_every_form_can_be_opened_and_calls_a_route_of_the_api(portal: PortalUser, name: str) -> None:
    page = portal.get(form_path(name))
    assert FORMS[name].title in page.text
    assert f'name="token" value="{TOKEN}"' in page.html
    assert FORMS[name].api_route(BY_NAME).method in ("POST", "DELETE")
    preview = FORMS[name].preview_route(BY_NAME)
    assert preview is None or preview.right is FORMS[name].api_route(BY_NAME).right


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_forbidden_for_readers(portal: PortalUser, name: str) -> None:
    reader = portal.with_role("Reader", "/")
    event_id = request_restart(portal)
    fields = {"vm": "db", "event": event_id, "rollout": start_rollout(portal), "host": "h1", "in": "7d", "by": "1m"}
    typed = {**fields, "speed": "1", "kind": "gone", "seed": "1", "fault": "f1", "replay": "r1"}
    mine = {name_: value for name_, value in typed.items() if name_ in {field.name for field in FORMS[name].fields}}
    before = portal.api.stored()
    shown = reader.request("GET", form_path(name))
    sent = reader.post(form_path(name), {**mine, "confirmed": "yes"})
    assert portal.api.stored() == before
    assert (shown.status, sent.status) == (403, 403), sent.text
    assert "Not allowed client ci does not have the right to" in shown.text
    assert "client ci does not have the right to" in sent.text


def test_a_user_without_the_right_is_told_so_before_filling_in_a_form(portal: PortalUser) -> None:
    shown = portal.with_role("Reader", DB).request("GET", f"{form_path('restart')}?vm=db")
    assert "does not have the right to operate over anything: ask an administrator for the role Operator" in shown.text


def test_pages_show_no_form_links_to_readers(portal: PortalUser) -> None:
    rollout = start_rollout(portal)
    reader = portal.with_role("Reader", "/")
    for target in ("/portal/rollouts", f"/portal/rollouts/{rollout}", "/portal/lab"):
        assert "/portal/forms/" not in reader.get(target).html.partition("<main")[2]
        assert "/portal/forms/" in portal.get(target).html.partition("<main")[2]


def test_an_operator_can_request_operations_on_their_own_vms_only(portal: PortalUser) -> None:
    operator = portal.with_role("Operator", DB)
    page = operator.get(form_path("restart"))
    assert "db" in page.text
    assert "web-0" not in page.text
    assert operator.post(form_path("restart"), {"vm": "db", "confirmed": "yes"}).status == 303
    refused = operator.post(form_path("restart"), {"vm": "web-0", "confirmed": "yes"})
    assert (refused.status, "VM 'web-0' does not exist" in refused.text) == (404, True)
    assert operator.request("GET", form_path("rollout")).status == 403


def test_a_form_needs_the_csrf_token_of_the_session(portal: PortalUser) -> None:
    before = portal.api.stored()
    for token in ("", "another"):
        assert portal.post(form_path("restart"), {"vm": "db", "confirmed": "yes"}, token=token).status == 403
    headers = {"content-type": FORM_TYPE, "sec-fetch-site": "cross-site"}
    sent = f"token={TOKEN}&vm=db&confirmed=yes".encode()
    assert portal.request("POST", form_path("restart"), sent, headers).status == 403
    assert portal.api.stored() == before


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"vm": "db"}', "application/json"),
        (b"vm=%ff\xff", FORM_TYPE),
        (b"vm=db&" * 400_000, FORM_TYPE),
        (b"&".join([b"a=b"] * 30_000), FORM_TYPE),
    ],
)
def test_a_body_that_is_not_a_form_is_rejected(portal: PortalUser, body: bytes, kind: str) -> None:
    assert portal.request("POST", form_path("restart"), body, {"content-type": kind}).status == 400


def test_a_user_without_the_right_cannot_open_a_form_by_submitting_it(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", "/")
    for name in FORMS:
        page = reader.post(form_path(name), {"vm": "db", "again": "yes"})
        assert page.status == 403, name
        assert "<form" not in page.html.partition("<main")[2]
