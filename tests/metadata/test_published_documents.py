"""Published documents: views of VMs, encoded bytes, and waiters that a change wakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from forewarn.metadata import GuestView, PublishedDocuments, PublishedScope
from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.versions import VERSIONS
from tests.metadata.conftest import MakeNotice


def scope(
    scope_id: str = "pair",
    vms: tuple[str, ...] = ("a", "b"),
    document: Document | None = None,
    enabled: bool = True,
    epoch: int = 1,
) -> PublishedScope:
    return PublishedScope(
        scope_id=scope_id,
        enabled=enabled,
        epoch=epoch,
        document=document or Document(incarnation=1),
        vms={vm: InstanceFacts(name=vm, location="westeurope") for vm in vms},
    )


def view_of(documents: PublishedDocuments, vm: str) -> GuestView:
    view = documents.view(vm)
    assert view is not None
    return view


class FakeWaiter:
    def __init__(self, woken: list[FakeWaiter]) -> None:
        self.woken = woken

    def wake(self) -> None:
        self.woken.append(self)


def test_a_view_has_the_last_published_document() -> None:
    documents = PublishedDocuments()
    documents.publish(scope())
    assert view_of(documents, "a").document.incarnation == 1
    documents.publish(scope(document=Document(incarnation=2)))
    view = view_of(documents, "a")
    assert (view.document.incarnation, view.name, view.location) == (2, "a", "westeurope")
    assert documents.view("unknown") is None


def test_a_vm_that_left_is_unknown_and_a_vm_that_moved_is_in_its_new_scope() -> None:
    documents = PublishedDocuments()
    documents.publish(scope(vms=("a", "b", "c")))
    documents.publish(scope("new", vms=("c",)))
    documents.publish(scope(vms=("a",)))
    assert documents.view("b") is None
    assert view_of(documents, "c").scope_id == "new"
    documents.remove("pair")
    assert documents.view("a") is None
    assert view_of(documents, "c").scope_id == "new"


def test_every_version_gets_its_own_bytes(notice: MakeNotice) -> None:
    """Spec §3."""
    documents, document = PublishedDocuments(), Document(incarnation=2, notices=(notice(),))
    documents.publish(scope(document=document))
    for version in VERSIONS:
        for iso_dates in (False, True):
            body = documents.rendered(view_of(documents, "a"), version, iso_dates=iso_dates).body
            assert body == encode_document(document, version, iso_dates=iso_dates)


def test_equal_bytes_are_kept_once() -> None:
    documents = PublishedDocuments()
    documents.publish(scope())
    documents.publish(scope("other", vms=("other",)))
    bodies = {
        id(documents.rendered(view_of(documents, vm), version, iso_dates=False).body)
        for vm in ("a", "b", "other")
        for version in VERSIONS
    }
    assert len(bodies) <= len(VERSIONS)
    assert (
        len({id(documents.rendered(view_of(documents, "a"), version, iso_dates=False).body) for version in VERSIONS})
        == 1
    )


def test_a_view_from_before_a_change_still_gets_its_own_bytes(notice: MakeNotice) -> None:
    documents = PublishedDocuments()
    documents.publish(scope())
    before = view_of(documents, "a")
    documents.publish(scope(document=Document(incarnation=2, notices=(notice(),))))
    assert documents.rendered(before, "2020-07-01", iso_dates=False).body == b'{"DocumentIncarnation":1,"Events":[]}'
    documents.remove("pair")
    assert documents.rendered(before, "2020-07-01", iso_dates=False).body == b'{"DocumentIncarnation":1,"Events":[]}'


def test_waiters_are_woken_once_in_batches_and_only_by_a_change() -> None:
    async def scenario() -> None:
        documents, woken = PublishedDocuments(), list[FakeWaiter]()
        documents.publish(scope())
        waiters = [FakeWaiter(woken) for _ in range(450)]
        for waiter in waiters:
            documents.add_waiter("pair", waiter)
        documents.remove_waiter("pair", waiters[0])
        documents.publish(replace(scope()))
        await asyncio.sleep(0)
        assert woken == []
        documents.publish(scope(document=Document(incarnation=2)))
        batches = []
        while len(woken) < 449:
            await asyncio.sleep(0)
            batches.append(len(woken))
        assert batches[:3] == [200, 400, 449]
        assert woken == waiters[1:]
        documents.publish(scope(document=Document(incarnation=3)))
        await asyncio.sleep(0)
        assert len(woken) == 449

    asyncio.run(scenario())


def test_a_new_epoch_is_a_change_even_at_the_same_incarnation() -> None:
    """Spec §4.3: a scope that is enabled again has another document."""

    async def scenario() -> None:
        documents, woken = PublishedDocuments(), list[FakeWaiter]()
        documents.publish(scope())
        documents.add_waiter("pair", FakeWaiter(woken))
        documents.publish(scope(epoch=2))
        await asyncio.sleep(0)
        assert len(woken) == 1

    asyncio.run(scenario())


def test_only_an_observed_enabling_delays_responses() -> None:
    """Spec §8.1: counted from enabling; a restart does not delay again."""

    async def scenario() -> None:
        documents = PublishedDocuments(first_answer_delay_s=60)
        documents.publish(scope(enabled=False))
        documents.publish(scope("old", vms=("old",)))
        assert view_of(documents, "a").delayed_until == 0.0
        documents.publish(scope(enabled=True))
        delayed = view_of(documents, "a").delayed_until
        assert delayed > asyncio.get_running_loop().time()
        documents.publish(scope(document=Document(incarnation=2)))
        assert view_of(documents, "a").delayed_until == delayed
        assert view_of(documents, "old").delayed_until == 0.0

    asyncio.run(scenario())


def test_all_vms_of_an_ordinary_scope_share_one_document(notice: MakeNotice) -> None:
    """Narrow delivery costs other scopes nothing: no document is made per VM."""
    documents, document = PublishedDocuments(), Document(incarnation=2, notices=(notice(resources=("a",)),))
    documents.publish(scope(document=document))
    assert view_of(documents, "a").document is view_of(documents, "b").document is document


def test_a_vm_of_a_narrow_scope_sees_its_own_events_and_the_incarnation_of_the_scope(notice: MakeNotice) -> None:
    """Spec §14.6: names are compared without case, and equal polls of other VMs are not answered alike."""
    own, other = notice("E1", resources=("A", "c")), notice("E2", resources=("b",))
    documents, document = PublishedDocuments(), Document(incarnation=7, notices=(own, other))
    documents.publish(replace(scope(vms=("a", "b", "c"), document=document), is_narrow=True))
    seen = {vm: view_of(documents, vm).document for vm in "abc"}
    assert seen == {
        "a": Document(incarnation=7, notices=(own,)),
        "b": Document(incarnation=7, notices=(other,)),
        "c": Document(incarnation=7, notices=(own,)),
    }
    version = next(iter(VERSIONS))
    for vm, shown in seen.items():
        body = documents.rendered(view_of(documents, vm), version, iso_dates=False).body
        assert body == encode_document(shown, version)


def test_a_narrow_scope_gets_no_other_document_where_all_events_hit_the_vm(notice: MakeNotice) -> None:
    document = Document(incarnation=2, notices=(notice(resources=("a", "b")),))
    assert document.narrowed_to("B") is document


def test_a_stale_document_of_a_narrow_scope_is_narrow_too(notice: MakeNotice) -> None:
    """Spec §11, §14.6."""

    async def scenario() -> None:
        documents, now = PublishedDocuments(), asyncio.get_running_loop().time()
        documents.stale_documents.set_enabled(True)
        old = Document(incarnation=2, notices=(notice("E1", resources=("a",)), notice("E2", resources=("b",))))
        documents.publish(replace(scope(document=old), is_narrow=True))
        documents.publish(replace(scope(vms=("a", "b", "new"), document=Document(incarnation=4)), is_narrow=True))
        stale = {vm: documents.stale_documents.view_at(view_of(documents, vm), now).document for vm in ("b", "new")}
        assert [one.id for one in stale["b"].notices] == ["E2"]
        assert stale["new"] == Document(incarnation=2)

    asyncio.run(scenario())


def test_waiters_wake_when_delivery_becomes_narrow() -> None:
    async def scenario() -> None:
        documents, woken = PublishedDocuments(), list[FakeWaiter]()
        documents.publish(scope())
        documents.add_waiter("pair", waiter := FakeWaiter(woken))
        documents.publish(replace(scope(), is_narrow=True))
        await asyncio.sleep(0)
        assert woken == [waiter]

    asyncio.run(scenario())
