"""What an owner tells its workers arrives as it was said: whole, in order, whatever the line makes of the bytes."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.metadata import BoundDevice, CalledAddress, Fixed, Mark, PerPort, Reset, ScopeView, SourceAddress, feed
from forewarn.metadata.identity import Strategy
from forewarn.protocol.document import Document, Kind, Notice, Source, Status
from forewarn.protocol.identity import Token, WrongResource
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.message import Response

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_TUPLES = {"tags": st.lists(st.tuples(_TEXT, _TEXT), max_size=2).map(tuple), "public_keys": st.just(("key",))}
_FACTS = st.builds(InstanceFacts, **{field.name: _TUPLES.get(field.name, _TEXT) for field in fields(InstanceFacts)})
_NOTICES = st.builds(
    Notice,
    id=_TEXT,
    status=st.sampled_from(Status),
    kind=st.sampled_from(Kind),
    resources=st.lists(_TEXT, max_size=3).map(tuple),
    not_before=st.none() | st.floats(0, 4e9),
    description=_TEXT,
    source=st.sampled_from(Source),
    duration_s=st.integers(-1, 100),
)
_VIEWS = st.builds(
    ScopeView,
    scope_id=_TEXT,
    enabled=st.booleans(),
    epoch=st.integers(0, 9),
    document=st.builds(
        Document, incarnation=st.integers(1, 99), notices=st.lists(_NOTICES, max_size=3).map(tuple), roles=st.booleans()
    ),
    vms=st.dictionaries(_TEXT, _FACTS, max_size=3),
    instead=st.none()
    | st.just(Reset())
    | st.builds(Response, status=st.just(503), headers=st.just((("Retry-After", "1"),)), body=st.binary(max_size=5)),
)


def framed(*messages: feed.Message, first: int = 1) -> bytes:
    return b"".join(feed.frame(number, feed.pack(message)) for number, message in enumerate(messages, first))


@given(st.lists(_VIEWS, max_size=4), st.data())
def test_what_is_shown_arrives_as_it_was_said_however_the_bytes_are_cut(
    views: list[ScopeView], data: st.DataObject
) -> None:
    raw = framed(*map(feed.show, views))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    frames = feed.Frames(for_worker=True)
    heard = [
        message.view()
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)
        for message in frames.feed(raw[begin:end])
    ]
    assert heard == views


def test_equal_documents_are_kept_once() -> None:
    view = ScopeView(scope_id="a", enabled=True, epoch=1, document=Document(incarnation=7), vms={})
    raw = framed(feed.show(view), feed.show(view))
    one, other = (message.view() for message in feed.Frames(for_worker=True).feed(raw))
    assert one.document is other.document


@pytest.mark.parametrize(
    "raw",
    [
        framed(feed.Echo(1), first=2),
        framed(feed.Echo(1)) + framed(feed.Echo(2), first=3),
        framed(feed.Echo(1)) + framed(feed.Echo(1)),
        framed(feed.Ready()),
        feed.frame(1, b"nonsense"),
    ],
    ids=["the first is missing", "one is missing", "one comes twice", "it is for others", "it is no message"],
)
def test_what_is_no_continuation_is_not_listened_to(raw: bytes) -> None:
    with pytest.raises(feed.Broken):
        list(feed.Frames(for_worker=True).feed(raw))


@pytest.mark.parametrize(
    "strategy",
    [CalledAddress(), PerPort(), SourceAddress("blue"), Fixed("web-0"), BoundDevice("inner"), Mark("br0", "inner")],
    ids=lambda strategy: type(strategy).__name__,
)
def test_every_way_to_tell_a_vm_can_be_told(strategy: Strategy) -> None:
    (message,) = feed.Frames(for_worker=True).feed(framed(feed.opening(1, strategy, is_loopback=False)))
    assert message.told_by() == strategy


def test_a_token_is_said_and_shown_to_nobody() -> None:
    given = feed.reply(1, Token(text="secret", not_before=1.0, expires_at=2.0))
    assert "secret" not in repr(given)
    assert list(feed.Frames(for_worker=True).feed(framed(given))) == [given]
    assert feed.reply(2, WrongResource(accepted=("a",))) == feed.Denied(2, ("a",))
