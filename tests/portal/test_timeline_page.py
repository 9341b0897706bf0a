"""The timeline page: which events it shows to whom, its links, and its exports."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

from forewarn.base.times import parse_time
from forewarn.core.cause import Cause
from forewarn.core.commit import Commit
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import vm_resource_id
from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from forewarn.protocol.document import Kind
from forewarn.store.memory import MemoryStore
from tests.portal.conftest import PortalUser
from tests.support.world import LAB_POLICY, a_host, a_vm

SVG = "{http://www.w3.org/2000/svg}"


def approved(portal: PortalUser, vm: str, after_s: float = 60) -> str:
    """Requests a restart, which the VM approves and which finishes."""
    (event,) = portal.api.restart_of(vm)
    portal.world.advance(after_s)
    portal.world.approve(vm, event["id"])
    portal.world.advance(60)
    return str(event["id"])


def withdrawn(portal: PortalUser, vm: str) -> str:
    (event,) = portal.api.restart_of(vm)
    portal.api.post(f"/events/{event['id']}/withdraw", {"reason": "not needed"})
    return str(event["id"])


def shown(portal: PortalUser, query: str = "") -> list[str]:
    """Labels of the events that the page lists, newest first."""
    page = portal.get(f"/portal/timeline?{query}&as=json".replace("?&", "?")).json
    return [f"{row['kind']} of {' '.join(row['vms'])}" for row in page["lanes"]]


def test_the_empty_timeline_says_how_to_request_an_event(portal: PortalUser) -> None:
    page = portal.get("/portal/timeline")
    assert "No events yet." in page.text
    assert "Request a restart on the page of a VM" in page.text
    assert "/portal/forms/rollout" in page.html


def test_an_event_is_a_bar_with_its_marks_and_its_notice_in_words(portal: PortalUser) -> None:
    event_id = approved(portal, "web-0")
    page = portal.get("/portal/timeline")
    bar = re.search(rf'<g class="bar finished" data-event="{event_id}">.*?</g>', page.html, re.S)
    assert bar is not None
    for mark in ("published", "not-before", "approved", "started", "finished"):
        assert f'href="#mark-{mark}"' in bar[0]
    assert "approved by web-0, 2026-01-05 12:01:00 UTC" in bar[0]
    assert "15 min of notice promised, 1 min given" in bar[0]
    assert f'href="/portal/events/{event_id}"' in page.html
    row = re.search(r"<tbody>.*?</tbody>", page.html, re.S)
    assert row is not None
    assert "15 min promised, 1 min given" in row[0]
    assert "2026-01-05 11:32:00 to 12:32:00 UTC" in page.text


def test_failed_and_withdrawn_events_differ_in_symbol_and_pattern(portal: PortalUser) -> None:
    gone = withdrawn(portal, "web-0")
    portal.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(),)))
    bad = approved(portal, "db")
    html = portal.get("/portal/timeline").html
    bars = {event_id: re.search(rf'data-event="{event_id}">.*?</g>', html, re.S) for event_id in (gone, bad)}
    for event_id, pattern, mark in ((gone, "url(#dots)", "withdrawn"), (bad, "url(#hatch)", "failed")):
        bar = bars[event_id]
        assert bar is not None
        assert pattern in bar[0]
        assert f'href="#mark-{mark}"' in bar[0]


def test_links_zoom_and_move_the_timeline_without_scripts(portal: PortalUser) -> None:
    approved(portal, "db")
    page = portal.get("/portal/timeline?vm=db&span=1h&at=2026-01-05T12:00:00Z")
    section = re.search(r'<nav class="row zoom".*?</nav>', page.html, re.S)
    assert section is not None
    links = dict(re.findall(r'href="/portal/timeline\?([^"]*)"[^>]*>([^<]*)<', section[0]))
    ways = {text: {k: v[0] for k, v in parse_qs(query.replace("&amp;", "&")).items()} for query, text in links.items()}
    assert ways["5m"] == {"vm": "db", "span": "5m", "at": "2026-01-05T12:00:00Z"}
    assert ways["14d"]["span"] == "14d"
    assert ways["← Earlier"]["at"] == "2026-01-05T11:30:00Z"
    assert ways["Later →"]["at"] == "2026-01-05T12:30:00Z"
    assert ways["Now"] == {"vm": "db", "span": "1h"}


def test_the_timeline_follows_the_current_time_unless_an_instant_is_given(portal: PortalUser) -> None:
    portal.world.advance(3600)
    here = portal.get("/portal/timeline?span=6h&as=json").json
    assert here["follows"] is True
    assert sum(parse_time(here["window"][edge]) for edge in ("since", "until")) / 2 == portal.world.now
    there = portal.get("/portal/timeline?at=2026-01-05T10:00:00Z&as=json").json
    assert there["follows"] is False
    assert (
        there["window"] | {"since": "2026-01-05T09:30:00.000Z", "until": "2026-01-05T10:30:00.000Z"} == there["window"]
    )


def test_only_events_within_the_window_are_shown(portal: PortalUser) -> None:
    approved(portal, "db")
    portal.world.advance(2 * 3600)
    portal.api.restart_of("web-0")
    assert shown(portal, "span=1h") == ["Reboot of web-0"]
    assert shown(portal, "span=6h") == ["Reboot of web-0", "Reboot of db"]
    assert shown(portal, "span=1h&at=2026-01-05T12:00:00Z") == ["Reboot of db"]
    assert shown(portal, "span=5m&at=2026-01-05T13:00:00Z") == []


def test_an_event_that_was_live_throughout_a_past_window_is_shown(portal: PortalUser) -> None:
    portal.api.post("/hosts/h2/degrade", {"in_s": 86400})
    portal.world.advance(2 * 86400)
    assert "Redeploy of web-1" in shown(portal, "span=5m&at=2026-01-05T18:00:00Z")
    assert "Redeploy of web-1" not in shown(portal, "span=5m&at=2026-01-06T18:00:00Z")


def test_an_empty_window_links_to_the_newest_and_to_all_current_events(portal: PortalUser) -> None:
    portal.api.post("/hosts/h2/degrade", {"in_s": 86400})
    page = portal.get("/portal/timeline?at=2026-01-01T00:00:00Z&span=5m")
    assert "No matching events in this time." in page.text
    for text in ("Go to the newest event", "show all current events"):
        link = re.search(rf'href="/portal/timeline\?([^"]*)">{text}', page.html)
        assert link is not None
        assert "Redeploy of web-1" in shown(portal, link[1].replace("&amp;", "&"))


def test_filters_narrow_the_timeline(portal: PortalUser) -> None:
    approved(portal, "web-0")
    portal.api.restart_of("web-1")
    portal.api.post("/requests", {"operation": "redeploy", "vms": ["pool_0"]})
    portal.api.post("/requests", {"operation": "power-off", "vms": ["db"]})
    rollout = portal.api.post("/rollouts", {"impact": "update", "hosts": ["h2"]})["id"]
    assert shown(portal, "vm=web-0") == ["Reboot of web-0"]
    assert shown(portal, "scope=pool") == ["Redeploy of pool_0"]
    assert shown(portal, "kind=unlisted") == ["Power-off of db"]
    assert set(shown(portal, "kind=Reboot")) == {"Reboot of web-1", "Reboot of web-0"}
    assert "Reboot of web-0" not in shown(portal, "state=live")
    assert set(shown(portal, f"rollout={rollout}")) == {"Freeze of spot", "Freeze of web-1"}
    assert shown(portal, "vm=db&scope=web") == []
    assert shown(portal, "vm=&scope=&rollout=&kind=&state=all&span=") == shown(portal)


def test_the_timeline_can_be_filtered_by_every_kind_of_event(portal_of: Callable[..., PortalUser]) -> None:
    """Spec §14.4: a rebalance recommendation is an event of a kind of its own."""
    portal = portal_of(Policy(enablement=EnablementMode.ALWAYS, recommends_rebalancing=True))
    portal.world.ask(RequestedOperation.RECOMMEND_REBALANCE, "spot")
    portal.api.restart_of("db")
    found = {kind: shown(portal, f"kind={kind}") for kind in Kind}
    assert {kind: titles for kind, titles in found.items() if titles} == {
        Kind.REBOOT: ["Reboot of db"],
        Kind.SPOT_REBALANCE: ["SpotRebalanceRecommendation of spot"],
    }


def test_invalid_filters_and_times_are_rejected_with_a_message(portal: PortalUser) -> None:
    for query, status, sentence in (
        ("vm=nobody", 404, "VM 'nobody' does not exist"),
        ("span=soon", 400, "'soon' is not a duration"),
        ("span=1s", 400, "give between 1m and 31d"),
        ("at=later", 400, "'later' is not a time"),
        ("kind=Nap", 400, "kind"),
        ("colour=red", 400, "colour"),
    ):
        page = portal.request("GET", f"/portal/timeline?{query}")
        assert page.status == status, query
        assert sentence in page.text


def test_the_timeline_shows_only_events_that_the_user_may_see(portal: PortalUser) -> None:
    portal.api.restart_of("web-0")
    portal.api.restart_of("db")
    mine = portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    page = mine.get("/portal/timeline")
    assert "Reboot of db" in page.text
    assert "web-0" not in page.html
    assert shown(mine) == ["Reboot of db"]
    assert mine.request("GET", "/portal/timeline?vm=web-0").status == 404
    assert mine.request("GET", "/portal/timeline?scope=web").status == 404
    for form in ("csv", "svg"):
        assert b"web-0" not in mine.get(f"/portal/timeline?as={form}").content
    nobody = portal.with_role("Reader")
    assert nobody.request("GET", "/portal/timeline").status == 403


def test_names_on_the_timeline_are_escaped(portal_of: Callable[..., PortalUser]) -> None:
    name = '<script>alert("1")&'
    portal = portal_of(LAB_POLICY, vms=[a_vm(name)], hosts=[a_host("h1")])
    requests, vm = portal.world.control.requests, portal.world.vm(name)
    portal.world.do(requests.request_for_vms(RequestedOperation.RESTART, [vm], who="<b>ann</b>"))
    portal.world.settle()
    page = portal.get("/portal/timeline")
    assert "Reboot of &lt;script&gt;alert(" in page.html
    assert "<script>alert" not in page.html
    drawing = portal.get("/portal/timeline?as=svg").content
    assert b"<script" not in drawing
    labels = [text.text or "" for text in ElementTree.fromstring(drawing).iter(f"{SVG}text")]
    assert name in labels


def test_the_exported_chart_is_self_contained(portal: PortalUser) -> None:
    event_id = approved(portal, "web-0")
    withdrawn(portal, "db")
    answer = portal.get("/portal/timeline?as=svg")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-disposition"] == 'attachment; filename="forewarn-timeline.svg"'
    root = ElementTree.fromstring(answer.content)
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "Events from 2026-01-05 11:32:00 UTC to 2026-01-05 12:32:00 UTC, as of 2026-01-05 12:02:00 UTC"
    style = root.find(f"{SVG}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")
    known = {element.get("id") for element in root.iter() if element.get("id")}
    used = {element.get("href", "")[1:] for element in root.iter(f"{SVG}use")}
    assert used <= known
    assert f'data-event="{event_id}"' in answer.html
    assert "http" not in answer.html.replace("http://www.w3.org/2000/svg", "")
    texts = " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    for text in (
        "web-0",
        "Reboot, finished",
        "web",
        "standalone VMs",
        "approved",
        "withdrawn",
        "not before",
    ):
        assert text in texts


def test_the_exported_table_equals_the_one_on_the_page(portal: PortalUser) -> None:
    ids = [approved(portal, "web-0"), withdrawn(portal, "db")]
    rows = list(csv.DictReader(io.StringIO(portal.get("/portal/timeline?as=csv").content.decode())))
    assert [row["event"] for row in rows] == ids[::-1]
    assert rows[1]["approved_by"] == "web-0"
    assert rows[1]["promised_s"] == "900"
    assert rows[1]["given_s"] == "60.0"
    assert rows[1]["approved_at"] == "2026-01-05T12:01:00Z"
    events = portal.get("/portal/timeline?as=json").json["lanes"]
    assert [(event["id"], event["notice"]) for event in events] == [(row["event"], row["notice"]) for row in rows]
    html = portal.get("/portal/timeline").html
    listed = re.findall(r'<th scope="row"><a href="/portal/events/([^"]+)"', html)
    assert listed == ids[::-1]


class RecordingStore(MemoryStore):
    """A store that records the limit of each query for events."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int | None] = []

    def events(self, *, limit: int | None = None, **wanted: Any) -> list[Event]:
        if "gate_id" not in wanted:
            self.asked.append(limit)
        return super().events(limit=limit, **wanted)

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        self.asked.append(limit)
        return super().events_ended_between(since, until, limit=limit, newest=newest)


def test_the_timeline_reads_and_shows_a_bounded_number_of_events(portal_of: Callable[..., PortalUser]) -> None:
    store = RecordingStore()
    vms = [a_vm(f"vm-{n}") for n in range(230)]
    portal = portal_of(LAB_POLICY, vms=vms, hosts=[a_host("h1")], store=store)
    portal.api.post("/requests", {"operation": "restart", "vms": [vm.name for vm in vms]})
    portal.get("/portal/timeline")
    store.asked.clear()
    page = portal.get("/portal/timeline")
    assert "30 more events in this time are not shown" in page.text
    assert len(re.findall('<g class="bar ', page.html)) == 200
    assert len(store.asked) <= 3
    assert all(limit is not None and limit <= 2000 for limit in store.asked)


def test_past_events_do_not_push_out_live_ones(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm("first"), *(a_vm(f"vm-{n}") for n in range(210))]
    portal = portal_of(LAB_POLICY, vms=vms, hosts=[a_host("h1")])
    portal.api.restart_of("first")
    portal.api.post("/requests", {"operation": "reapply", "vms": [vm.name for vm in vms[1:]]})
    portal.world.advance(120)
    assert all(event.status is EventState.OVER for event in portal.world.events() if event.vms != ("first",))
    assert "Reboot of first" in shown(portal)


def test_an_approved_event_that_waits_for_others_is_shown_as_approved(portal: PortalUser) -> None:
    portal.api.post("/rollouts", {"impact": "update", "hosts": ["h2"]})
    event = next(event for event in portal.world.events() if event.vms == ("spot",))
    portal.world.approve("spot", event.id)
    page = portal.get("/portal/timeline?vm=spot")
    assert f'<g class="bar approved" data-event="{event.id}">' in page.html
    assert "web-1 on host h2, which is not ready yet" in page.text


def test_the_timeline_says_that_its_search_was_bounded(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm(f"vm-{n}") for n in range(20)]
    portal = portal_of(LAB_POLICY, vms=vms, hosts=[a_host("h1")])
    events = tuple(
        Event(
            id=f"{number:08X}-0000-4000-8000-000000000000",
            scope_id=vms[number % 20].scope_id,
            request_id="r",
            cause=Cause.USER_RESTART,
            requested_by="ann",
            vms=(vms[number % 20].name,),
            published_at=portal.world.now - 60,
            not_before=portal.world.now,
            started_at=portal.world.now,
            over_at=portal.world.now,
            status=EventState.OVER,
            ending=Ending.FINISHED,
        )
        for number in range(2001)
    )
    portal.world.do(portal.world.store.commit(Commit(events=events)))
    text = portal.get("/portal/timeline").text
    assert "1800 more events in this time are not shown" in text
    assert "There are too many events to search, so older ones may be missing" in text
    assert "too many events to search" not in portal.get("/portal/timeline?vm=vm-3").text
