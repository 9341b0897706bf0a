"""From document to document: what a watcher is told, and what it can know of how an event ended (spec §4.2, §6.1)."""

import json

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

FINISHED, WITHDRAWN, UNKNOWN = Outcome.FINISHED, Outcome.WITHDRAWN, Outcome.UNKNOWN


def events(words: str) -> tuple[Event, ...]:
    """`A B* C` are A and C scheduled and B started."""
    listed = [
        {
            "EventId": word.strip("*"),
            "EventStatus": "Started" if "*" in word else "Scheduled",
            "EventType": "Reboot",
            "Resources": ["web-0"],
            "NotBefore": "" if "*" in word else "Mon, 19 Sep 2016 18:29:47 GMT",
        }
        for word in words.split()
    ]
    return decode_document(json.dumps({"Events": listed}).encode()).events


def sight(incarnation: int, words: str, *, epoch: str = "1", boot: str = "", behind_s: float = 0.0) -> ObservedDocument:
    return ObservedDocument(
        incarnation=incarnation, events=events(words), epoch=epoch, boot_id=boot, older_for_s=behind_s, vm_name="web-0"
    )


def told(*sights: ObservedDocument) -> list[str]:
    """What the last of these tells, in short."""
    known, news = KnownDocument(), ()
    for one in sights:
        known, news = detect_changes(known, one)
    return [short(change) for change in news]


def short(change: Change) -> str:
    match change:
        case Scheduled(event=event):
            return f"{event.id} scheduled"
        case Started(event=event, first=first):
            return f"{event.id} started{' at first sight' if first else ''}"
        case Gone(event=event, outcome=outcome):
            return f"{event.id} {outcome}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, ""), (2, "A"), ["A scheduled"]),
        ((2, "A"), (3, "A*"), ["A started"]),
        ((1, ""), (3, "A*"), ["A started at first sight"]),
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
        ((2, "A"), (4, "B*"), ["A withdrawn", "B started at first sight"]),
        ((2, "A"), (5, "B*"), ["A unknown", "B started at first sight"]),
        ((4, "A* B"), (6, ""), ["A finished", "B withdrawn"]),
        ((4, "A* B"), (7, ""), ["A finished", "B finished"]),
        ((-1, "A"), (-1, ""), ["A unknown"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_document_tells_what_became_of_every_event(
    before: tuple[int, str], after: tuple[int, str], expected: list[str]
) -> None:
    """Spec §4.2: the incarnation grows by one for each event added, started or removed."""
    assert told(sight(*before), sight(*after)) == expected


def test_changes_come_in_the_order_in_which_their_events_were_published() -> None:
    """The start of one event is told before a later one is scheduled, whatever the order of the list."""
    assert told(sight(5, "A B C"), sight(8, "E C* B")) == ["A withdrawn", "C started", "E scheduled"]


def test_the_same_document_tells_nothing_twice() -> None:
    assert told(sight(2, "A"), sight(2, "A")) == []


def test_what_has_started_does_not_become_scheduled_again() -> None:
    assert told(sight(3, "A*"), sight(4, "A")) == []
    assert told(sight(3, "A*"), sight(4, "A"), sight(5, "")) == ["A finished"]


def test_a_kind_that_the_version_hides_may_have_taken_the_second_step() -> None:
    """Spec §3: the incarnation is the scope's, whatever the version."""
    known, _ = detect_changes(KnownDocument(), sight(2, "A"))
    hiding = ObservedDocument(incarnation=4, events=(), epoch="1", shows_all_kinds=False)
    assert [short(change) for change in detect_changes(known, hiding)[1]] == ["A unknown"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (sight(9, "", boot="two"), "A finished"),
        (sight(9, "", boot="one"), "A unknown"),
        (sight(3, "", boot="two"), "A withdrawn"),
        (sight(1, "", epoch="2", boot="two"), "A finished"),
        (sight(1, "", epoch="2", boot="one"), "A unknown"),
        (ObservedDocument(incarnation=9, events=(), boot_id="two", vm_name="web-1"), "A unknown"),
        (ObservedDocument(incarnation=9, events=(), boot_id="two"), "A unknown"),
    ],
    ids=["rebooted", "same boot", "rebooted for other reasons", "rebooted and reset", "reset", "neighbour", "no name"],
)
def test_a_reboot_of_this_vm_narrows_what_is_unknown(after: ObservedDocument, expected: str) -> None:
    assert told(sight(2, "A", boot="one"), after) == [expected]


def test_a_reboot_while_an_event_was_still_to_come_says_nothing_about_its_end() -> None:
    first, rebooted = sight(2, "A", boot="one"), sight(2, "A", boot="two")
    assert told(first, rebooted, sight(9, "", boot="two")) == ["A unknown"]
    assert told(first, rebooted, sight(9, "", boot="three")) == ["A finished"]


def test_a_stale_document_of_the_same_epoch_is_ignored() -> None:
    """Spec §11: a document up to a minute stale."""
    assert told(sight(3, "A B"), sight(2, "A")) == []
    assert told(sight(3, "A B"), sight(2, "A"), sight(3, "A B")) == []
    assert told(sight(3, ""), sight(2, "A")) == []


@pytest.mark.parametrize("epoch", ["1", ""], ids=["with epochs", "without"])
def test_what_stays_behind_for_longer_than_a_document_is_stale_is_taken(epoch: str) -> None:
    """A service that was restored from a backup must not be ignored for ever."""
    before, after = sight(30, "A", epoch=epoch), sight(20, "B", epoch=epoch, behind_s=MAX_STALE_S)
    assert told(before, after) == ["A unknown", "B scheduled"]


def test_a_new_epoch_is_taken_as_it_is_and_known_events_are_not_told_again() -> None:
    """Spec §4.2: starts over at 1, with what is pending already listed."""
    assert told(sight(7, "A B*"), sight(1, "A B*", epoch="2")) == []
    assert told(sight(7, "A"), sight(2, "A B", epoch="2")) == ["B scheduled"]
    assert told(sight(7, "A*"), sight(1, "", epoch="2")) == ["A finished"]


def test_another_scope_is_taken_as_it_is_though_its_numbers_are_the_same() -> None:
    here, there = "1-0a1b2c3d", "1-ffffffff"
    assert told(sight(7, "A", epoch=here), sight(7, "B", epoch=there)) == ["A unknown", "B scheduled"]
    assert told(sight(7, "A", epoch=here), sight(2, "A", epoch=there)) == []
    assert told(sight(7, "A", epoch="1"), sight(7, "A", epoch=here)) == []


def test_without_epochs_a_fall_to_a_small_number_is_a_reset() -> None:
    """Spec §4.2, on servers without our ETag."""
    assert (
        document_freshness(KnownDocument(incarnation=40), ObservedDocument(incarnation=1, events=()))
        is DocumentFreshness.RESET
    )
    assert told(sight(40, "A", epoch=""), sight(1, "A", epoch=""), sight(2, "A B", epoch="")) == ["B scheduled"]


def test_in_doubt_news_is_told_at_once_and_nothing_is_taken_back() -> None:
    """A Preempt in a scope that was just reset cannot wait for a minute; a stale document must not undo anything."""
    first, doubtful = sight(3, "A B", epoch=""), sight(2, "A C", epoch="")
    assert told(first, doubtful) == ["C scheduled"]
    assert told(first, doubtful, doubtful) == []
    assert told(first, sight(4, "B", epoch=""), sight(3, "A B", epoch="")) == [], "what is gone does not come back"


def test_after_doubt_the_incarnation_is_not_counted_on() -> None:
    assert told(sight(5, "A", epoch=""), sight(4, "B", epoch=""), sight(7, "B", epoch="")) == ["A unknown"]


@pytest.mark.parametrize(
    ("tag", "epoch"),
    [
        *(('"3-17"', "3"), ('W/"3-17"', "3"), ("", ""), ('"abc"', ""), ('"a-b"', ""), ('"5f-1"', ""), ('"٣-1"', "")),
        *(('"3-17-0a1b2c3d"', "3-0a1b2c3d"), ('"3-17-x"', ""), ('"3-17-"', "")),
        *((f'"{"9" * 5000}-1"', ""), (f'"1-{"9" * 5000}"', "")),
    ],
)
def test_the_epoch_is_read_from_our_own_tags_only(tag: str, epoch: str) -> None:
    """Spec §4.3."""
    assert epoch_from_etag(tag) == epoch


def test_events_of_unknown_kinds_and_statuses_are_told_as_scheduled() -> None:
    strange = decode_document(
        b'{"Events":[{"EventId":"A","EventStatus":"Pending","EventType":"Teleport","Beam":1}]}'
    ).events
    _, (change,) = detect_changes(KnownDocument(), ObservedDocument(incarnation=1, events=strange))
    assert isinstance(change, Scheduled)
    assert (change.event.kind, change.event.raw["Beam"], change.event.resources) == ("Teleport", 1, ())


def test_events_without_an_id_and_events_listed_twice_are_followed_too() -> None:
    twice = decode_document(
        b'{"Events":[{"EventId":"a"},{"EventId":"A"},{"EventType":"Freeze","Resources":["x"]}]}'
    ).events
    known, news = detect_changes(KnownDocument(), ObservedDocument(incarnation=3, events=twice))
    assert len(news) == 2
    assert detect_changes(known, ObservedDocument(incarnation=3, events=twice))[1] == ()


LISTS = st.lists(st.sampled_from("ABCDE"), unique=True).flatmap(
    lambda ids: st.tuples(*(st.sampled_from((word, f"{word}*")) for word in ids)).map(" ".join)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 30), LISTS, st.sampled_from(["", "1", "2"])), max_size=8))
def test_whatever_comes_every_event_has_one_beginning_and_one_end(
    documents: list[tuple[int, str, str]],
) -> None:
    """No event is told as new while it is known, none ends that was not begun."""
    known, alive = KnownDocument(), set()
    for incarnation, words, epoch in documents:
        known, news = detect_changes(known, sight(incarnation, words, epoch=epoch))
        for change in news:
            match change:
                case Gone(event=event):
                    alive.remove(event.id)
                case Started(event=event, first=False):
                    assert event.id in alive
                case Scheduled(event=event) | Started(event=event):
                    assert event.id not in alive
                    alive.add(event.id)
        assert alive == {seen.event.id for seen in known.events}
