"""What changes, told to open pages as it happens: server-sent events, which a browser takes up again by their ids."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from forewarn.console.portal.channel import Channel
from forewarn.console.portal.context import EnterPortal, PortalContext
from forewarn.console.portal.listener import Listener
from forewarn.console.portal.page import PREFIX
from forewarn.console.portal.telling import KEPT_ALIVE, OVER, Telling
from forewarn.console.refusal import outcome_of
from forewarn.errors import Forbidden, ForewarnError, Rejected, Unauthenticated

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0  # of real time: whatever stands between us and the browser sees that the stream is in use
LOOK_AGAIN_S = 5.0  # while nothing happens: who is looking may have signed out
FRESH_S = 1.0  # who is looking is asked again at most so often
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def live_routes(enter: EnterPortal) -> list[BaseRoute]:
    channels: list[Channel] = []  # made with the first visit; one for all

    async def endpoint(request: Request) -> Response:
        try:
            room, _ = await enter(request)
            await room.overview.ready()
            if not channels:
                channels.append(Channel(room.house, room.overview))
            channels[0].must_have_room(room.principal.id)
            return Stream(room, channels[0], _after(request), _age(request))
        except Exception as error:
            status, sentence = outcome_of(error)
            return PlainTextResponse(sentence, status_code=status)

    return [Route(f"{PREFIX}/live", endpoint, methods=["GET"])]


def _after(request: Request) -> int | None:
    """The number up to which the page knows everything: a browser that comes back names the last that it heard."""
    told = request.headers.get("last-event-id") or request.query_params.get("after")
    if told is None:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 19):
        raise Rejected(f"{told!r} is no number of the history: give the last one that you have seen")
    return int(told)


def _age(request: Request) -> float | None:
    """How many seconds ago the page was up to date."""
    told = request.query_params.get("age")
    if told is None:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 10):
        raise Rejected(f"{told!r} is no age of a page: give whole seconds")
    return float(told)


class Stream(Response):
    """Told until the page is gone, the visit over, or the service stops."""

    def __init__(self, room: PortalContext, channel: Channel, after: int | None, age_s: float | None) -> None:
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._room = room
        self._channel = channel
        self._after = after
        self._age_s = age_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._channel.joined(self._room.principal.id) as listener:
            leaving = asyncio.create_task(_end_with(receive, listener))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                greeting = Telling(self._room, self._channel).greeting(self._after, self._age_s)
                async for part in _told(self._room, self._channel, listener, greeting):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except ForewarnError as error:
                log.warning("a page is told nothing more until it comes back: %s", error)
            finally:
                leaving.cancel()
            await send({"type": "http.response.body", "body": b""})


async def _end_with(receive: Receive, listener: Listener) -> None:
    """The only thing that a browser says from here on is that it has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.end()


async def _told(room: PortalContext, channel: Channel, listener: Listener, greeting: bytes) -> AsyncIterator[bytes]:
    """Parts of the stream, until there is nobody to tell."""
    loop = asyncio.get_running_loop()
    telling = Telling(room, channel)
    yield greeting
    said_at = looked_at = loop.time()
    while not listener.is_over:
        waiting = await listener.wait(LOOK_AGAIN_S)
        if loop.time() - looked_at >= FRESH_S:
            before, looked_at = room.principal, loop.time()
            if not await _may_still_look(room):
                yield OVER
                return
            waiting.is_lost |= room.principal != before  # other things are visible now
        part = telling.waiting(waiting)
        if part or loop.time() - said_at >= KEEP_ALIVE_S:
            said_at = loop.time()
            yield part or KEPT_ALIVE


async def _may_still_look(room: PortalContext) -> bool:
    try:
        await room.look_again()
    except (Unauthenticated, Forbidden):
        return False
    return True
