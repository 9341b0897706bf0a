"""The `/portal/live` endpoint: server-sent events that tell an open page what changed.

A browser resumes by the id of the last event it received. The stream authenticates again while it is open and ends
when the user signed out or the service stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from forewarn.base.times import encode_time, timestamp
from forewarn.core.access import Right
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import Forbidden, ForewarnError, Rejected, Unauthenticated
from forewarn.web.context import RequestContext
from forewarn.web.errors import RETRY_AFTER_BY_STATUS, Surface, status_and_message
from forewarn.web.portal.context import PORTAL_PREFIX, PageAuthenticator, PortalContext
from forewarn.web.portal.live_updates import ChangeBatch, LiveSubscriber, LiveUpdateHub, PendingUpdates
from forewarn.web.portal.polling_monitor import ChangedScopes
from forewarn.web.portal.rendering import render_hold

KEEP_ALIVE_MESSAGE = b"event: alive\ndata: {}\n\n"  # no comment: scripts must see it to notice a dead connection
SIGNED_OUT_MESSAGE = b'event: over\ndata: {"text":"You are signed out."}\n\n'


class _LiveMessageEncoder:
    """Encodes updates of pages as server-sent events, with only what the user of `context` may see now."""

    def __init__(self, context: RequestContext, hub: LiveUpdateHub) -> None:
        self._context = context
        self._hub = hub

    def initial_messages(self, after: int | None, age_s: float | None = None) -> bytes:
        known = self._context.store.last_seq() if after is None else after
        batch = self._hub.changes_since(known)
        resumed = self._reset_message() if batch is None else self._change_message(batch)
        polling = frozenset() if age_s is None else self._hub.polling_changes_within(age_s)
        return b"".join(
            [
                self._clock_message(),
                self._health_message(),
                self._hold_message(),
                resumed,
                self._polling_message(polling),
                self._counts_message(),
            ]
        )

    def encode_updates(self, pending: PendingUpdates) -> bytes:
        return b"".join(self._update_messages(pending))

    def _update_messages(self, pending: PendingUpdates) -> Iterator[bytes]:
        if pending.needs_reset:
            yield self._reset_message()
        yield from map(self._change_message, pending.batches)
        yield self._polling_message(pending.polling_scopes)
        if pending.clock_changed:
            yield self._clock_message()
        if pending.counts_changed:
            yield self._counts_message()
        if pending.health_changed:
            yield self._health_message()
        if pending.hold_changed:
            yield self._hold_message()
        if pending.nodes_changed and self._context.principal.may(Right.READ, ROOT_RESOURCE):
            yield _json_message("nodes", {})

    def _reset_message(self) -> bytes:
        """The message that makes the page reload everything; its id is that of the newest history entry."""
        return _json_message("reset", {}, seq=self._context.store.last_seq())

    def _change_message(self, batch: ChangeBatch) -> bytes:
        if self._context.can_see_everything():
            return b"" if batch.full_change.is_empty else _sse_message("change", batch.full_change_json, seq=batch.seq)
        change = batch.visible_change(self._context.visibility, self._context.store)
        return b"" if change.is_empty else _json_message("change", change, seq=change.seq)

    def _polling_message(self, scopes: ChangedScopes) -> bytes:
        """Has no id, because the history does not record polls."""
        if scopes is not None and not self._context.can_see_everything():
            scopes = frozenset(filter(self._context.can_see_scope, scopes))
        if scopes is not None and not scopes:
            return b""
        return _json_message(
            "polling", {"now": timestamp(self._context.now()), "scopes": None if scopes is None else sorted(scopes)}
        )

    def _clock_message(self) -> bytes:
        now, speed, lab = self._context.control.lab_clock.status()
        return _json_message("clock", {"now": timestamp(now), "speed": speed, "lab": lab})

    def _counts_message(self) -> bytes:
        return _sse_message("counts", self._hub.counts_json(self._context.directory))

    def _health_message(self) -> bytes:
        return _json_message("health", self._hub.health)

    def _hold_message(self) -> bytes:
        return _json_message("hold", {"html": render_hold(self._context)})


def _json_message(event: str, data: Any, *, seq: int | None = None) -> bytes:
    return _sse_message(event, msgspec.json.encode(data, enc_hook=encode_time), seq=seq)


def _sse_message(event: str, data: bytes, *, seq: int | None = None) -> bytes:
    id_line = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (id_line, event.encode(), data)


log = logging.getLogger(__name__)

KEEP_ALIVE_INTERVAL_S = 15.0  # of real time; keeps proxies from closing an idle stream
MAX_WAIT_S = 5.0  # for updates, before the stream checks that the user is still signed in
REAUTHENTICATE_INTERVAL_S = 1.0  # at least, between two such checks
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def live_routes(authenticate: PageAuthenticator, hub: LiveUpdateHub) -> list[BaseRoute]:
    """Return the route `/portal/live`, which streams to an open page what changes, as server-sent events."""

    async def endpoint(request: Request) -> Response:
        try:
            context, _ = await authenticate(request)
            await context.overview.ensure_built()
            hub.require_capacity(context.principal.id)
            return _LiveStreamResponse(context, hub, _last_event_id(request), _page_age_s(request))
        except Exception as error:
            status, sentence = status_and_message(error, Surface.PORTAL)
            return PlainTextResponse(sentence, status_code=status, headers=RETRY_AFTER_BY_STATUS.get(status))

    return [Route(f"{PORTAL_PREFIX}/live", endpoint, methods=["GET"])]


def _last_event_id(request: Request) -> int | None:
    """The last history entry that the page knows, from Last-Event-ID (on reconnect) or `after`."""
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Rejected(f"{text!r} is not a sequence number of the history: give the last one that you received")
    return int(text)


def _page_age_s(request: Request) -> float | None:
    text = request.query_params.get("age")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Rejected(f"{text!r} is not the age of a page: give whole seconds")
    return float(text)


class _LiveStreamResponse(Response):
    """Streams server-sent events until the browser disconnects, the session ends or the service stops."""

    def __init__(self, context: PortalContext, hub: LiveUpdateHub, after: int | None, age_s: float | None) -> None:
        super().__init__(headers=_STREAM_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._context = context
        self._hub = hub
        self._after_seq = after
        self._age_s = age_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.subscribe(self._context.principal.id) as subscriber:
            disconnect_task = asyncio.create_task(_close_on_disconnect(receive, subscriber))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                initial = _LiveMessageEncoder(self._context, self._hub).initial_messages(self._after_seq, self._age_s)
                async for message in _stream_messages(self._context, self._hub, subscriber, initial):
                    await send({"type": "http.response.body", "body": message, "more_body": True})
            except ForewarnError as error:
                log.warning("live stream closed, the page will reconnect: %s", error)
            finally:
                disconnect_task.cancel()
            await send({"type": "http.response.body", "body": b""})


async def _close_on_disconnect(receive: Receive, subscriber: LiveSubscriber) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    subscriber.close()


async def _stream_messages(
    context: PortalContext, hub: LiveUpdateHub, subscriber: LiveSubscriber, initial: bytes
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    encoder = _LiveMessageEncoder(context, hub)
    yield initial
    sent_at = authenticated_at = loop.time()
    while not subscriber.is_closed:
        pending = await subscriber.wait(MAX_WAIT_S)
        if loop.time() - authenticated_at >= REAUTHENTICATE_INTERVAL_S:
            before, authenticated_at = context.principal, loop.time()
            if not await _is_still_authorized(context):
                yield SIGNED_OUT_MESSAGE
                return
            pending.needs_reset |= context.principal != before  # the user may see other things now
        message = encoder.encode_updates(pending)
        if message or loop.time() - sent_at >= KEEP_ALIVE_INTERVAL_S:
            sent_at = loop.time()
            yield message or KEEP_ALIVE_MESSAGE


async def _is_still_authorized(context: PortalContext) -> bool:
    try:
        await context.refresh()
    except (Unauthenticated, Forbidden):
        return False
    return True
