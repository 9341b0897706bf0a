"""The board: what VMs are shown, rendered once, and who is woken when it changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from forewarn.metadata import PublishedDocuments, PublishedScope
from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.versions import VERSIONS


def scope(scope_id="pair", vms=("a", "b"), document=None, enabled=True, epoch=1):
    return PublishedScope(
        scope_id=scope_id,
        enabled=enabled,
        epoch=epoch,
        document=document or Document(incarnation=1),
        vms={vm: InstanceFacts(name=vm, location="westeurope") for vm in vms},
    )


class Sleeper:
    def __init__(self, woken):
        self.woken = woken

    def wake(self):
        self.woken.append(self)


def test_a_view_shows_what_was_published_last():
    board = PublishedDocuments()
    board.publish(scope())
    assert board.view("a").document.incarnation == 1
    board.publish(scope(document=Document(incarnation=2)))
    view = board.view("a")
    assert (view.document.incarnation, view.name, view.location) == (2, "a", "westeurope")
    assert board.view("stranger") is None


def test_a_vm_that_left_its_scope_is_unknown_and_one_that_moved_is_where_it_moved():
    board = PublishedDocuments()
    board.publish(scope(vms=("a", "b", "c")))
    board.publish(scope("new", vms=("c",)))
    board.publish(scope(vms=("a",)))
    assert board.view("b") is None
    assert board.view("c").scope_id == "new"
    board.remove("pair")
    assert board.view("a") is None
    assert board.view("c").scope_id == "new"


def test_every_version_gets_its_own_bytes(notice):
    """Spec §3."""
    board, document = PublishedDocuments(), Document(incarnation=2, notices=(notice(),))
    board.publish(scope(document=document))
    for version in VERSIONS:
        for iso_dates in (False, True):
            body = board.document_bytes(board.view("a"), version, iso_dates=iso_dates)
            assert body == encode_document(document, version, iso_dates=iso_dates)


def test_equal_bytes_are_kept_once():
    board = PublishedDocuments()
    board.publish(scope())
    board.publish(scope("other", vms=("other",)))
    bodies = {
        id(board.document_bytes(board.view(vm), version, iso_dates=False))
        for vm in ("a", "b", "other")
        for version in VERSIONS
    }
    assert len(bodies) <= len(VERSIONS)
    assert len({id(board.document_bytes(board.view("a"), version, iso_dates=False)) for version in VERSIONS}) == 1


def test_a_view_from_before_a_change_still_gets_its_own_bytes(notice):
    board = PublishedDocuments()
    board.publish(scope())
    before = board.view("a")
    board.publish(scope(document=Document(incarnation=2, notices=(notice(),))))
    assert board.document_bytes(before, "2020-07-01", iso_dates=False) == b'{"DocumentIncarnation":1,"Events":[]}'
    board.remove("pair")
    assert board.document_bytes(before, "2020-07-01", iso_dates=False) == b'{"DocumentIncarnation":1,"Events":[]}'


def test_waiters_are_woken_once_in_portions_and_only_by_a_change():
    async def story():
        board, woken = PublishedDocuments(), []
        board.publish(scope())
        sleepers = [Sleeper(woken) for _ in range(450)]
        for sleeper in sleepers:
            board.add_waiter("pair", sleeper)
        board.remove_waiter("pair", sleepers[0])
        board.publish(replace(scope()))
        await asyncio.sleep(0)
        assert woken == []
        board.publish(scope(document=Document(incarnation=2)))
        portions = []
        while len(woken) < 449:
            await asyncio.sleep(0)
            portions.append(len(woken))
        assert portions[:3] == [200, 400, 449]
        assert woken == sleepers[1:]
        board.publish(scope(document=Document(incarnation=3)))
        await asyncio.sleep(0)
        assert len(woken) == 449

    asyncio.run(story())


def test_a_new_epoch_is_a_change_even_at_the_same_incarnation():
    """Spec §4.3: a re-enabled scope is told from the one before."""

    async def story():
        board, woken = PublishedDocuments(), []
        board.publish(scope())
        board.add_waiter("pair", Sleeper(woken))
        board.publish(scope(epoch=2))
        await asyncio.sleep(0)
        assert len(woken) == 1

    asyncio.run(story())


def test_only_enabling_that_was_seen_delays_answers():
    """Spec §8.1: from then on, and a restart does not start it again."""

    async def story():
        board = PublishedDocuments(first_answer_delay_s=60)
        board.publish(scope(enabled=False))
        board.publish(scope("old", vms=("old",)))
        assert board.view("a").delayed_until == 0.0
        board.publish(scope(enabled=True))
        delayed = board.view("a").delayed_until
        assert delayed > asyncio.get_running_loop().time()
        board.publish(scope(document=Document(incarnation=2)))
        assert board.view("a").delayed_until == delayed
        assert board.view("old").delayed_until == 0.0

    asyncio.run(story())
