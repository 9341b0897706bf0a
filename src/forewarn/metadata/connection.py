"""One client connection: parses requests, answers them in order and enforces the limits.

A request whose exact bytes are in the response cache is answered in `data_received` without being parsed. Everything
else goes through the parser and the `Responder`; the response is immediate, held, slow or pending.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from typing import cast

from forewarn.metadata.identity import Caller
from forewarn.metadata.interface import ResetConnection
from forewarn.metadata.request_counters import (
    OTHER_REQUEST,
    RESET_STATUS,
    UNKNOWN_CALLER_REQUEST,
    RequestCategory,
    request_category,
    user_agent_of,
)
from forewarn.metadata.request_parser import ParsedRequest, RefusedRequest, RequestParser
from forewarn.metadata.responder import AnyResponse, FinishResponse, HeldResponse, SlowResponse
from forewarn.metadata.response_cache import MAX_CACHED_REQUEST_BYTES, CachedResponses
from forewarn.metadata.response_writer import CONTINUE, INTERNAL_ERROR_RESPONSE, SlowBodyWriter
from forewarn.metadata.server_state import ServerState
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.responses import request_timeout

_log = logging.getLogger(__name__)

_REQUESTS_PER_TURN = 64  # of one caller, before others have theirs
_MAX_LINGER_BYTES = 1024 * 1024  # that a refused caller may still send before we stop being polite
_NO_RESPONSES: CachedResponses = {}


class MetadataConnection(asyncio.Protocol):
    """At rest, or busy with one request: held (`_hold`), in work at the house (`_in_work`), or in drips (`_pour`)."""

    __slots__ = (  # there are thousands of them, nearly all at rest
        "_cacheable_request",
        "_cached",
        "_cached_when_idle",
        "_category",
        "_close_timer",
        "_discarded_bytes",
        "_has_eof",
        "_held",
        "_hold_slot",
        "_idle_since",
        "_idle_slot",
        "_is_closing",
        "_is_connected",
        "_is_http10",
        "_is_pending",
        "_keep_alive",
        "_next_batch",
        "_parser",
        "_reads_paused",
        "_request_timer",
        "_slow_body",
        "_state",
        "_transport",
        "_unsent",
        "_writes_paused",
        "caller",
    )

    def __init__(
        self, hall: ServerState, caller: Caller, *, heard: bytes = b"", unsaid: bytes = b"", keep_alive: bool = True
    ) -> None:
        """`heard` was read before the connection came here; `unsaid` is the rest of an answer that was begun."""
        self.caller = caller
        self._state = hall
        self._transport: asyncio.Transport
        self._is_connected = False  # there is a transport
        self._cached: CachedResponses = _NO_RESPONSES  # what is remembered for this caller
        self._cached_when_idle: CachedResponses = _NO_RESPONSES  # the same while we are at rest, else nothing
        self._cacheable_request = (
            heard if 0 < len(heard) <= MAX_CACHED_REQUEST_BYTES else None
        )  # perhaps one whole request, and all there is
        self._unsent = unsaid
        self._parser = RequestParser(hall.limits)
        self._parser.feed(heard)
        self._held: HeldResponse | None = None
        self._is_pending = False
        self._slow_body: SlowBodyWriter | None = None
        self._keep_alive = keep_alive
        self._is_http10 = False
        self._category: RequestCategory = OTHER_REQUEST  # of the request in work
        self._writes_paused = self._reads_paused = self._has_eof = self._is_closing = False
        self._discarded_bytes = 0
        self._next_batch: asyncio.Handle | None = None  # there is more to do, when others have had their turn
        self._idle_since = hall.loop.time()
        self._request_timer: asyncio.TimerHandle | None = None  # of a request that is not whole
        self._hold_slot = self._idle_slot = 0  # in the hall's timetables
        self._close_timer: asyncio.TimerHandle | None = None  # of one that is closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_connected = cast(asyncio.Transport, transport), True
        self._transport.set_write_buffer_limits(high=self._state.limits.write_bytes)
        self._idle_slot = self._state.idle_timers.schedule(self._idle_since + self._state.limits.idle_s, self)
        caller = self.caller
        self._cached = (
            self._state.response_cache.responses_for(caller.vm, caller.is_loopback, caller.from_loopback)
            or _NO_RESPONSES
        )
        if self._unsent or self._parser.buffered_bytes:
            # Not here: uvloop starts to read afterwards, whatever was said about that.
            self._next_batch = self._state.loop.call_soon(self._start_processing)
        else:
            self._cached_when_idle = self._cached

    def data_received(self, data: bytes) -> None:
        answer = self._cached_when_idle.get(data)
        if answer is None:
            self._receive(data)
            return
        hall = self._state
        self._transport.write(hall.serve_hit(answer))
        self._idle_since = hall.time()
        if not answer.keep_alive:
            self._close(linger=False)

    def _receive(self, data: bytes) -> None:
        if self._is_closing:
            self._count_discarded(len(data))
            return
        is_fresh = self._is_idle and len(data) <= MAX_CACHED_REQUEST_BYTES
        if is_fresh and self._adopt_shared_cache(data):
            self.data_received(data)
            return
        self._cacheable_request = data if is_fresh else None
        self._cached_when_idle = _NO_RESPONSES
        self._parser.feed(data)
        self._process_requests()

    def _adopt_shared_cache(self, data: bytes) -> bool:
        """Whether the same was asked on another connection since something changed: the answer is at hand then."""
        caller, hall = self.caller, self._state
        known = hall.response_cache.responses_for(caller.vm, caller.is_loopback, caller.from_loopback)
        if known is None or data not in known or not hall.responder.is_known(caller):
            return False
        self._cached = self._cached_when_idle = known
        return True

    def eof_received(self) -> bool:
        """A caller that only stopped sending still gets its answers."""
        if self._is_closing:
            return False
        self._has_eof = True
        if self._held is not None and self._held.scope_id:
            self._resume_held(over=True)  # whoever hung up looks the same from here, and should not be kept
        else:
            self._process_requests()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_processing()
        self._end_hold()
        if self._slow_body is not None:
            self._slow_body.stop()
        self._state.idle_timers.cancel(self._idle_slot, self)
        for timer in (self._request_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._state.remove_connection(self)

    def pause_writing(self) -> None:
        self._writes_paused = True
        self._cached_when_idle = _NO_RESPONSES
        self._update_reading()

    def resume_writing(self) -> None:
        self._writes_paused = False
        self._idle_since = self._state.loop.time()
        self._process_requests()
        if self._state.is_draining and self._is_idle:
            self._close(linger=False)

    def wake(self) -> None:
        if self._held is not None and self._held.scope_id:
            self._resume_held(over=False)

    def on_hold_timeout(self) -> None:
        self._resume_held(over=True)

    def drain(self) -> None:
        if self._held is not None:
            self._resume_held(over=True)
        elif self._slow_body is not None:
            self._slow_body.finish()
        elif self._can_take_request and not self._parser.has_partial_request and not self._unsent:
            self._close(linger=False)

    def abort(self) -> None:
        self._stop_processing()
        self._transport.abort()

    @property
    def buffered_bytes(self) -> int:
        unread = self._transport.get_write_buffer_size() if self._is_connected else 0
        return self._parser.buffered_bytes + len(self._unsent) + unread

    @property
    def _can_take_request(self) -> bool:
        return not (self._is_pending or self._held or self._slow_body or self._writes_paused or self._is_closing)

    @property
    def _is_idle(self) -> bool:
        return self._can_take_request and self._next_batch is None and not self._parser.has_partial_request

    def _start_processing(self) -> None:
        """Go on where whoever met the caller stopped."""
        self._next_batch = None
        unsaid, self._unsent = self._unsent, b""
        if unsaid and not self._is_closing:
            self._transport.write(unsaid)
            self._finish_response(linger=False)
        self._process_requests()

    def _process_requests(self) -> None:
        """Take the next requests, if there are any and the earlier ones are answered."""
        try:
            if self._next_batch is None and (self._parser.has_partial_request or self._has_eof):
                self._process_batch()
        except Exception:
            self._send_internal_error()
        self._update_reading()
        self._cached_when_idle = self._cached if self._is_idle else _NO_RESPONSES

    def _process_batch(self) -> None:
        for _ in range(_REQUESTS_PER_TURN):
            has_more = self._parser.has_partial_request or self._has_eof
            if not (has_more and self._can_take_request and self._process_one()):
                return
        self._next_batch = self._state.loop.call_soon(self._process_next_batch)

    def _process_next_batch(self) -> None:
        self._next_batch = None
        self._process_requests()

    def _process_one(self) -> bool:
        taken = self._parser.next_request()
        if taken is None:
            self._wait_for_data()
            return False
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        if isinstance(taken, RefusedRequest):
            self._category = OTHER_REQUEST
            self._refuse_and_close(taken.response)
            return False
        self._handle_request(taken)
        return True

    def _wait_for_data(self) -> None:
        if self._has_eof:
            self._close(linger=False)
            return
        if self._parser.take_continue():
            self._transport.write(CONTINUE)
        if self._parser.has_partial_request and self._request_timer is None:
            self._request_timer = self._state.loop.call_later(self._state.limits.request_s, self._on_request_timeout)

    def _handle_request(self, whole: ParsedRequest) -> None:
        self._state.counters.requests += 1
        self._is_http10 = whole.is_http10
        is_known = self._state.responder.is_known(self.caller)
        self._category = request_category(whole.request) if is_known else UNKNOWN_CALLER_REQUEST
        # A stranger may be a VM by the time it connects again.
        self._keep_alive = whole.keep_alive and is_known
        answer = self._state.responder.respond(self.caller, whole.request)
        fresh, self._cacheable_request = self._cacheable_request, None
        if fresh is not None and not self._parser.buffered_bytes and isinstance(answer, HttpResponse):
            self._cache_response(fresh, whole.request, answer)
        self._deliver(answer)

    def _cache_response(self, raw: bytes, request: HttpRequest, answer: HttpResponse) -> None:
        lasting = self._state.responder.cacheable_view(self.caller, request)
        if lasting is None:
            return
        view, version = lasting
        self._cached = self._state.response_cache.add(
            raw,
            self.caller,
            view,
            version=version,
            dated=self._state.writer.prepare(answer, keep_alive=self._keep_alive, is_old=self._is_http10),
            keep_alive=self._keep_alive,
            status=answer.status,
            sort=self._category,
            agent=user_agent_of(request),
        )

    def _deliver(self, answer: AnyResponse) -> None:
        while isinstance(answer, HeldResponse) and (self._state.is_draining or (self._has_eof and answer.scope_id)):
            answer = answer.resume(True)
        if isinstance(answer, HttpResponse):
            self._write_response(answer)
        elif isinstance(answer, HeldResponse):
            self._start_hold(answer)
        elif isinstance(answer, SlowResponse):
            self._start_slow_body(answer)
        elif isinstance(answer, ResetConnection):
            self._reset()
        else:
            self._is_pending = True
            self._state.run_pending(answer, self._on_pending_done)

    def _reset(self) -> None:
        self._state.counters.answered[self._category, RESET_STATUS] += 1
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def _on_pending_done(self, task: asyncio.Task[FinishResponse]) -> None:
        self._is_pending = False
        try:
            rest = task.result()
            if not self._is_closing:
                self._deliver(rest())
        except asyncio.CancelledError:
            self.abort()
        except Exception:
            self._send_internal_error()
        self._process_requests()

    def _start_hold(self, hold: HeldResponse) -> None:
        self._held = hold
        self._state.counters.held += 1
        self._hold_slot = self._state.hold_timers.schedule(hold.until, self)
        if hold.scope_id:
            self._state.documents.add_waiter(hold.scope_id, self)

    def _end_hold(self) -> HeldResponse | None:
        hold, self._held = self._held, None
        if hold is not None:
            self._state.counters.held -= 1
            self._state.documents.remove_waiter(hold.scope_id, self)
            self._state.hold_timers.cancel(self._hold_slot, self)
        return hold

    def _resume_held(self, over: bool) -> None:
        hold = self._end_hold()
        if hold is None or self._is_closing:
            return
        try:
            self._deliver(hold.resume(over))
        except Exception:
            self._send_internal_error()
        self._process_requests()

    def _write_response(self, response: HttpResponse, *, linger: bool = False) -> None:
        self._transport.write(self._response_bytes(response))
        self._finish_response(linger=linger)

    def _response_bytes(self, response: HttpResponse) -> bytes:
        self._keep_alive = self._keep_alive and not self._state.is_draining
        self._state.counters.answered[self._category, response.status] += 1
        return self._state.writer.bytes_for(response, keep_alive=self._keep_alive, is_old=self._is_http10)

    def _finish_response(self, *, linger: bool) -> None:
        self._idle_since = self._state.loop.time()
        if not self._keep_alive or self._state.is_draining:
            self._close(linger=linger or self._parser.buffered_bytes > 0)

    def _start_slow_body(self, drip: SlowResponse) -> None:
        raw = self._response_bytes(drip.response)
        self._slow_body = SlowBodyWriter(
            write=self._transport.write, raw=raw, take_s=drip.duration_s, done=self._on_slow_body_done
        )
        if self._state.is_draining:
            self._slow_body.finish()

    def _on_slow_body_done(self) -> None:
        self._slow_body = None
        self._finish_response(linger=False)
        self._process_requests()

    def _refuse_and_close(self, response: HttpResponse) -> None:
        self._keep_alive = False
        self._write_response(response, linger=True)

    def _send_internal_error(self) -> None:
        _log.exception("a request of VM %r met a mistake of ours and was answered 500", self.caller.vm)
        if not self._is_closing:
            self._refuse_and_close(INTERNAL_ERROR_RESPONSE)

    def _on_request_timeout(self) -> None:
        self._request_timer = None
        if not self._is_closing:
            self._category = OTHER_REQUEST
            self._refuse_and_close(request_timeout())

    def check_idle(self) -> None:
        idle_s, now = self._state.limits.idle_s, self._state.time()
        is_busy = (
            self._is_pending or self._held is not None or self._slow_body is not None or self._request_timer is not None
        )
        left_s = idle_s if is_busy else self._idle_since + idle_s - now
        if left_s > 0:
            self._idle_slot = self._state.idle_timers.schedule(now + left_s, self)
        elif self._transport.get_write_buffer_size() > 0:
            self.abort()
        else:
            self._close(linger=False)

    def _update_reading(self) -> None:
        """Read no further while answers are not read, or while more waits than one request's head may have."""
        waits = self._writes_paused or self._parser.buffered_bytes > self._state.limits.head_bytes
        if self._is_closing or self._has_eof or waits == self._reads_paused:
            return
        self._reads_paused = waits
        if waits:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _close(self, *, linger: bool) -> None:
        """With `linger` we go on listening for a while: closing on unread bytes would take our last answer back."""
        self._stop_processing()
        self._state.idle_timers.cancel(self._idle_slot, self)
        if self._close_timer is not None:
            self._close_timer.cancel()
        if not linger or self._has_eof:
            self._transport.close()
            patience_s = self._state.limits.idle_s
        else:
            patience_s = self._state.limits.linger_s
            with suppress(OSError):
                self._transport.write_eof()
            if self._reads_paused:
                self._transport.resume_reading()
        self._close_timer = self._state.loop.call_later(patience_s, self._transport.abort)

    def _stop_processing(self) -> None:
        """No request is taken any more."""
        self._is_closing = True
        self._cached_when_idle = _NO_RESPONSES

    def _count_discarded(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > _MAX_LINGER_BYTES:
            self._transport.abort()
