"""Changes between documents, and how an event ended (spec §4.2, §6.1)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.client import Change, Event, Gone, Outcome, Scheduled, Started
from forewarn.client.change_detection import (
    MAX_STALE_S,
    DocumentFreshness,
    KnownDocument,
    ObservedDocument,
    detect_changes,
    document_freshness,
    epoch_from_etag,
)
from forewarn.protocol.codec import decode_document
from forewarn.protocol.exchange import body_digest, etag

FINISHED, WITHDRAWN, UNKNOWN = Outcome.FINISHED, Outcome.WITHDRAWN, Outcome.UNKNOWN


def events(text: str) -> tuple[Event, ...]:
    """`A B* C` means: A and C are scheduled, B has started."""
    listed = [
        {
            "EventId": word.strip("*"),
            "EventStatus": "Started" if "*" in word else "Scheduled",
            "EventType": "Reboot",
            "Resources": ["web-0"],
            "NotBefore": "" if "*" in word else "Mon, 19 Sep 2016 18:29:47 GMT",
        }
        for word in text.split()
    ]
    return decode_document(json.dumps({"DocumentIncarnation": 1, "Events": listed}).encode()).events


def observed(
    incarnation: int,
    text: str,
    *,
    epoch: str = "1",
    boot: str = "",
    older_for_s: float = 0.0,
    unusable: tuple[str, ...] = (),
) -> ObservedDocument:
    return ObservedDocument(
        incarnation=incarnation,
        events=events(text),
        unusable=unusable,
        epoch=epoch,
        boot_id=boot,
        older_for_s=older_for_s,
        vm_name="web-0",
    )


def changes_after(*documents: ObservedDocument) -> list[str]:
    """The changes of the last of these documents, in short form."""
    known = KnownDocument()
    changes: tuple[Change, ...] = ()
    for document in documents:
        known, changes = detect_changes(known, document)
    return [short_form(change) for change in changes]


def short_form(change: Change) -> str:
    match change:
        case Scheduled(event=event):
            return f"{event.id} scheduled"
        case Started(event=event, first=first):
            return f"{event.id} started{' without notice' if first else ''}"
        case Gone(event=event, outcome=outcome):
            return f"{event.id} {outcome}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, ""), (2, "A"), ["A scheduled"]),
        ((2, "A"), (3, "A*"), ["A started"]),
        ((1, ""), (3, "A*"), ["A started without notice"]),
        ((3, "A*"), (4, ""), ["A finished"]),
        ((2, "A"), (3, ""), ["A withdrawn"]),
        ((2, "A"), (4, ""), ["A finished"]),
        ((2, "A"), (5, ""), ["A unknown"]),
        ((2, "A"), (2, ""), ["A unknown"]),
        ((3, "A B"), (5, ""), ["A withdrawn", "B withdrawn"]),
        ((3, "A B"), (6, ""), ["A unknown", "B unknown"]),
        ((3, "A B"), (7, ""), ["A unknown", "B unknown"]),
        ((3, "A B"), (5, "B*"), ["A withdrawn", "B started"]),
        ((3, "A B"), (6, "B*"), ["A finished", "B started"]),
        ((2, "A"), (4, "B"), ["A withdrawn", "B scheduled"]),
        ((2, "A"), (5, "B"), ["A finished", "B scheduled"]),
        ((2, "A"), (4, "B*"), ["A withdrawn", "B started without notice"]),
        ((2, "A"), (5, "B*"), ["A unknown", "B started without notice"]),
        ((4, "A* B"), (6, ""), ["A finished", "B withdrawn"]),
        ((4, "A* B"), (7, ""), ["A finished", "B finished"]),
        ((-1, "A"), (-1, ""), ["A unknown"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_document_shows_what_happened_to_every_event(
    before: tuple[int, str], after: tuple[int, str], expected: list[str]
) -> None:
    """Spec §4.2: the incarnation grows by one for each event added, started or removed."""
    assert changes_after(observed(*before), observed(*after)) == expected


def test_changes_come_in_the_order_in_which_their_events_were_published() -> None:
    """The start of one event comes before a later event is scheduled, whatever the order of the list."""
    assert changes_after(observed(5, "A B C"), observed(8, "E C* B")) == ["A withdrawn", "C started", "E scheduled"]


def test_the_same_document_yields_no_changes_the_second_time() -> None:
    assert changes_after(observed(2, "A"), observed(2, "A")) == []


def test_a_started_event_does_not_become_scheduled_again() -> None:
    assert changes_after(observed(3, "A*"), observed(4, "A")) == []
    assert changes_after(observed(3, "A*"), observed(4, "A"), observed(5, "")) == ["A finished"]


def test_an_event_of_a_hidden_kind_may_explain_the_second_step_of_the_incarnation() -> None:
    """Spec §3: the incarnation belongs to the scope, whatever the version."""
    known, _ = detect_changes(KnownDocument(), observed(2, "A"))
    hiding = ObservedDocument(incarnation=4, events=(), epoch="1", shows_all_kinds=False)
    assert [short_form(change) for change in detect_changes(known, hiding)[1]] == ["A unknown"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (observed(9, "", boot="two"), "A finished"),
        (observed(9, "", boot="one"), "A unknown"),
        (observed(3, "", boot="two"), "A withdrawn"),
        (observed(1, "", epoch="2", boot="two"), "A finished"),
        (observed(1, "", epoch="2", boot="one"), "A unknown"),
        (ObservedDocument(incarnation=9, events=(), boot_id="two", vm_name="web-1"), "A unknown"),
        (ObservedDocument(incarnation=9, events=(), boot_id="two"), "A unknown"),
    ],
    ids=["rebooted", "same boot", "rebooted for other reasons", "rebooted and reset", "reset", "neighbour", "no name"],
)
def test_a_reboot_of_this_vm_shows_that_its_event_has_finished(after: ObservedDocument, expected: str) -> None:
    assert changes_after(observed(2, "A", boot="one"), after) == [expected]


def test_a_reboot_before_an_event_started_says_nothing_about_its_end() -> None:
    first, rebooted = observed(2, "A", boot="one"), observed(2, "A", boot="two")
    assert changes_after(first, rebooted, observed(9, "", boot="two")) == ["A unknown"]
    assert changes_after(first, rebooted, observed(9, "", boot="three")) == ["A finished"]


def moved(document: ObservedDocument, *, by_s: float = 60, repeats: bool = True) -> ObservedDocument:
    """The document with later times of its scheduled events, for a watch that reports them or not."""
    later = tuple(
        replace(each, not_before=None if each.not_before is None else each.not_before + by_s)
        for each in document.events
    )
    return replace(document, events=later, repeats_moved=repeats)


def test_another_not_before_is_reported_only_to_a_watch_that_wants_it() -> None:
    before, after = observed(3, "A B B2*"), observed(4, "A B B2*")
    assert changes_after(before, moved(after)) == ["A scheduled", "B scheduled"]
    assert changes_after(before, moved(after, repeats=False)) == []
    assert changes_after(before, moved(after, by_s=0)) == []
    assert changes_after(before, moved(after), moved(after)) == []
    assert changes_after(before, moved(observed(4, "A* B B2*"))) == ["A started", "B scheduled"]
    assert changes_after(before, moved(observed(2, "A B B2*"))) == []  # stale


def test_a_stale_document_of_the_same_epoch_is_ignored() -> None:
    """Spec §11: a document up to a minute stale."""
    assert changes_after(observed(3, "A B"), observed(2, "A")) == []
    assert changes_after(observed(3, "A B"), observed(2, "A"), observed(3, "A B")) == []
    assert changes_after(observed(3, ""), observed(2, "A")) == []


@pytest.mark.parametrize("epoch", ["1", ""], ids=["with epochs", "without"])
def test_an_older_document_is_accepted_after_the_maximum_staleness(epoch: str) -> None:
    """A service that was restored from a backup must not be ignored for ever."""
    before, after = observed(30, "A", epoch=epoch), observed(20, "B", epoch=epoch, older_for_s=MAX_STALE_S)
    assert changes_after(before, after) == ["A unknown", "B scheduled"]


def test_a_new_epoch_is_accepted_and_known_events_are_not_announced_again() -> None:
    """Spec §4.2: the incarnation restarts at 1, and pending events are listed already."""
    assert changes_after(observed(7, "A B*"), observed(1, "A B*", epoch="2")) == []
    assert changes_after(observed(7, "A"), observed(2, "A B", epoch="2")) == ["B scheduled"]
    assert changes_after(observed(7, "A*"), observed(1, "", epoch="2")) == ["A finished"]


def test_another_scope_is_accepted_although_its_incarnation_is_the_same() -> None:
    here, there = "1-0a1b2c3d", "1-ffffffff"
    assert changes_after(observed(7, "A", epoch=here), observed(7, "B", epoch=there)) == ["A unknown", "B scheduled"]
    assert changes_after(observed(7, "A", epoch=here), observed(2, "A", epoch=there)) == []
    assert changes_after(observed(7, "A", epoch="1"), observed(7, "A", epoch=here)) == []


def test_without_epochs_a_fall_to_a_small_number_is_a_reset() -> None:
    """Spec §4.2, on servers without our ETag."""
    assert (
        document_freshness(KnownDocument(incarnation=40), ObservedDocument(incarnation=1, events=()))
        is DocumentFreshness.RESET
    )
    assert changes_after(observed(40, "A", epoch=""), observed(1, "A", epoch=""), observed(2, "A B", epoch="")) == [
        "B scheduled"
    ]


def test_a_doubtful_document_adds_new_events_and_removes_none() -> None:
    """A Preempt in a scope that was just reset cannot wait; a stale document must not undo anything."""
    first, doubtful = observed(3, "A B", epoch=""), observed(2, "A C", epoch="")
    assert changes_after(first, doubtful) == ["C scheduled"]
    assert changes_after(first, doubtful, doubtful) == []
    assert changes_after(first, observed(4, "B", epoch=""), observed(3, "A B", epoch="")) == [], (
        "what is gone does not come back"
    )


def test_after_a_doubtful_document_the_incarnation_decides_no_outcome() -> None:
    assert changes_after(observed(5, "A", epoch=""), observed(4, "B", epoch=""), observed(7, "B", epoch="")) == [
        "A unknown"
    ]


@pytest.mark.parametrize(
    ("tag", "epoch"),
    [
        *(('"3-17"', "3"), ('W/"3-17"', "3"), ("", ""), ('"abc"', ""), ('"a-b"', ""), ('"5f-1"', ""), ('"٣-1"', "")),
        *(('"3-17-0a1b2c3d"', "3-0a1b2c3d"), ('"3-17-x"', ""), ('"3-17-"', "")),
        ('"3-17-0a1b2c3d4e5f6071"', "3-0a1b2c3d4e5f6071"),
        *((f'"{"9" * 5000}-1"', ""), (f'"1-{"9" * 5000}"', "")),
    ],
)
def test_the_epoch_is_read_only_from_etags_of_this_service(tag: str, epoch: str) -> None:
    """Spec §4.3."""
    assert epoch_from_etag(tag) == epoch


def test_events_of_unknown_kinds_and_statuses_count_as_scheduled() -> None:
    strange = Event(id="A", status="Pending", kind="Teleport", raw={"Beam": 1})
    _, (change,) = detect_changes(KnownDocument(), ObservedDocument(incarnation=1, events=(strange,)))
    assert isinstance(change, Scheduled)
    assert (change.event.kind, change.event.raw["Beam"], change.event.resources) == ("Teleport", 1, ())


def test_an_event_that_is_listed_twice_is_tracked_once() -> None:
    twice = (Event(id="a"), Event(id="A"), Event(id="B"))
    known, changes = detect_changes(KnownDocument(), ObservedDocument(incarnation=3, events=twice))
    assert len(changes) == 2
    assert detect_changes(known, ObservedDocument(incarnation=3, events=twice))[1] == ()


NAMELESS = ("",)


@pytest.mark.parametrize("after", [3, 4, 9], ids=["same incarnation", "next", "later"])
@pytest.mark.parametrize("unusable", [NAMELESS, ("", ""), ("C", "")], ids=["one", "two", "one of two"])
def test_an_unusable_element_without_an_id_may_be_any_missing_event_so_none_is_over(
    after: int, unusable: tuple[str, ...]
) -> None:
    assert changes_after(observed(3, "A B"), observed(after, "", unusable=unusable)) == []
    assert changes_after(observed(3, "A B"), observed(after, "B", unusable=unusable)) == []


def test_an_unusable_element_with_an_id_keeps_that_event_and_no_other() -> None:
    assert changes_after(observed(3, "A B"), observed(4, "", unusable=("a",))) == ["B unknown"]
    assert changes_after(observed(3, "A B"), observed(4, "A", unusable=("C",))) == ["B unknown"]


def test_usable_events_count_beside_unusable_elements() -> None:
    assert changes_after(observed(3, "A B"), observed(5, "A* C", unusable=NAMELESS)) == ["A started", "C scheduled"]


def test_events_that_were_kept_end_with_the_next_whole_document() -> None:
    broken = observed(3, "A", unusable=NAMELESS)
    assert changes_after(observed(3, "A B"), broken, observed(3, "A B")) == []
    assert changes_after(observed(3, "A B"), broken, observed(4, "A")) == ["B withdrawn"]
    later = observed(5, "A*", unusable=NAMELESS)
    assert changes_after(observed(3, "A B"), later, observed(6, "A*")) == ["B unknown"], "what was counted is not known"


def test_an_event_whose_element_was_unusable_is_announced_when_it_is_whole() -> None:
    assert changes_after(observed(1, ""), observed(3, "B", unusable=("A",)), observed(3, "A B")) == ["A scheduled"]


def test_a_reset_document_with_an_unusable_element_ends_nothing() -> None:
    assert changes_after(observed(9, "A B"), observed(1, "A", epoch="2", unusable=NAMELESS)) == []
    assert changes_after(observed(40, "A B", epoch=""), observed(1, "", epoch="", unusable=NAMELESS)) == []


def test_the_client_reads_the_epoch_of_every_etag_that_the_service_makes() -> None:
    """Without it, a stale document and a reset cannot be told apart."""
    first, second = body_digest(b"first"), body_digest(b"second")
    epoch = epoch_from_etag(etag("scope", 3, 17, first, "0a1b2c3d"))
    assert epoch.startswith("3-")
    assert epoch == epoch_from_etag(etag("scope", 3, 18, second, "0a1b2c3d")), "it stays as the content changes"
    assert epoch != epoch_from_etag(etag("scope", 3, 17, first, "4e5f6071"))


LISTS = st.lists(st.sampled_from("ABCDE"), unique=True).flatmap(
    lambda ids: st.tuples(*(st.sampled_from((word, f"{word}*")) for word in ids)).map(" ".join)
)
UNUSABLE = st.lists(st.sampled_from(["", "A", "B", "Z"]), max_size=2).map(tuple)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 30), LISTS, st.sampled_from(["", "1", "2"]), UNUSABLE), max_size=8))
def test_every_event_has_one_beginning_and_one_end_for_any_sequence_of_documents(
    documents: list[tuple[int, str, str, tuple[str, ...]]],
) -> None:
    """No known event is announced again, no unknown event ends, and none ends that may be listed."""
    known = KnownDocument()
    alive: set[str] = set()
    for incarnation, text, epoch, unusable in documents:
        known, changes = detect_changes(known, observed(incarnation, text, epoch=epoch, unusable=unusable))
        ended = {change.event.id for change in changes if isinstance(change, Gone)}
        assert not ended & set(unusable)
        assert not (ended and "" in unusable)
        for change in changes:
            match change:
                case Gone(event=event):
                    alive.remove(event.id)
                case Started(event=event, first=False):
                    assert event.id in alive
                case Scheduled(event=event) | Started(event=event):
                    assert event.id not in alive
                    alive.add(event.id)
        assert alive == {seen.event.id for seen in known.events}
