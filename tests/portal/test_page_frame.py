"""Every page: redirects, error pages, and the sequence number that it claims to include."""

from __future__ import annotations

import asyncio

from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from tests.portal.conftest import Page, PortalUser


def test_the_root_redirects_to_the_portal(portal: PortalUser) -> None:
    page = portal.request("GET", "/")
    assert (page.status, page.headers["location"]) == (307, "/portal/")


def test_an_unknown_path_gives_an_error_page(portal: PortalUser) -> None:
    page = portal.request("GET", "/portal/nowhere")
    assert page.status == 404
    assert "/portal/nowhere is not a page of the portal: start at the overview" in page.text
    assert "local user ann" in page.text


def test_a_page_does_not_claim_to_include_commits_made_while_it_was_rendered(portal: PortalUser) -> None:
    """Else a page that continues from its number would never receive them."""
    portal.get("/portal/clients")
    store = portal.world.store
    entry = HistoryEntry(at=portal.world.now, kind=EntryKind.UPKEEP, text="meanwhile")

    async def both() -> tuple[int, Page]:
        before = store.last_seq()
        page, _ = await asyncio.gather(
            portal.send_request("GET", "/portal/clients", b"", {}), store.commit(Commit(entries=(entry,)))
        )
        assert store.last_seq() > before
        return before, page

    before, page = portal.world.do(both())
    assert f'data-seq="{before}"' in page.html
    assert f'data-seq="{before + 1}"' in portal.get("/portal/clients").html
