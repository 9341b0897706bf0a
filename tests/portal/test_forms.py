"""Forms: links that fill them in, the choices they offer, and the warnings of a confirmation."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forewarn.web.portal
from forewarn.base.clock import SystemClock
from forewarn.base.times import RealTime
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.core.access import owner_principal
from forewarn.core.decision import Policy
from forewarn.core.history import LastPoll
from forewarn.store.memory import MemoryStore
from forewarn.web.portal.form_catalog import FORMS
from tests.portal.conftest import PortalUser
from tests.portal.form_helpers import (
    EVIL,
    confirm,
    form_path,
    hidden_fields,
    request_restart,
    requested_operations,
    start_rollout,
    submit_form,
)
from tests.support.operator_api import Api
from tests.support.world import World, a_host, a_vm


def test_the_back_button_of_a_confirmation_keeps_the_values(portal: PortalUser) -> None:
    sent = hidden_fields(confirm(portal, "restart", {"vm": ["db", "web-0"], "notice": "33m"}))
    page = portal.post(form_path("restart"), {**sent, "again": "yes"})
    assert 'value="33m"' in page.html
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/db", "sub/lab/web-0"]
    assert requested_operations(portal) == []


def test_a_link_fills_in_a_form(portal: PortalUser) -> None:
    page = portal.get(f"{form_path('restart')}?vm=web-1&vm=lab/db&vm=ghost&notice=20m")
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/web-1", "sub/lab/db"]
    assert 'value="ghost"' in page.html
    assert 'value="20m"' in page.html


def test_the_lookup_of_unknown_names_is_bounded(portal: PortalUser) -> None:
    ghosts = [f"ghost-{number}" for number in range(20)]
    page = portal.post(form_path("restart"), {"vm_more": ", ".join([*ghosts, "db"]), "again": "yes"})
    assert re.findall(r'value="([^"]*)" checked', page.html) == []
    assert "ghost-19, db" in page.html
    page = portal.post(form_path("restart"), {"vm_more": ", ".join([*ghosts[:19], "db"]), "again": "yes"})
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/db"]


def test_a_confirmation_warns_if_no_handler_is_polling(portal: PortalUser) -> None:
    assert "No handler is polling in db: no client has polled yet." in confirm(portal, "restart", {"vm": "db"}).text


def test_a_confirmation_does_not_warn_while_a_client_polls(portal: PortalUser) -> None:
    vm = portal.world.vm("db")

    def poll(at: float) -> None:
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=at, version="2020-07-01")
        portal.world.do(portal.world.store.record_observations([polled], []))

    poll(portal.world.now - 10)
    assert "No handler is polling" not in confirm(portal, "restart", {"vm": "db"}).text
    portal.world.advance(3600)
    page = confirm(portal, "restart", {"vm": "db"})
    assert "No handler is polling" not in page.text  # a VM that polls counts as polling during skipped time
    portal.world.do(portal.world.control.lab_clock.set_speed(0))
    portal.world.clock.apply_setting(portal.world.clock.setting_after_jump(portal.world.now + 7200))
    page = confirm(portal, "restart", {"vm": "db"})
    assert "No handler is polling in db: the last poll was 2 h ago." in page.text


def test_a_confirmation_says_why_something_happens_at_once(portal_of: Callable[..., PortalUser]) -> None:
    """Spec §8.2."""
    portal = portal_of(Policy())
    page = confirm(portal, "restart", {"vm": "db"})
    assert "Reboot of db at once, without an event: no VM of the scope has polled within 24 h" in page.text
    assert "No handler is polling" not in page.text


def test_a_confirmation_names_the_event_that_is_replaced(portal: PortalUser) -> None:
    event_id = request_restart(portal)
    page = confirm(portal, "redeploy", {"vm": "db"})
    assert f"It replaces 1 pending event, which would be withdrawn: {event_id} ." in page.text


@pytest.mark.parametrize(
    ("scope", "warning"),
    [
        ("db", "Also on host h1, but not affected: web-0, pool_0, pool_1."),
        ("web", "Also on one of the 3 hosts, but not affected: db, pool_0, pool_1, spot."),
    ],
)
def test_a_confirmation_names_unaffected_vms_on_the_same_hosts(portal: PortalUser, scope: str, warning: str) -> None:
    assert warning in confirm(portal, "rollout", {"impact": "update", "scope": scope}).text


def test_a_form_takes_names_with_spaces(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(vms=[a_vm("my own vm"), a_vm("db")], hosts=[a_host("h1")])
    submit_form(portal, "restart", {"vm": "sub/lab/my own vm", "vm_more": "db"})
    assert sorted(event.vms for event in portal.world.store.events()) == [("db",), ("my own vm",)]
    assert 'value="sub/lab/my own vm" checked' in portal.get(f"{form_path('restart')}?vm=my+own+vm").html


def test_markup_in_names_and_values_of_forms_is_escaped(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(vms=[a_vm(EVIL), a_vm("db")], hosts=[a_host("h1"), a_host("h2")])
    key = f"sub/lab/{EVIL}"
    seen = [portal.get(form_path("restart")), portal.get(f"{form_path('restart')}?vm={EVIL}&notice={EVIL}")]
    seen.append(confirm(portal, "redeploy", {"vm": key}))
    seen.append(submit_form(portal, "redeploy", {"vm": key}))
    seen.append(portal.post(form_path("restart"), {"vm": f'"><img src=x>{EVIL}', "notice": "'\"><b>"}))
    seen.append(submit_form(portal, "fault", {"kind": "gone", "vm": key}))
    for page in seen:
        assert "<script>alert" not in page.html
        assert "<img src=x>" not in page.html
        assert "<b>" not in page.html


def test_a_form_keeps_more_chosen_vms_than_it_offers(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(vms=[a_vm(f"v{n}") for n in range(400)], hosts=[a_host("h1")])
    named = [f"v{n}" for n in range(350)]
    page = portal.post(form_path("restart"), {"vm": named, "again": "yes"})
    assert page.status == 200
    assert len(re.findall(r'value="([^"]*)" checked', page.html)) == 350
    page = portal.post(form_path("restart"), {"vm": named, "notice": "1m"})
    assert page.status == 400
    assert "less than" in page.text.lower()


def test_a_form_offers_a_bounded_number_of_vms_and_a_text_input(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(vms=[a_vm(f"v{n}") for n in range(400)], hosts=[a_host("h1")])
    page = portal.get(f"{form_path('restart')}?vm=v399")
    assert page.html.count('type="checkbox" name="vm"') == 300
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/v399"]
    assert "Other names" in page.text


def test_every_form_link_names_an_existing_form() -> None:
    folder = Path(forewarn.web.portal.__file__).parent
    texts = [path.read_text() for path in (*folder.glob("templates/*.html"), *folder.glob("*.py"))]
    linked = {name for text in texts for name in re.findall(r"/portal/forms/([a-z-]+)", text)}
    assert linked
    assert linked <= set(FORMS)


def test_every_form_link_of_a_page_opens(portal: PortalUser) -> None:
    rollout = start_rollout(portal)
    event = portal.world.store.events()[0].id
    portal.world.do(portal.world.control.requests.degrade_host("h3", who="bob", notice_s=7 * 86400))
    portal.world.settle()
    pages = (
        "vms/web-0",
        "vms/spot",
        "vms/pool_0",
        "hosts/h1",
        "hosts/h3",
        f"events/{event}",
        f"rollouts/{rollout}",
        "lab",
    )
    links: set[str] = set()
    for page in (*pages, "", "timeline", "rollouts", "scopes/set:sub/lab/web"):
        found = re.findall(r'href="(/portal/forms/[^"]*)"', portal.get(f"/portal/{page}").html)
        links.update(html.unescape(link) for link in found)
    assert len(links) > 20
    for link in sorted(links):
        assert portal.get(link).status == 200, link


@pytest.fixture
def on_real_time() -> Any:
    world = World(vms=[a_vm("db")], hosts=[a_host("h1")])

    async def build() -> ControlPlane:
        outside = ControlInputs(new_id=lambda: next(world.ids), real_time=lambda: RealTime(0.0))
        return ControlPlane(store=MemoryStore(), clock=SystemClock(), hypervisor=world.hypervisor, inputs=outside)

    world.do(world.control.close())
    world.control = world.do(build())
    world.store = world.control.store
    yield PortalUser(Api(world), owner_principal("local user ann"))
    world.close()


def test_a_service_on_real_time_offers_no_clock_forms(on_real_time: PortalUser) -> None:
    page = on_real_time.get("/portal/lab")
    assert "This service runs on real time: its clock cannot be advanced." in page.text
    assert "/portal/forms/clock" not in page.html
    refused = on_real_time.post(form_path("clock-advance"), {"by": "1m"})
    assert "this service runs on real time, which cannot be advanced: use the portal of a lab" in refused.text
