"""A server with a response cache behaves exactly like one without, for all requests and changes.

Both run the same scenario over transports in memory, so that packets arrive exactly as the test splits them.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.core.faults import Fault, FaultKind
from forewarn.metadata import CallerDirectory, Limits, MetadataServer, PublishedDocuments
from forewarn.metadata.identity import Caller
from forewarn.metadata.interface import ResetConnection
from forewarn.protocol.document import NoticeStatus
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.http_message import HttpResponse
from tests.metadata.conftest import MakeNotice, notice
from tests.support.in_memory_transport import InMemoryTransport
from tests.support.metadata_backend import FakeMetadataBackend, tag_of

PATH = b"/metadata/scheduledevents?api-version="
TURNS = 12  # more turns of the event loop than any step takes

Key = tuple[str, bool, int]  # of a connection: its VM, whether it comes over loopback, and its number
Step = tuple[Any, ...]  # the name of a method of `ServerUnderTest`, and its arguments


def get(
    version: bytes = b"2020-07-01", *lines: bytes, http: bytes = b"1.1", header: bytes = b"Metadata: true"
) -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"Host: 169.254.169.254", header, *lines) if line)
    return b"GET " + PATH + version + b" HTTP/" + http + b"\r\n" + head + b"\r\n"


def post(body: bytes = b'{"StartRequests":[{"EventId":"EVENT-1"}]}') -> bytes:
    head = b"POST " + PATH + b"2020-07-01 HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


TAGS = [tag_of(*([notice()] if number > 1 else ()), incarnation=number).encode() for number in range(4)]
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
    b"GET /metadata/instance?api-version=2021-02-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n",
    b"HEAD " + PATH + b"2020-07-01 HTTP/1.1\r\nHost: x\r\n\r\n",
    get(b"2020-07-01", b"Host: other"),
    get(b"2020-07-01", b"Sec-Fetch-Site: cross-site"),
    get(b"2020-07-01", b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\nno request\n\n",
]
VMS = ("a", "b", "other", "unknown")
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
    FaultKind.UNSIGNED_401,
]


class ServerUnderTest:
    """One server with its connections, and the steps of a scenario."""

    def __init__(self, notice: MakeNotice, *, use_response_cache: bool, limits: Limits) -> None:
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
        self.transports: dict[Key, InMemoryTransport] = {}
        self.states: list[tuple[Any, ...]] = []

    def transport(self, key: Key) -> InMemoryTransport:
        """The connection for this key, opened if it is closed."""
        transport = self.transports.get(key)
        if transport is None or transport.is_closed:
            vm, is_loopback, _ = key
            attachment = f"at {vm}"
            caller = Caller(attachment=attachment, vm=self.callers.vm_at(attachment), is_loopback=is_loopback)
            transport = self.transports[key] = InMemoryTransport(self.server.add_connection(caller))
        return transport

    def send(self, key: Key, requests: list[bytes], cuts: list[int]) -> None:
        raw = b"".join(requests)
        positions = sorted({min(cut, len(raw)) for cut in cuts})
        for start, end in zip([0, *positions], [*positions, len(raw)], strict=True):
            self.transport(key).send(raw[start:end])

    def flood(self, key: Key, poll: bytes, count: int) -> None:
        self.transport(key).send(poll * count)

    def send_eof(self, key: Key) -> None:
        self.transport(key).send_eof()

    def stop_reading(self, key: Key) -> None:
        self.transport(key).stop_reading()

    def read_on(self, key: Key) -> None:
        self.transport(key).continue_reading()

    def show(self, scope_id: str, count: int) -> None:
        if self.is_there(scope_id):
            scheduled, started = (
                self.notice("EVENT-1"),
                self.notice("EVENT-2", status=NoticeStatus.STARTED, not_before=None),
            )
            self.backend.show(scope_id, *(scheduled, started)[:count])

    def republish(self, scope_id: str) -> None:
        if self.is_there(scope_id):
            self.backend.republish(scope_id)

    def drop_or_add(self, scope_id: str, enabled: bool) -> None:
        if self.is_there(scope_id):
            self.backend.drop_scope(scope_id)
        else:
            self.backend.add_scope(scope_id, *("a", "b") if scope_id == "pair" else ("other",), enabled=enabled)

    def set_override(self, scope_id: str, override: HttpResponse | ResetConnection | None) -> None:
        if self.is_there(scope_id):
            vm = "a" if scope_id == "pair" else "other"
            view = self.documents.view(vm)
            assert view is not None
            scope = next(scope for key, scope in self.backend._scopes.items() if key == view.scope_id)
            self.documents.publish(replace(scope, poll_override=override))

    def is_there(self, scope_id: str) -> bool:
        return self.documents.view("a" if scope_id == "pair" else "other") is not None

    def assign_vm(self, at: str, vm: str) -> None:
        if vm == "unknown":
            self.callers.release(f"at {at}")
        else:
            self.callers.assign(f"at {at}", vm)

    def set_faults(self, faults: list[tuple[FaultKind, str, int | None]]) -> None:
        self.server.faults.set_faults(
            [
                Fault(
                    id=f"f{number}", kind=kind, set_by="ann", set_at=0.0, name=vm, vm=vm, scope_id="pair", count=count
                )
                for number, (kind, vm, count) in enumerate(faults)
            ]
        )

    def pass_time(self, seconds: float) -> None:
        self.backend.at += seconds

    def lose_store(self, is_away: bool) -> None:
        self.backend.is_unavailable = is_away

    def record_state(self) -> None:
        counters = self.server.counters
        polls, deliveries = self.server.observations.take_batch()
        hits = {(hit.fault_id, hit.vm): hit for hit in self.server.faults.take_hits()}
        self.states.append(
            (
                counters.requests,
                +counters.answered,
                counters.held,
                {poll.vm: msgspec.structs.replace(poll, real_at=0.0) for poll in polls},
                deliveries,
                hits,
            )
        )

    def visible_state(self) -> tuple[dict[Key, tuple[bytes, bool, bool]], list[tuple[Any, ...]]]:
        """Everything that is visible from outside."""
        return {
            key: (transport.received, transport.is_closed, transport.was_reset)
            for key, transport in self.transports.items()
        }, self.states


async def wait_until_stable(*servers: ServerUnderTest) -> None:
    """Wait until nothing changes any more."""
    visible_state = None
    while visible_state != (
        visible_state := [(subject.visible_state(), subject.backend.waiting) for subject in servers]
    ):
        for _ in range(TURNS):
            await asyncio.sleep(0)


async def run_steps(
    steps: list[Step], regular_polls: list[tuple[Key, bytes]], notice: MakeNotice, limits: Limits
) -> None:
    """Run the steps on two servers, with the regular polls after each step."""
    cached = ServerUnderTest(notice, use_response_cache=True, limits=limits)
    uncached = ServerUnderTest(notice, use_response_cache=False, limits=limits)
    polls: list[Step] = [("send", key, [request], []) for key, request in regular_polls]
    for name, *details in [item for step in steps for item in (step, *polls)]:
        for subject in (cached, uncached):
            getattr(subject, name)(*details)
        await wait_until_stable(cached, uncached)
        assert cached.visible_state() == uncached.visible_state(), (name, details)
    for subject in (cached, uncached):
        await subject.server.drain(0)
        subject.record_state()
    assert cached.visible_state() == uncached.visible_state()


keys = st.tuples(st.sampled_from(("a", "a", "a", *VMS)), st.sampled_from([True, True, False]), st.integers(1, 2))
scopes = st.sampled_from(["pair", "single"])
polls = st.sampled_from(POLLS)
requests = st.one_of(polls, polls, polls, st.sampled_from(LONG_POLLS), st.sampled_from(ODD))
faults = st.tuples(st.sampled_from(FAULTS), st.sampled_from(VMS[:2]), st.sampled_from([None, 1, 2]))
overrides = st.sampled_from([None, HttpResponse(status=503), ResetConnection()])
regular_polls = st.lists(st.tuples(keys, requests), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(
        st.just("send"), keys, st.lists(requests, min_size=1, max_size=4), st.lists(st.integers(0, 400), max_size=4)
    ),
    st.tuples(st.just("flood"), keys, polls, st.sampled_from([2, 3, 64, 65, 200])),
    st.tuples(st.sampled_from(["send_eof", "stop_reading", "read_on"]), keys),
    st.tuples(st.just("show"), scopes, st.integers(0, 2)),
    st.tuples(st.just("republish"), scopes),
    st.tuples(st.just("drop_or_add"), scopes, st.booleans()),
    st.tuples(st.just("set_override"), scopes, overrides),
    st.tuples(st.just("assign_vm"), st.sampled_from(VMS[:3]), st.sampled_from(VMS)),
    st.tuples(st.just("set_faults"), st.lists(faults, max_size=2)),
    st.tuples(st.just("pass_time"), st.sampled_from([0.25, 0.5, 1.0, 60.0, 86_400.0])),
    st.tuples(st.just("lose_store"), st.booleans()),
    st.tuples(st.just("record_state")),
)
limits = st.sampled_from([Limits(), Limits(), Limits(write_bytes=1000), Limits(requests_per_s=0.001)])


@given(steps=st.lists(steps, min_size=3, max_size=25), regular_polls=regular_polls, limits=limits)
@settings(max_examples=300, deadline=None)
def test_servers_with_and_without_a_cache_behave_the_same(
    notice: MakeNotice, steps: list[Step], regular_polls: list[tuple[Key, bytes]], limits: Limits
) -> None:
    """For all requests, packet boundaries and changes."""
    asyncio.run(run_steps(steps, regular_polls, notice, limits))


A, A_TOO, A_ON_A_NETWORK = ("a", True, 1), ("a", True, 2), ("a", False, 1)
PREVIEW_POLL = get(b"2017-03-01", header=b"")


def sends(*requests: bytes, key: Key = A) -> list[Step]:
    return [("send", key, [request], []) for request in requests]


CASES: dict[str, list[Step]] = {
    "two versions in turn": [
        *sends(get(), get(), get()),
        ("pass_time", 1.0),
        *sends(get(b"2017-08-01")),
        ("record_state",),
        *sends(get(), get(b"2017-08-01"), get()),
    ],
    "a header that only loopback may omit": [
        *sends(PREVIEW_POLL, PREVIEW_POLL),
        *sends(get(), PREVIEW_POLL, PREVIEW_POLL, key=A_ON_A_NETWORK),
    ],
    "a request whose end looks like another": [
        ("send", A, [get(b"2017-08-01").removesuffix(b"\r\n") + b"X: ", get()], [len(get(b"2017-08-01")) + 1]),
        *sends(get(), get(), key=A_TOO),
    ],
    "more requests than are cached": [
        *[step for number in range(40) for step in sends(*[get(b"2020-07-01", b"X: %d" % number)] * 2)],
        *sends(get(b"2020-07-01", b"X: 0"), get(b"2020-07-01", b"X: 39")),
        ("show", "pair", 1),
        *sends(get(b"2020-07-01", b"X: 39")),
    ],
    "two connections at parsed_once": [
        ("read_on", A_TOO),
        *sends(get(), get()),
        *sends(get(), get(), key=A_TOO),
        ("show", "pair", 1),
        *sends(get(), get(), key=A_TOO),
        *sends(get(), get()),
    ],
    "one VM at two attachments": [
        *sends(get(), get()),
        ("assign_vm", "other", "a"),
        *sends(get(), get(), key=("other", True, 1)),
        ("assign_vm", "a", "b"),
        *sends(get(), get(), key=("other", True, 1)),
        *sends(get()),
        *sends(get(), get()),
    ],
    "approvals that change nothing, and some that do": [
        *sends(post(), post()),
        ("show", "pair", 2),
        *sends(post(), post(), get(), post()),
        ("lose_store", True),
        *sends(post(), post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}'), post()),
        ("show", "pair", 0),
        *sends(post(), post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}'), post()),
        ("assign_vm", "a", "other"),
        *sends(post(), post()),
    ],
    "behind a long poll": [
        *sends(get(), LONG_POLLS[0], get(), get()),
        ("show", "pair", 1),
        *sends(get()),
    ],
    "a client that does not read for a while": [
        *sends(get()),
        ("stop_reading", A),
        *sends(*[get()] * 20),
        ("read_on", A),
        *sends(get()),
    ],
}


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_servers_with_and_without_a_cache_behave_the_same_in_selected_cases(
    notice: MakeNotice, steps: list[Step]
) -> None:
    asyncio.run(run_steps([*steps, ("record_state",)], [], notice, Limits(write_bytes=1000)))


def test_the_date_of_cached_responses_is_right_at_any_speed_of_the_lab_clock(notice: MakeNotice) -> None:
    """Spec §12: clients compute the remaining time as NotBefore − Date."""
    real = iter(range(1_700_000_000, 1_700_001_000))

    async def scenario() -> None:
        clock = LabClock(
            ClockSetting(lab_at=1_474_309_787.0, real_at=RealTime(1_700_000_000.0), speed=60),
            real=lambda: RealTime(next(real)),
        )
        subject = ServerUnderTest(notice, use_response_cache=True, limits=Limits())
        subject.backend.now = clock.now  # type: ignore[method-assign]
        server = MetadataServer(documents=subject.documents, backend=subject.backend, callers=subject.callers)
        transport = InMemoryTransport(server.add_connection(Caller(attachment="at a", vm="a", is_loopback=True)))
        for _ in range(5):
            transport.send(get())
            shown = parsedate_to_datetime(re.findall(rb"Date: ([^\r]+)", transport.received)[-1].decode()).timestamp()
            # Each read of this clock takes a second, which is a minute of lab time.
            assert 0 <= clock.now() - shown <= 60 * 3

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "request_bytes", [get(), post(b'{"StartRequests":[{"EventId":"EVENT-2"}]}')], ids=["poll", "approval"]
)
def test_a_repeated_request_is_not_parsed_again(notice: MakeNotice, request_bytes: bytes) -> None:
    """Polls, and approvals of a listed event."""
    read = []

    def rules(location: str) -> EndpointRules:
        read.append(location)
        return EndpointRules()

    async def scenario() -> None:
        subject = ServerUnderTest(notice, use_response_cache=True, limits=Limits())
        subject.show("pair", 2)
        server = MetadataServer(
            documents=subject.documents, backend=subject.backend, callers=subject.callers, rules_for=rules
        )
        transport = InMemoryTransport(server.add_connection(Caller(attachment="at a", vm="a", is_loopback=True)))
        transport.send(request_bytes)
        parsed_once = len(read)
        for _ in range(100):
            transport.send(request_bytes)
        assert len(read) == parsed_once > 0
        assert transport.received.count(b"HTTP/1.1 200 OK") == server.counters.responses_by_status[200] == 101

    asyncio.run(scenario())


def test_a_fault_of_one_vm_does_not_invalidate_the_cache_of_others(notice: MakeNotice) -> None:
    """Neither when it is set or cleared, nor when its hits are stored."""
    read = []

    def rules(location: str) -> EndpointRules:
        read.append(location)
        return EndpointRules()

    fault = Fault(id="f1", kind=FaultKind.GONE, set_by="ann", set_at=0.0, name="b", vm="b", scope_id="pair")

    async def scenario() -> None:
        subject = ServerUnderTest(notice, use_response_cache=True, limits=Limits())
        server = MetadataServer(
            documents=subject.documents, backend=subject.backend, callers=subject.callers, rules_for=rules
        )
        transport, other = (
            InMemoryTransport(server.add_connection(Caller(attachment=f"at {vm}", vm=vm, is_loopback=True)))
            for vm in "ab"
        )
        transport.send(get())
        other.send(get())
        parsed_once = len(read)
        for faults in ([fault], [msgspec.structs.replace(fault, applied=3, last_applied_at=1.0)], []):
            server.set_faults(faults)
            transport.send(get())
        assert len(read) == parsed_once > 0
        assert transport.received.count(b"HTTP/1.1 200 OK") == 4

        server.set_faults([fault])
        other.send(get())
        server.set_faults([])
        other.send(get())
        assert re.findall(rb"HTTP/1.1 (\d+)", other.received) == [b"200", b"410", b"200"]

    asyncio.run(scenario())
