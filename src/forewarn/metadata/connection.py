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

_REQUESTS_PER_TURN = 64  # of one connection, before others are served
_MAX_LINGER_BYTES = 1024 * 1024  # that a refused client may still send before the connection is aborted
_NO_RESPONSES: CachedResponses = {}


class MetadataConnection(asyncio.Protocol):
    """The asyncio protocol of one connection of `caller`; answers its requests one after the other.

    It is idle, or busy with one request: the response is held (`_held`), waits for the backend (`_is_pending`), or its
    body is written slowly (`_slow_body`). The creator adds it to `state`, and it removes itself when it is lost.
    """

    __slots__ = (  # there are thousands of connections, nearly all idle
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
        self, state: ServerState, caller: Caller, *, received: bytes = b"", unsent: bytes = b"", keep_alive: bool = True
    ) -> None:
        self.caller = caller
        self._state = state
        self._transport: asyncio.Transport
        self._is_connected = False  # there is a transport
        self._cached: CachedResponses = _NO_RESPONSES  # cached for this caller
        self._cached_when_idle: CachedResponses = _NO_RESPONSES  # the same while the connection is idle, else empty
        # All unparsed bytes, if they may be exactly one request.
        self._cacheable_request = received if 0 < len(received) <= MAX_CACHED_REQUEST_BYTES else None
        self._unsent = unsent
        self._parser = RequestParser(state.limits)
        self._parser.feed(received)
        self._held: HeldResponse | None = None
        self._is_pending = False
        self._slow_body: SlowBodyWriter | None = None
        self._keep_alive = keep_alive
        self._is_http10 = False
        self._category: RequestCategory = OTHER_REQUEST  # of the current request
        self._writes_paused = self._reads_paused = self._has_eof = self._is_closing = False
        self._discarded_bytes = 0
        self._next_batch: asyncio.Handle | None = None  # more requests, after other connections were served
        self._idle_since = state.loop.time()
        self._request_timer: asyncio.TimerHandle | None = None  # of an incomplete request
        self._hold_slot = self._idle_slot = 0  # in the timers of the state
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve the connection on this transport, `unsent` and `received` first (called by asyncio)."""
        self._transport, self._is_connected = cast(asyncio.Transport, transport), True
        # A client that sends requests and reads no answers must not fill our memory.
        self._transport.set_write_buffer_limits(high=self._state.limits.write_bytes)
        self._idle_slot = self._state.idle_timers.schedule(self._idle_since + self._state.limits.idle_s, self)
        caller = self.caller
        self._cached = (
            self._state.response_cache.responses_for(caller.vm, caller.is_loopback, caller.from_loopback)
            or _NO_RESPONSES
        )
        if self._unsent or self._parser.buffered_bytes:
            # Not now: uvloop starts to read after connection_made, even if reading was paused here.
            self._next_batch = self._state.loop.call_soon(self._start_processing)
        else:
            self._cached_when_idle = self._cached

    def data_received(self, data: bytes) -> None:
        """Answer data that are one cached request at once (the fast path); buffer and parse all others."""
        entry = self._cached_when_idle.get(data)
        if entry is None:
            self._receive(data)
            return
        state = self._state
        self._transport.write(state.serve_hit(entry))
        self._idle_since = state.time()
        if not entry.keep_alive:
            self._close(linger=False)

    def _receive(self, data: bytes) -> None:
        if self._is_closing:
            self._count_discarded(len(data))
            return
        # Only bytes that arrived alone are known to be one request.
        is_cacheable = self._is_idle and len(data) <= MAX_CACHED_REQUEST_BYTES
        if is_cacheable and self._adopt_shared_cache(data):
            self.data_received(data)
            return
        self._cacheable_request = data if is_cacheable else None
        self._cached_when_idle = _NO_RESPONSES
        self._parser.feed(data)
        self._process_requests()

    def _adopt_shared_cache(self, data: bytes) -> bool:
        """Use the cache that another connection has filled since a change; False if it lacks this request."""
        caller, state = self.caller, self._state
        cached = state.response_cache.responses_for(caller.vm, caller.is_loopback, caller.from_loopback)
        if cached is None or data not in cached or not state.responder.is_known(caller):
            return False
        self._cached = self._cached_when_idle = cached
        return True

    def eof_received(self) -> bool:
        """Answer the requests received so far, then close: a client may close only its sending side."""
        if self._is_closing:
            return False
        self._has_eof = True
        if self._held is not None and self._held.scope_id:
            self._resume_held(expired=True)  # a client that closed both sides looks the same: do not hold it
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
        """Answer the held long poll, if there is one, because the document of its scope has changed."""
        if self._held is not None and self._held.scope_id:
            self._resume_held(expired=False)

    def on_hold_timeout(self) -> None:
        """Answer the held request, if there is one, because its time is over."""
        self._resume_held(expired=True)

    def drain(self, *, close_idle: bool) -> None:
        if self._held is not None:
            self._resume_held(expired=True)
        elif self._slow_body is not None:
            self._slow_body.finish()
        elif close_idle and self._can_take_request and not self._parser.has_partial_request and not self._unsent:
            self._close(linger=False)

    def abort(self) -> None:
        """Close at once, without sending buffered data. Needs a transport (`connection_made`)."""
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
        """Continue where the accept loop stopped: send the rest of its response, then process requests."""
        self._next_batch = None
        unsent, self._unsent = self._unsent, b""
        if unsent and not self._is_closing:
            self._transport.write(unsent)
            self._finish_response(linger=False)
        self._process_requests()

    def _process_requests(self) -> None:
        """Process buffered requests if the previous ones are answered, and update the idle state."""
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
        # One client that pipelines must not keep the others waiting.
        self._next_batch = self._state.loop.call_soon(self._process_next_batch)

    def _process_next_batch(self) -> None:
        self._next_batch = None
        self._process_requests()

    def _process_one(self) -> bool:
        parsed = self._parser.next_request()
        if parsed is None:
            self._wait_for_data()
            return False
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        if isinstance(parsed, RefusedRequest):
            self._category = OTHER_REQUEST
            self._refuse_and_close(parsed.response)
            return False
        self._handle_request(parsed)
        return True

    def _wait_for_data(self) -> None:
        if self._has_eof:
            self._close(linger=False)
            return
        # The client waits for this before it sends the body.
        if self._parser.take_continue():
            self._transport.write(CONTINUE)
        if self._parser.has_partial_request and self._request_timer is None:
            self._request_timer = self._state.loop.call_later(self._state.limits.request_s, self._on_request_timeout)

    def _handle_request(self, parsed: ParsedRequest) -> None:
        self._state.counters.requests += 1
        self._is_http10 = parsed.is_http10
        is_known = self._state.responder.is_known(self.caller)
        self._category = request_category(parsed.request) if is_known else UNKNOWN_CALLER_REQUEST
        # Close the connection of an unknown caller: the next one may be identified as a VM.
        self._keep_alive = parsed.keep_alive and is_known
        response = self._state.responder.respond(self.caller, parsed.request)
        request_bytes, self._cacheable_request = self._cacheable_request, None
        if request_bytes is not None and not self._parser.buffered_bytes and isinstance(response, HttpResponse):
            self._cache_response(request_bytes, parsed.request, response)
        self._deliver(response)

    def _cache_response(self, request_bytes: bytes, request: HttpRequest, response: HttpResponse) -> None:
        cacheable = self._state.responder.cacheable_view(self.caller, request)
        if cacheable is None:
            return
        view, version = cacheable
        self._cached = self._state.response_cache.add(
            request_bytes,
            self.caller,
            view,
            version=version,
            prepared=self._state.writer.prepare(response, keep_alive=self._keep_alive, is_http10=self._is_http10),
            keep_alive=self._keep_alive,
            status=response.status,
            category=self._category,
            user_agent=user_agent_of(request),
        )

    def _deliver(self, response: AnyResponse) -> None:
        # Nobody is held any more: the process ends, or the client will send nothing further.
        while isinstance(response, HeldResponse) and (self._state.is_draining or (self._has_eof and response.scope_id)):
            response = response.resume(True)
        if isinstance(response, HttpResponse):
            self._write_response(response)
        elif isinstance(response, HeldResponse):
            self._start_hold(response)
        elif isinstance(response, SlowResponse):
            self._start_slow_body(response)
        elif isinstance(response, ResetConnection):
            self._reset()
        else:
            self._is_pending = True
            self._state.run_pending(response, self._on_pending_done)

    def _reset(self) -> None:
        self._state.counters.answered[self._category, RESET_STATUS] += 1
        sock = self._transport.get_extra_info("socket")
        # With a linger time of zero the kernel sends a reset instead of closing.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def _on_pending_done(self, task: asyncio.Task[FinishResponse]) -> None:
        self._is_pending = False
        try:
            finish_response = task.result()
            if not self._is_closing:
                self._deliver(finish_response())
        except asyncio.CancelledError:
            self.abort()
        except Exception:
            self._send_internal_error()
        self._process_requests()

    def _start_hold(self, held: HeldResponse) -> None:
        self._held = held
        self._state.counters.held += 1
        self._hold_slot = self._state.hold_timers.schedule(held.until, self)
        if held.scope_id:
            self._state.documents.add_waiter(held.scope_id, self)

    def _end_hold(self) -> HeldResponse | None:
        held, self._held = self._held, None
        if held is not None:
            self._state.counters.held -= 1
            self._state.documents.remove_waiter(held.scope_id, self)
            self._state.hold_timers.cancel(self._hold_slot, self)
        return held

    def _resume_held(self, expired: bool) -> None:
        held = self._end_hold()
        if held is None or self._is_closing:
            return
        try:
            self._deliver(held.resume(expired))
        except Exception:
            self._send_internal_error()
        self._process_requests()

    def _write_response(self, response: HttpResponse, *, linger: bool = False) -> None:
        self._transport.write(self._response_bytes(response))
        self._finish_response(linger=linger)

    def _response_bytes(self, response: HttpResponse) -> bytes:
        self._keep_alive = self._keep_alive and not self._state.is_draining
        self._state.counters.answered[self._category, response.status] += 1
        return self._state.writer.bytes_for(response, keep_alive=self._keep_alive, is_http10=self._is_http10)

    def _finish_response(self, *, linger: bool) -> None:
        self._idle_since = self._state.loop.time()
        if not self._keep_alive or self._state.is_draining:
            self._close(linger=linger or self._parser.buffered_bytes > 0)

    def _start_slow_body(self, slow: SlowResponse) -> None:
        self._slow_body = SlowBodyWriter(
            write=self._transport.write,
            response_bytes=self._response_bytes(slow.response),
            duration_s=slow.duration_s,
            on_done=self._on_slow_body_done,
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
        _log.exception("a request of VM %r failed with an internal error", self.caller.vm)
        if not self._is_closing:
            self._refuse_and_close(INTERNAL_ERROR_RESPONSE)

    def _on_request_timeout(self) -> None:
        self._request_timer = None
        if not self._is_closing:
            self._category = OTHER_REQUEST
            self._refuse_and_close(request_timeout())

    def check_idle(self) -> None:
        """Close the connection if it was idle for `Limits.idle_s`; abort it if its client does not read."""
        idle_s, now = self._state.limits.idle_s, self._state.time()
        is_busy = (
            self._is_pending or self._held is not None or self._slow_body is not None or self._request_timer is not None
        )
        # The timer is not moved at each request: it looks here whether there was one.
        left_s = idle_s if is_busy else self._idle_since + idle_s - now
        if left_s > 0:
            self._idle_slot = self._state.idle_timers.schedule(now + left_s, self)
        # It has not read its answers all that time: a close would wait for it.
        elif self._transport.get_write_buffer_size() > 0:
            self.abort()
        else:
            self._close(linger=False)

    def _update_reading(self) -> None:
        """Pause reading while the client does not read responses, or while a full head waits to be parsed."""
        # More than a head waits unparsed: TCP slows the client down.
        must_pause = self._writes_paused or self._parser.buffered_bytes > self._state.limits.head_bytes
        if self._is_closing or self._has_eof or must_pause == self._reads_paused:
            return
        self._reads_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _close(self, *, linger: bool) -> None:
        """With `linger`, keep reading for a while: closing with unread bytes would discard the last response."""
        self._stop_processing()
        self._state.idle_timers.cancel(self._idle_slot, self)
        if self._close_timer is not None:
            self._close_timer.cancel()
        if not linger or self._has_eof:
            self._transport.close()
            timeout_s = self._state.limits.idle_s
        else:
            timeout_s = self._state.limits.linger_s
            with suppress(OSError):
                # The refusal can be read; what the client still sends is read and dropped until it has seen that.
                self._transport.write_eof()
            if self._reads_paused:
                self._transport.resume_reading()
        self._close_timer = self._state.loop.call_later(timeout_s, self._transport.abort)

    def _stop_processing(self) -> None:
        self._is_closing = True
        self._cached_when_idle = _NO_RESPONSES

    def _count_discarded(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > _MAX_LINGER_BYTES:
            self._transport.abort()
