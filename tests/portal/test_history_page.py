"""The history page: newest first, paginated, with only what the user may see."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.resource_ids import vm_resource_id
from tests.portal.conftest import PortalUser


def commit_entries(portal: PortalUser, count: int, what: EntryKind = EntryKind.UPKEEP, **about: Any) -> None:
    entries = tuple(HistoryEntry(at=portal.world.now, kind=what, text=f"entry {n}", **about) for n in range(count))
    portal.world.do(portal.world.store.commit(Commit(entries=entries)))


def shown(portal: PortalUser, query: str = "") -> list[int]:
    page = portal.get(f"/portal/history?{query}")
    return [int(seq) for seq in re.findall(r'<tr id="entry-(\d+)"', page.html)]


def link_target(portal: PortalUser, target: str, rel: str) -> str | None:
    """The target of the link to newer or older entries."""
    found = re.search(rf'href="([^"]*)" rel="{rel}"', portal.get(target).html)
    return found[1].replace("&amp;", "&") if found else None


def test_the_newest_entries_come_first_with_links_to_what_they_are_about(portal: PortalUser) -> None:
    (event,) = portal.api.restart_of("web-0")
    page = portal.get("/portal/history")
    assert page.text.index("Reboot of web-0 scheduled") < page.text.index("requested restart of web-0")
    assert f'href="/portal/events/{event["id"]}"' in page.html
    assert f'href="/portal/requests/{event["request_id"]}"' in page.html
    assert 'href="/portal/vms/sub/lab/web-0"' in page.html
    assert 'data-live="all"' in page.html


@pytest.mark.parametrize(("whole", "others"), [(True, 5), (False, 5), (False, 1100)])
def test_paging_back_and_forth_through_the_history_misses_no_entry(
    portal: PortalUser, whole: bool, others: int
) -> None:
    scope_id = portal.world.vm("db").scope_id
    commit_entries(portal, 12, scope_id=scope_id)
    commit_entries(portal, others, scope_id=portal.world.vm("web-0").scope_id)
    commit_entries(portal, 13, scope_id=scope_id)
    user = portal if whole else portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    every = [entry.seq for entry in portal.world.store.history() if whole or entry.scope_id == scope_id][::-1]

    back: list[int] = []
    target: str | None = "/portal/history?limit=7"
    last = ""
    for _ in range(20):
        assert target is not None
        back += shown(user, target.partition("?")[2])
        last, target = target, link_target(user, target, "next")
        if target is None:
            break
    assert back == every

    forth = shown(user, last.partition("?")[2])
    target = link_target(user, last, "prev")
    for _ in range(20):
        if target is None:
            break
        forth = shown(user, target.partition("?")[2]) + forth
        target = link_target(user, target, "prev")
    assert forth == every


@pytest.mark.parametrize("invisible", [40, 1100])
def test_entries_that_a_user_may_not_see_end_no_filtered_history(portal: PortalUser, invisible: int) -> None:
    scope_id = portal.world.vm("db").scope_id
    commit_entries(portal, 12, scope_id=scope_id)
    commit_entries(portal, invisible, EntryKind.FAULT, scope_id=scope_id)
    commit_entries(portal, 3, scope_id=scope_id)
    user = portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    visible = [e.seq for e in portal.world.store.history(scope_id=scope_id) if e.kind is not EntryKind.FAULT][::-1]

    assert shown(user, "scope=db&limit=7") == visible[:7]
    assert shown(user, f"scope=db&limit=7&after={visible[5]}") == visible[:5]
    older = link_target(user, "/portal/history?scope=db&limit=7", "next")
    assert older is not None
    assert shown(user, older.partition("?")[2]) == visible[7:14]
    rows = csv.DictReader(io.StringIO(user.get("/portal/history?scope=db&as=csv").content.decode()))
    assert [int(row["seq"]) for row in rows] == visible


def test_past_pages_of_the_history_are_not_live(portal: PortalUser) -> None:
    commit_entries(portal, 10)
    assert "data-live" not in portal.get("/portal/history?before=5").html
    assert "data-live" not in portal.get("/portal/history?after=5").html


def test_the_history_can_be_filtered_by_vm_event_request_and_scope(portal: PortalUser) -> None:
    (event,) = portal.api.restart_of("web-0")
    (other,) = portal.api.restart_of("db")
    of_event = portal.get(f"/portal/history?event={event['id']}")
    assert "Reboot of web-0 scheduled" in of_event.text
    assert "Reboot of db" not in of_event.text
    assert f'data-live="event:{event["id"]}"' in of_event.html
    of_vm = portal.get("/portal/history?vm=db")
    assert "Reboot of db scheduled" in of_vm.text
    assert "web-0" not in of_vm.text
    assert 'data-live="vm:sub/lab/db"' in of_vm.html
    of_request = portal.get(f"/portal/history?request={other['request_id']}")
    assert "requested restart of db" in of_request.text
    of_scope = portal.get("/portal/history?scope=web&vm=&event=&request=")
    assert "Reboot of web-0 scheduled" in of_scope.text
    assert 'data-live="scope:set:sub/lab/web"' in of_scope.html


@pytest.mark.parametrize(
    ("scope_id", "title", "name"),
    [
        ("set:sub/lab/web", "availability set web", "web"),
        ("placement:sub/lab/batch/pg-0", "placement group pg-0 of scale set batch", "batch/pg-0"),
        ("service:sub/lab/shop", "cloud service shop", "shop"),
        ("vm:sub/lab/db", "VM db", "db"),
    ],
)
def test_the_history_shows_scopes_by_their_short_names(
    portal: PortalUser, scope_id: str, title: str, name: str
) -> None:
    commit_entries(portal, 1, scope_id=scope_id)
    assert f'href="/portal/scopes/{scope_id}" title="{title}">{name}</a>' in portal.get("/portal/history").html


def test_the_history_shows_only_what_the_user_may_see(portal: PortalUser) -> None:
    portal.api.restart_of("web-0")
    portal.api.restart_of("db")
    mine = portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    page = mine.get("/portal/history")
    assert "Reboot of db scheduled" in page.text
    assert "web-0" not in page.html
    assert "the fleet" not in page.text
    assert b"web-0" not in mine.get("/portal/history?as=csv").content
    assert mine.request("GET", "/portal/history?vm=web-0").status == 404


def test_an_export_of_the_history_equals_the_page(portal: PortalUser) -> None:
    portal.api.restart_of("web-0")
    rows = list(csv.DictReader(io.StringIO(portal.get("/portal/history?as=csv&limit=3").content.decode())))
    entries = portal.get("/portal/history?as=json&limit=3").json["entries"]
    assert [int(row["seq"]) for row in rows] == [entry["seq"] for entry in entries] == shown(portal, "limit=3")
    assert rows[0]["at"] == "2026-01-05T12:00:00Z"
    assert [row["text"] for row in rows] == [entry["text"] for entry in entries]


def test_the_history_escapes_markup_and_formulas(portal: PortalUser) -> None:
    entry = HistoryEntry(
        at=portal.world.now, kind=EntryKind.UPKEEP, text="=1+1 <script>alert(1)</script>", actor='"><b>'
    )
    portal.world.do(portal.world.store.commit(Commit(entries=(entry,))))
    page = portal.get("/portal/history")
    assert "=1+1 &lt;script&gt;" in page.html
    assert "<script>alert" not in page.html
    assert b"'=1+1" in portal.get("/portal/history?as=csv").content


def test_a_history_without_matches_says_what_to_do(portal: PortalUser) -> None:
    page = portal.get("/portal/history?before=1")
    assert "No matching entries. Show the newest entries" in page.text


def test_an_invalid_history_query_is_rejected(portal: PortalUser) -> None:
    for query, status in (("limit=0", 400), ("limit=1001", 400), ("after=-1", 400), ("before=x", 400), ("what=x", 400)):
        assert portal.request("GET", f"/portal/history?{query}").status == status, query


def test_an_empty_history_links_to_the_fleet(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of()
    nobody = portal.with_role("Reader", "/subscriptions/other")
    page = nobody.get("/portal/history")
    assert "There are no entries that you can see." in page.text
