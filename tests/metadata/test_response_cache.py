"""A remembered answer is the answer that would be worked out anew, whatever is asked and whatever changes meanwhile.

Two servers are told the same scenario, one that use_response_cache and one that does not; nobody can tell them apart. The stories
are told over wires in memory, so that every packet arrives just as it was cut.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from email.utils import parsedate_to_datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.clock import ClockSetting, LabClock
from forewarn.core.faults import Fault, FaultKind
from forewarn.metadata import CallerDirectory, Limits, MetadataServer, PublishedDocuments
from forewarn.metadata.identity import Caller
from forewarn.metadata.interface import ResetConnection
from forewarn.protocol.document import NoticeStatus
from forewarn.protocol.exchange import EndpointRules, etag
from forewarn.protocol.http_message import HttpResponse
from tests.support.in_memory_transport import InMemoryTransport
from tests.support.metadata_backend import FakeMetadataBackend

PATH = b"/metadata/scheduledevents?api-version="
TURNS = 12  # more than any single step of the servers takes


def get(version=b"2020-07-01", *lines, http=b"1.1", header=b"Metadata: true"):
    head = b"".join(line + b"\r\n" for line in (b"Host: 169.254.169.254", header, *lines) if line)
    return b"GET " + PATH + version + b" HTTP/" + http + b"\r\n" + head + b"\r\n"


def post(body=b'{"StartRequests":[{"EventId":"EVENT-1"}]}'):
    head = b"POST " + PATH + b"2020-07-01 HTTP/1.1\r\nMetadata: true\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


TAGS = [etag("pair", 1, number).encode() for number in range(4)]
POLLS = [
    get(),
    get(b"2017-08-01"),
    get(b"2017-03-01", header=b""),
    get(b"2020-07-01", b"If-None-Match: " + TAGS[1]),
    get(b"2020-07-01", b"If-None-Match: " + TAGS[2] + b", " + TAGS[3]),
    get(b"2020-07-01", b"If-None-Match: junk"),
    get(b"2020-07-01", b"User-Agent: curl/8.1"),
]
LONG_POLLS = [get(b"2020-07-01", b"If-None-Match: " + TAGS[number], b"Prefer: wait=300") for number in (1, 2)]
ODD = [
    get(b"2020-07-01", b"Connection: close"),
    get(http=b"1.0"),
    get(b"2020-07-01", b"Connection: keep-alive", http=b"1.0"),
    b"\r\n" + get(),
    get(b"2020-07-01", b"Connection: Upgrade", b"Upgrade: h2c"),
    get(b"2020-07-01", b"Expect: 100-continue"),
    get(b"2020-07-01", b"Content-Length: 3") + b"abc",
    get(b"2020-07-01", b"X-Long: " + b"x" * 2000),
    get(b"2020-07-01", b"Origin: http://example.org"),
    get(b"nonsense"),
    get(header=b""),
    post(),
    post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}'),
    post(b'{"StartRequests":[{"EventId":"EVENT-2"},{"EventId":"EVENT-1"}]}'),
    post(b'{"StartRequests":[{"EventId":"NEVER-WAS"}]}'),
    post(b"{"),
    b"GET /metadata/instance?api-version=2021-02-01 HTTP/1.1\r\nMetadata: true\r\n\r\n",
    b"HEAD " + PATH + b"2020-07-01 HTTP/1.1\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\nno request\n\n",
]
VMS = ("a", "b", "other", "stranger")
FAULTS = [
    FaultKind.LATE_FIRST_ANSWER,
    FaultKind.EMPTY_BODY,
    FaultKind.GONE,
    FaultKind.THROTTLED,
    FaultKind.INTERNAL_ERROR,
    FaultKind.RESET,
    FaultKind.SLOW_BODY,
    FaultKind.STALE,
    FaultKind.UNKNOWN_VERSION_404,
]


class Telling:
    """One server, and what becomes of it step by step."""

    def __init__(self, notice, *, use_response_cache, limits):
        self.notice = notice
        self.documents, self.callers = PublishedDocuments(), CallerDirectory()
        self.backend = FakeMetadataBackend(self.documents)
        self.backend.add_scope("pair", "a", "b")
        self.backend.add_scope("single", "other", enabled=False)
        for vm in VMS[:3]:
            self.callers.assign(f"at {vm}", vm)
        self.server = MetadataServer(
            documents=self.documents,
            backend=self.backend,
            callers=self.callers,
            limits=limits,
            use_response_cache=use_response_cache,
        )
        self.wires = {}
        self.stock = []

    def wire(self, key):
        """This connection of the VM to this kind of listener: the open one, or a new one."""
        wire = self.wires.get(key)
        if wire is None or wire.is_closed:
            vm, is_loopback, _ = key
            place = f"at {vm}"
            caller = Caller(attachment=place, vm=self.callers.vm_at(place), is_loopback=is_loopback)
            wire = self.wires[key] = InMemoryTransport(self.server.add_connection(caller))
        return wire

    def send(self, key, requests, cuts):
        raw = b"".join(requests)
        places = sorted({min(cut, len(raw)) for cut in cuts})
        for start, end in zip([0, *places], [*places, len(raw)], strict=True):
            self.wire(key).send(raw[start:end])

    def flood(self, key, poll, count):
        self.wire(key).send(poll * count)

    def say_no_more(self, key):
        self.wire(key).send_eof()

    def stop_reading(self, key):
        self.wire(key).stop_reading()

    def read_on(self, key):
        self.wire(key).continue_reading()

    def show(self, scope_id, count):
        if self.is_there(scope_id):
            scheduled, started = (
                self.notice("EVENT-1"),
                self.notice("EVENT-2", status=NoticeStatus.STARTED, not_before=None),
            )
            self.backend.show(scope_id, *(scheduled, started)[:count])

    def republish(self, scope_id):
        if self.is_there(scope_id):
            self.backend.republish(scope_id)

    def drop_or_add(self, scope_id, enabled):
        if self.is_there(scope_id):
            self.backend.drop_scope(scope_id)
        else:
            self.backend.add_scope(scope_id, *("a", "b") if scope_id == "pair" else ("other",), enabled=enabled)

    def say_instead(self, scope_id, instead):
        if self.is_there(scope_id):
            vm = "a" if scope_id == "pair" else "other"
            view = self.documents.view(vm)
            scope = next(scope for key, scope in self.backend._scopes.items() if key == view.scope_id)
            self.documents.publish(replace(scope, poll_override=instead))

    def is_there(self, scope_id):
        return self.documents.view("a" if scope_id == "pair" else "other") is not None

    def seat(self, at, vm):
        if vm == "stranger":
            self.callers.release(f"at {at}")
        else:
            self.callers.assign(f"at {at}", vm)

    def arm(self, faults):
        self.server.faults.set_faults(
            [
                Fault(id=f"f{number}", kind=kind, who="ann", set_at=0.0, name=vm, vm=vm, scope_id="pair", count=count)
                for number, (kind, vm, count) in enumerate(faults)
            ]
        )

    def pass_time(self, seconds):
        self.backend.at += seconds

    def lose_store(self, is_away):
        self.backend.is_unavailable = is_away

    def take_stock(self):
        counters = self.server.counters
        polls, deliveries = self.server.observations.take_batch()
        touches = {(touch.fault_id, touch.vm): touch for touch in self.server.faults.take_hits()}
        self.stock.append(
            (
                counters.requests,
                +counters.answered,
                counters.held,
                {poll.vm: poll for poll in polls},
                deliveries,
                touches,
            )
        )

    def seen(self):
        """What can be told from outside."""
        return {key: (wire.received, wire.is_closed, wire.was_reset) for key, wire in self.wires.items()}, self.stock


async def settle(*tellings):
    """Until nothing happens any more by itself."""
    seen = None
    while seen != (seen := [(telling.seen(), telling.backend.waiting) for telling in tellings]):
        for _ in range(TURNS):
            await asyncio.sleep(0)


async def tell(steps, habits, notice, limits):
    """Between any two steps everybody asks what they always ask."""
    with_memory = Telling(notice, use_response_cache=True, limits=limits)
    without = Telling(notice, use_response_cache=False, limits=limits)
    polls = [("send", key, [request], []) for key, request in habits]
    for name, *details in [told for step in steps for told in (step, *polls)]:
        for telling in (with_memory, without):
            getattr(telling, name)(*details)
        await settle(with_memory, without)
        assert with_memory.seen() == without.seen(), (name, details)
    for telling in (with_memory, without):
        await telling.server.drain(0)
        telling.take_stock()
    assert with_memory.seen() == without.seen()


keys = st.tuples(st.sampled_from(("a", "a", "a", *VMS)), st.sampled_from([True, True, False]), st.integers(1, 2))
scopes = st.sampled_from(["pair", "single"])
polls = st.sampled_from(POLLS)
requests = st.one_of(polls, polls, polls, st.sampled_from(LONG_POLLS), st.sampled_from(ODD))
faults = st.tuples(st.sampled_from(FAULTS), st.sampled_from(VMS[:2]), st.sampled_from([None, 1, 2]))
insteads = st.sampled_from([None, HttpResponse(status=503), ResetConnection()])
habits = st.lists(st.tuples(keys, requests), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(
        st.just("send"), keys, st.lists(requests, min_size=1, max_size=4), st.lists(st.integers(0, 400), max_size=4)
    ),
    st.tuples(st.just("flood"), keys, polls, st.sampled_from([2, 3, 64, 65, 200])),
    st.tuples(st.sampled_from(["say_no_more", "stop_reading", "read_on"]), keys),
    st.tuples(st.just("show"), scopes, st.integers(0, 2)),
    st.tuples(st.just("republish"), scopes),
    st.tuples(st.just("drop_or_add"), scopes, st.booleans()),
    st.tuples(st.just("say_instead"), scopes, insteads),
    st.tuples(st.just("seat"), st.sampled_from(VMS[:3]), st.sampled_from(VMS)),
    st.tuples(st.just("arm"), st.lists(faults, max_size=2)),
    st.tuples(st.just("pass_time"), st.sampled_from([0.25, 0.5, 1.0, 60.0, 86_400.0])),
    st.tuples(st.just("lose_store"), st.booleans()),
    st.tuples(st.just("take_stock")),
)
limits = st.sampled_from([Limits(), Limits(), Limits(write_bytes=1000), Limits(requests_per_s=0.001)])


@given(steps=st.lists(steps, min_size=3, max_size=25), habits=habits, limits=limits)
@settings(max_examples=300, deadline=None)
def test_servers_with_and_without_a_cache_behave_the_same(notice, steps, habits, limits):
    """Whatever is asked, however it is cut or piled up, and whatever changes in between."""
    asyncio.run(tell(steps, habits, notice, limits))


A, A_TOO, A_ON_A_NETWORK = ("a", True, 1), ("a", True, 2), ("a", False, 1)
PREVIEW = get(b"2017-03-01", header=b"")


def asks(*requests, key=A):
    return [("send", key, [request], []) for request in requests]


STORIES = {
    "two versions in turns": [
        *asks(get(), get(), get()),
        ("pass_time", 1.0),
        *asks(get(b"2017-08-01")),
        ("take_stock",),
        *asks(get(), get(b"2017-08-01"), get()),
    ],
    "a header that only loopback does without": [
        *asks(PREVIEW, PREVIEW),
        *asks(get(), PREVIEW, PREVIEW, key=A_ON_A_NETWORK),
    ],
    "a request whose end looks like another": [
        ("send", A, [get(b"2017-08-01").removesuffix(b"\r\n") + b"X: ", get()], [len(get(b"2017-08-01")) + 1]),
        *asks(get(), get(), key=A_TOO),
    ],
    "more requests than are remembered": [
        *[step for number in range(40) for step in asks(*[get(b"2020-07-01", b"X: %d" % number)] * 2)],
        *asks(get(b"2020-07-01", b"X: 0"), get(b"2020-07-01", b"X: 39")),
        ("show", "pair", 1),
        *asks(get(b"2020-07-01", b"X: 39")),
    ],
    "two connections at once": [
        ("read_on", A_TOO),
        *asks(get(), get()),
        *asks(get(), get(), key=A_TOO),
        ("show", "pair", 1),
        *asks(get(), get(), key=A_TOO),
        *asks(get(), get()),
    ],
    "one VM at two places": [
        *asks(get(), get()),
        ("seat", "other", "a"),
        *asks(get(), get(), key=("other", True, 1)),
        ("seat", "a", "b"),
        *asks(get(), get(), key=("other", True, 1)),
        *asks(get()),
        *asks(get(), get()),
    ],
    "approvals that change nothing, and some that do": [
        *asks(post(), post()),
        ("show", "pair", 2),
        *asks(post(), post(), get(), post()),
        ("lose_store", True),
        *asks(post(), post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}'), post()),
        ("show", "pair", 0),
        *asks(post(), post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}'), post()),
        ("seat", "a", "other"),
        *asks(post(), post()),
    ],
    "behind a long poll": [
        *asks(get(), LONG_POLLS[0], get(), get()),
        ("show", "pair", 1),
        *asks(get()),
    ],
    "not read for a while": [
        *asks(get()),
        ("stop_reading", A),
        *asks(*[get()] * 20),
        ("read_on", A),
        *asks(get()),
    ],
}


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES.keys())
def test_servers_with_and_without_a_cache_behave_the_same_in_selected_cases(notice, steps):
    asyncio.run(tell([*steps, ("take_stock",)], [], notice, Limits(write_bytes=1000)))


def test_the_date_of_cached_responses_is_right_at_any_speed_of_the_lab_clock(notice):
    """Spec §12: guests compute the time left as NotBefore − Date, so it may not lag behind, however time flies."""
    real = iter(range(1_700_000_000, 1_700_001_000))

    async def scenario():
        clock = LabClock(
            ClockSetting(lab_at=1_474_309_787.0, real_at=1_700_000_000.0, speed=60), real=lambda: next(real)
        )
        telling = Telling(notice, use_response_cache=True, limits=Limits())
        telling.backend.now = clock.now
        server = MetadataServer(documents=telling.documents, backend=telling.backend, callers=telling.callers)
        wire = InMemoryTransport(server.add_connection(Caller(attachment="at a", vm="a", is_loopback=True)))
        for _ in range(5):
            wire.send(get())
            shown = parsedate_to_datetime(re.findall(rb"Date: ([^\r]+)", wire.received)[-1].decode()).timestamp()
            # Every look at this clock takes a second, a minute of the lab's.
            assert 0 <= clock.now() - shown <= 60 * 3

    asyncio.run(scenario())


@pytest.mark.parametrize("asked", [get(), post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}')], ids=["poll", "approval"])
def test_a_repeated_request_is_not_parsed_again(notice, asked):
    """What all this is for: polls, and approvals of whatever is listed, started or not."""
    read = []

    def rules(location):
        read.append(location)
        return EndpointRules()

    async def scenario():
        telling = Telling(notice, use_response_cache=True, limits=Limits())
        telling.show("pair", 2)
        server = MetadataServer(
            documents=telling.documents, backend=telling.backend, callers=telling.callers, rules_for=rules
        )
        wire = InMemoryTransport(server.add_connection(Caller(attachment="at a", vm="a", is_loopback=True)))
        wire.send(asked)
        once = len(read)
        for _ in range(100):
            wire.send(asked)
        assert len(read) == once > 0
        assert wire.received.count(b"HTTP/1.1 200 OK") == server.counters.responses_by_status[200] == 101

    asyncio.run(scenario())


def test_a_fault_of_one_vm_does_not_invalidate_the_cache_of_others(notice):
    """Neither when it is set or cleared, nor when what it has touched is written down."""
    read = []

    def rules(location):
        read.append(location)
        return EndpointRules()

    fault = Fault(id="f1", kind=FaultKind.GONE, who="ann", set_at=0.0, name="b", vm="b", scope_id="pair")

    async def scenario():
        telling = Telling(notice, use_response_cache=True, limits=Limits())
        server = MetadataServer(
            documents=telling.documents, backend=telling.backend, callers=telling.callers, rules_for=rules
        )
        wire, other = (
            InMemoryTransport(server.add_connection(Caller(attachment=f"at {vm}", vm=vm, is_loopback=True)))
            for vm in "ab"
        )
        wire.send(get())
        other.send(get())
        once = len(read)
        for faults in ([fault], [msgspec.structs.replace(fault, touched=3, touched_at=1.0)], []):
            server.set_faults(faults)
            wire.send(get())
        assert len(read) == once > 0
        assert wire.received.count(b"HTTP/1.1 200 OK") == 4

        server.set_faults([fault])
        other.send(get())
        server.set_faults([])
        other.send(get())
        assert re.findall(rb"HTTP/1.1 (\d+)", other.received) == [b"200", b"410", b"200"]

    asyncio.run(scenario())
