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

from forewarn.errors import Forbidden, ForewarnError, Rejected, Unauthenticated
from forewarn.portal.context import PORTAL_PREFIX, PageAuthenticator, PortalContext
from forewarn.portal.live_changes import ChangeBatch
from forewarn.portal.live_updates import LiveSubscriber, LiveUpdateHub, PendingUpdates
from forewarn.portal.polling_monitor import ChangedScopes
from forewarn.web.context import RequestContext
from forewarn.web.errors import status_and_message
from forewarn.web.remedies import Surface

KEEP_ALIVE_MESSAGE = b"event: alive\ndata: {}\n\n"  # a script cannot hear comments, and is to notice when nothing comes
SIGNED_OUT_MESSAGE = b'event: over\ndata: {"text":"You are signed out."}\n\n'


class LiveMessageEncoder:
    def __init__(self, context: RequestContext, channel: LiveUpdateHub) -> None:
        self._context = context
        self._hub = channel

    def initial_messages(self, after: int | None, age_s: float | None = None) -> bytes:
        """How things are, and what a page that has seen everything up to `after` was not told, nor, since it is so
        old, of those who ask.
        """
        known = self._context.store.last_seq() if after is None else after
        missed = self._hub.changes_since(known)
        resumed = self.reset_message() if missed is None else self._change_message(missed)
        asking = frozenset() if age_s is None else self._hub.polling_changes_within(age_s)
        return b"".join(
            [
                self._clock_message(),
                self._health_message(),
                resumed,
                self._polling_message(asking),
                self._counts_message(),
            ]
        )

    def encode_updates(self, waiting: PendingUpdates) -> bytes:
        return b"".join(self._update_messages(waiting))

    def _update_messages(self, waiting: PendingUpdates) -> Iterator[bytes]:
        if waiting.needs_reset:
            yield self.reset_message()
        yield from map(self._change_message, waiting.batches)
        yield self._polling_message(waiting.polling_scopes)
        if waiting.clock_changed:
            yield self._clock_message()
        if waiting.counts_changed:
            yield self._counts_message()
        if waiting.health_changed:
            yield self._health_message()

    def reset_message(self) -> bytes:
        """Everything has to be read again; what comes after is told as ever."""
        return _json_message("reset", {}, seq=self._context.store.last_seq())

    def _change_message(self, news: ChangeBatch) -> bytes:
        if self._context.can_see_everything():
            return b"" if news.full_change.is_empty else _sse_message("change", news.full_change_json, seq=news.seq)
        seen = news.visible_change(self._context.visibility, self._context.store)
        return b"" if seen.is_empty else _json_message("change", seen, seq=seen.seq)

    def _polling_message(self, scopes: ChangedScopes) -> bytes:
        """Without a number: the history does not tell who asks."""
        if scopes is not None and not self._context.can_see_everything():
            scopes = frozenset(filter(self._context.can_see_scope, scopes))
        if scopes is not None and not scopes:
            return b""
        return _json_message(
            "asking", {"now": self._context.now(), "scopes": None if scopes is None else sorted(scopes)}
        )

    def _clock_message(self) -> bytes:
        now, speed, lab = self._context.control.lab_clock.status()
        return _json_message("clock", {"now": now, "speed": speed, "lab": lab})

    def _counts_message(self) -> bytes:
        return _sse_message("counts", self._hub.counts_json(self._context.directory))

    def _health_message(self) -> bytes:
        return _json_message("health", self._hub.health)


def _json_message(event: str, data: Any, *, seq: int | None = None) -> bytes:
    return _sse_message(event, msgspec.json.encode(data), seq=seq)


def _sse_message(event: str, data: bytes, *, seq: int | None = None) -> bytes:
    number = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (number, event.encode(), data)


log = logging.getLogger(__name__)

KEEP_ALIVE_INTERVAL_S = 15.0  # of real time: whatever stands between us and the browser sees that the stream is in use
MAX_WAIT_S = 5.0  # while nothing happens: who is looking may have signed out
REAUTHENTICATE_INTERVAL_S = 1.0  # who is looking is asked again at most so often
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def live_routes(enter: PageAuthenticator) -> list[BaseRoute]:
    channels: list[LiveUpdateHub] = []  # made with the first visit; one for all

    async def endpoint(request: Request) -> Response:
        try:
            context, _ = await enter(request)
            await context.overview.ensure_built()
            if not channels:
                channels.append(LiveUpdateHub(context.dependencies, context.overview))
            channels[0].require_capacity(context.principal.id)
            return LiveStreamResponse(context, channels[0], _last_event_id(request), _page_age_s(request))
        except Exception as error:
            status, sentence = status_and_message(error, Surface.PORTAL)
            return PlainTextResponse(sentence, status_code=status)

    return [Route(f"{PORTAL_PREFIX}/live", endpoint, methods=["GET"])]


def _last_event_id(request: Request) -> int | None:
    """The number up to which the page knows everything: a browser that comes back names the last that it heard."""
    told = request.headers.get("last-event-id") or request.query_params.get("after")
    if told is None:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 19):
        raise Rejected(f"{told!r} is no number of the history: give the last one that you have seen")
    return int(told)


def _page_age_s(request: Request) -> float | None:
    """How many seconds ago the page was up to date."""
    told = request.query_params.get("age")
    if told is None:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 10):
        raise Rejected(f"{told!r} is no age of a page: give whole seconds")
    return float(told)


class LiveStreamResponse(Response):
    """Told until the page is gone, the visit over, or the service stops."""

    def __init__(self, context: PortalContext, channel: LiveUpdateHub, after: int | None, age_s: float | None) -> None:
        super().__init__(headers=_STREAM_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._context = context
        self._hub = channel
        self._after_seq = after
        self._age_s = age_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.subscribe(self._context.principal.id) as listener:
            leaving = asyncio.create_task(_close_on_disconnect(receive, listener))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                greeting = LiveMessageEncoder(self._context, self._hub).initial_messages(self._after_seq, self._age_s)
                async for part in _stream_messages(self._context, self._hub, listener, greeting):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except ForewarnError as error:
                log.warning("a page is told nothing more until it comes back: %s", error)
            finally:
                leaving.cancel()
            await send({"type": "http.response.body", "body": b""})


async def _close_on_disconnect(receive: Receive, listener: LiveSubscriber) -> None:
    """The only thing that a browser says from here on is that it has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.close()


async def _stream_messages(
    context: PortalContext, channel: LiveUpdateHub, listener: LiveSubscriber, greeting: bytes
) -> AsyncIterator[bytes]:
    """Parts of the stream, until there is nobody to tell."""
    loop = asyncio.get_running_loop()
    telling = LiveMessageEncoder(context, channel)
    yield greeting
    said_at = looked_at = loop.time()
    while not listener.is_closed:
        waiting = await listener.wait(MAX_WAIT_S)
        if loop.time() - looked_at >= REAUTHENTICATE_INTERVAL_S:
            before, looked_at = context.principal, loop.time()
            if not await _is_still_authorized(context):
                yield SIGNED_OUT_MESSAGE
                return
            waiting.needs_reset |= context.principal != before  # other things are visible now
        part = telling.encode_updates(waiting)
        if part or loop.time() - said_at >= KEEP_ALIVE_INTERVAL_S:
            said_at = loop.time()
            yield part or KEEP_ALIVE_MESSAGE


async def _is_still_authorized(context: PortalContext) -> bool:
    try:
        await context.refresh()
    except (Unauthenticated, Forbidden):
        return False
    return True
