"""Messages between owner and workers arrive complete and in order, however the bytes are split."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.metadata import (
    CalledAddressIdentity,
    DedicatedIdentity,
    DeviceIdentity,
    MarkIdentity,
    PortIdentity,
    PublishedScope,
    ResetConnection,
    SourceAddressIdentity,
)
from forewarn.metadata.identity import IdentityStrategy
from forewarn.metadata.workers.messages import (
    ChannelBroken,
    ChannelMessage,
    EchoRequest,
    FrameDecoder,
    TokenDenied,
    WorkerReady,
    encode_frame,
    encode_message,
    open_message,
    reply_message,
    scope_message,
)
from forewarn.protocol.document import Document, EventNotice, EventSource, Kind, NoticeStatus
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.managed_identity import ManagedIdentityToken, WrongResource

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_TUPLES = {"tags": st.lists(st.tuples(_TEXT, _TEXT), max_size=2).map(tuple), "public_keys": st.just(("key",))}
_FACTS = st.builds(InstanceFacts, **{field.name: _TUPLES.get(field.name, _TEXT) for field in fields(InstanceFacts)})
_NOTICES = st.builds(
    EventNotice,
    id=_TEXT,
    status=st.sampled_from(NoticeStatus),
    kind=st.sampled_from(Kind),
    resources=st.lists(_TEXT, max_size=3).map(tuple),
    not_before=st.none() | st.floats(0, 4e9),
    description=_TEXT,
    source=st.sampled_from(EventSource),
    duration_s=st.integers(-1, 100),
)
_VIEWS = st.builds(
    PublishedScope,
    scope_id=_TEXT,
    enabled=st.booleans(),
    epoch=st.integers(0, 9),
    document=st.builds(
        Document, incarnation=st.integers(1, 99), notices=st.lists(_NOTICES, max_size=3).map(tuple), roles=st.booleans()
    ),
    vms=st.dictionaries(_TEXT, _FACTS, max_size=3),
    poll_override=st.none()
    | st.just(ResetConnection())
    | st.builds(
        HttpResponse, status=st.just(503), headers=st.just((("Retry-After", "1"),)), body=st.binary(max_size=5)
    ),
    is_narrow=st.booleans(),
)


def encode_frames(*messages: ChannelMessage, first: int = 1) -> bytes:
    return b"".join(encode_frame(number, encode_message(message)) for number, message in enumerate(messages, first))


@given(st.lists(_VIEWS, max_size=4), st.data())
def test_published_scopes_arrive_unchanged_however_the_bytes_are_split(
    views: list[PublishedScope], data: st.DataObject
) -> None:
    raw = encode_frames(*map(scope_message, views))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    frames = FrameDecoder(for_worker=True)
    received = [
        message.to_published_scope()
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)
        for message in frames.feed(raw[begin:end])
    ]
    assert received == views


def test_equal_documents_share_one_object() -> None:
    view = PublishedScope(scope_id="a", enabled=True, epoch=1, document=Document(incarnation=7), vms={})
    raw = encode_frames(scope_message(view), scope_message(view))
    one, other = (message.to_published_scope() for message in FrameDecoder(for_worker=True).feed(raw))
    assert one.document is other.document


@pytest.mark.parametrize(
    "raw",
    [
        encode_frames(EchoRequest(1), first=2),
        encode_frames(EchoRequest(1)) + encode_frames(EchoRequest(2), first=3),
        encode_frames(EchoRequest(1)) + encode_frames(EchoRequest(1)),
        encode_frames(WorkerReady()),
        encode_frame(1, b"nonsense"),
    ],
    ids=["the first is missing", "one is missing", "one comes twice", "it is for the owner", "it is no message"],
)
def test_a_frame_out_of_order_or_unreadable_breaks_the_channel(raw: bytes) -> None:
    with pytest.raises(ChannelBroken):
        list(FrameDecoder(for_worker=True).feed(raw))


@pytest.mark.parametrize(
    "strategy",
    [
        CalledAddressIdentity(),
        PortIdentity(),
        SourceAddressIdentity("blue"),
        DedicatedIdentity("web-0"),
        DeviceIdentity("inner"),
        MarkIdentity("br0", "inner"),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_every_identity_strategy_can_be_sent(strategy: IdentityStrategy) -> None:
    (message,) = FrameDecoder(for_worker=True).feed(encode_frames(open_message(1, strategy, is_loopback=False)))
    assert message.identity_strategy() == strategy


def test_a_token_is_sent_but_not_in_the_repr_of_its_message() -> None:
    granted = reply_message(1, ManagedIdentityToken(text="secret", not_before=1.0, expires_at=2.0))
    assert "secret" not in repr(granted)
    assert list(FrameDecoder(for_worker=True).feed(encode_frames(granted))) == [granted]
    assert reply_message(2, WrongResource(accepted=("a",))) == TokenDenied(2, ("a",))
