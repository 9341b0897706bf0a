"""One connection: requests are taken one by one and answered in order, and nothing a caller does or leaves undone
makes it cost more than its limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from typing import cast

from forewarn.metadata.answer import Answer, Drip, Hold, Rest
from forewarn.metadata.hall import RESET, Hall
from forewarn.metadata.identity import Caller
from forewarn.metadata.intake import Intake, Spoiled, Whole
from forewarn.metadata.memory import MOST_BYTES, Answers
from forewarn.metadata.pour import Pour
from forewarn.metadata.reply import BROKEN, CONTINUE
from forewarn.metadata.seam import Reset
from forewarn.metadata.sort import NO_REQUEST, STRANGER, Sort, agent_of, sort_of
from forewarn.protocol.exchange import Request, Response, timed_out

_log = logging.getLogger(__name__)

_REQUESTS_PER_TURN = 64  # of one caller, before others have theirs
_LINGER_BYTES = 1024 * 1024  # that a refused caller may still send before we stop being polite
_NOTHING: Answers = {}


class Connection(asyncio.Protocol):
    """At rest, or busy with one request: held (`_hold`), in work at the house (`_in_work`), or in drips (`_pour`)."""

    __slots__ = (  # there are thousands of them, nearly all at rest
        "_at_hand",
        "_deadline",
        "_discarded",
        "_fresh",
        "_hall",
        "_has_eof",
        "_hold",
        "_hold_slot",
        "_idle_slot",
        "_in_work",
        "_intake",
        "_is_closing",
        "_is_inside",
        "_is_old",
        "_keep_alive",
        "_known",
        "_last_timer",
        "_pour",
        "_quiet_since",
        "_reads_wait",
        "_sort",
        "_transport",
        "_turn",
        "_unsaid",
        "_writes_wait",
        "caller",
    )

    def __init__(
        self, hall: Hall, caller: Caller, *, heard: bytes = b"", unsaid: bytes = b"", keep_alive: bool = True
    ) -> None:
        """`heard` was read before the connection came here; `unsaid` is the rest of an answer that was begun."""
        self.caller = caller
        self._hall = hall
        self._transport: asyncio.Transport
        self._is_inside = False  # there is a transport
        self._known: Answers = _NOTHING  # what is remembered for this caller
        self._at_hand: Answers = _NOTHING  # the same while we are at rest, else nothing
        self._fresh = heard if 0 < len(heard) <= MOST_BYTES else None  # perhaps one whole request, and all there is
        self._unsaid = unsaid
        self._intake = Intake(hall.limits)
        self._intake.feed(heard)
        self._hold: Hold | None = None
        self._in_work = False
        self._pour: Pour | None = None
        self._keep_alive = keep_alive
        self._is_old = False
        self._sort: Sort = NO_REQUEST  # of the request in work
        self._writes_wait = self._reads_wait = self._has_eof = self._is_closing = False
        self._discarded = 0
        self._turn: asyncio.Handle | None = None  # there is more to do, when others have had their turn
        self._quiet_since = hall.loop.time()
        self._deadline: asyncio.TimerHandle | None = None  # of a request that is not whole
        self._hold_slot = self._idle_slot = 0  # in the hall's timetables
        self._last_timer: asyncio.TimerHandle | None = None  # of one that is closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_inside = cast(asyncio.Transport, transport), True
        self._transport.set_write_buffer_limits(high=self._hall.limits.write_bytes)
        self._idle_slot = self._hall.idlers.put(self._quiet_since + self._hall.limits.idle_s, self)
        caller = self.caller
        self._known = self._hall.memory.answers_for(caller.vm, caller.is_loopback, caller.is_local) or _NOTHING
        if self._unsaid or self._intake.waiting:
            # Not here: uvloop starts to read afterwards, whatever was said about that.
            self._turn = self._hall.loop.call_soon(self._begin)
        else:
            self._at_hand = self._known

    def data_received(self, data: bytes) -> None:
        answer = self._at_hand.get(data)
        if answer is None:
            self._receive(data)
            return
        hall = self._hall
        self._transport.write(hall.repeat(answer))
        self._quiet_since = hall.time()
        if not answer.keep_alive:
            self._close(linger=False)

    def _receive(self, data: bytes) -> None:
        if self._is_closing:
            self._discard(len(data))
            return
        is_fresh = self._is_at_rest and len(data) <= MOST_BYTES
        if is_fresh and self._learns(data):
            self.data_received(data)
            return
        self._fresh = data if is_fresh else None
        self._at_hand = _NOTHING
        self._intake.feed(data)
        self._go_on()

    def _learns(self, data: bytes) -> bool:
        """Whether the same was asked on another connection since something changed: the answer is at hand then."""
        caller, hall = self.caller, self._hall
        known = hall.memory.answers_for(caller.vm, caller.is_loopback, caller.is_local)
        if known is None or data not in known or not hall.reception.knows(caller):
            return False
        self._known = self._at_hand = known
        return True

    def eof_received(self) -> bool:
        """A caller that only stopped sending still gets its answers."""
        if self._is_closing:
            return False
        self._has_eof = True
        if self._hold is not None and self._hold.scope_id:
            self._resume(over=True)  # whoever hung up looks the same from here, and should not be kept
        else:
            self._go_on()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut()
        self._leave_hold()
        if self._pour is not None:
            self._pour.stop()
        self._hall.idlers.drop(self._idle_slot, self)
        for timer in (self._deadline, self._last_timer):
            if timer is not None:
                timer.cancel()
        self._hall.leave(self)

    def pause_writing(self) -> None:
        self._writes_wait = True
        self._at_hand = _NOTHING
        self._steer_reading()

    def resume_writing(self) -> None:
        self._writes_wait = False
        self._quiet_since = self._hall.loop.time()
        self._go_on()
        if self._hall.is_draining and self._is_at_rest:
            self._close(linger=False)

    def wake(self) -> None:
        if self._hold is not None and self._hold.scope_id:
            self._resume(over=False)

    def end_hold(self) -> None:
        self._resume(over=True)

    def drain(self) -> None:
        if self._hold is not None:
            self._resume(over=True)
        elif self._pour is not None:
            self._pour.finish()
        elif self._is_free and not self._intake.is_partial and not self._unsaid:
            self._close(linger=False)

    def hang_up(self) -> None:
        self._shut()
        self._transport.abort()

    @property
    def buffered_bytes(self) -> int:
        unread = self._transport.get_write_buffer_size() if self._is_inside else 0
        return self._intake.waiting + len(self._unsaid) + unread

    @property
    def _is_free(self) -> bool:
        return not (self._in_work or self._hold or self._pour or self._writes_wait or self._is_closing)

    @property
    def _is_at_rest(self) -> bool:
        return self._is_free and self._turn is None and not self._intake.is_partial

    def _begin(self) -> None:
        """Go on where whoever met the caller stopped."""
        self._turn = None
        unsaid, self._unsaid = self._unsaid, b""
        if unsaid and not self._is_closing:
            self._transport.write(unsaid)
            self._end_answer(linger=False)
        self._go_on()

    def _go_on(self) -> None:
        """Take the next requests, if there are any and the earlier ones are answered."""
        try:
            if self._turn is None and (self._intake.is_partial or self._has_eof):
                self._take_some()
        except Exception:
            self._fail()
        self._steer_reading()
        self._at_hand = self._known if self._is_at_rest else _NOTHING

    def _take_some(self) -> None:
        for _ in range(_REQUESTS_PER_TURN):
            has_more = self._intake.is_partial or self._has_eof
            if not (has_more and self._is_free and self._take()):
                return
        self._turn = self._hall.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._go_on()

    def _take(self) -> bool:
        taken = self._intake.take()
        if taken is None:
            self._await_more()
            return False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if isinstance(taken, Spoiled):
            self._sort = NO_REQUEST
            self._refuse(taken.response)
            return False
        self._answer(taken)
        return True

    def _await_more(self) -> None:
        if self._has_eof:
            self._close(linger=False)
            return
        if self._intake.wants_continue():
            self._transport.write(CONTINUE)
        if self._intake.is_partial and self._deadline is None:
            self._deadline = self._hall.loop.call_later(self._hall.limits.request_s, self._be_late)

    def _answer(self, whole: Whole) -> None:
        self._hall.tally.requests += 1
        self._is_old = whole.is_old
        is_known = self._hall.reception.knows(self.caller)
        self._sort = sort_of(whole.request) if is_known else STRANGER
        # A stranger may be a VM by the time it connects again.
        self._keep_alive = whole.keep_alive and is_known
        answer = self._hall.reception.answer(self.caller, whole.request)
        fresh, self._fresh = self._fresh, None
        if fresh is not None and not self._intake.waiting and isinstance(answer, Response):
            self._remember(fresh, whole.request, answer)
        self._settle(answer)

    def _remember(self, raw: bytes, request: Request, answer: Response) -> None:
        lasting = self._hall.reception.lasting(self.caller, request)
        if lasting is None:
            return
        view, version = lasting
        self._known = self._hall.memory.remember(
            raw,
            self.caller,
            view,
            version=version,
            dated=self._hall.writer.dated(answer, keep_alive=self._keep_alive, is_old=self._is_old),
            keep_alive=self._keep_alive,
            status=answer.status,
            sort=self._sort,
            agent=agent_of(request),
        )

    def _settle(self, answer: Answer) -> None:
        while isinstance(answer, Hold) and (self._hall.is_draining or (self._has_eof and answer.scope_id)):
            answer = answer.resume(True)
        if isinstance(answer, Response):
            self._write(answer)
        elif isinstance(answer, Hold):
            self._enter_hold(answer)
        elif isinstance(answer, Drip):
            self._drip(answer)
        elif isinstance(answer, Reset):
            self._reset()
        else:
            self._in_work = True
            self._hall.work(answer, self._worked)

    def _reset(self) -> None:
        self._hall.tally.answered[self._sort, RESET] += 1
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.hang_up()

    def _worked(self, task: asyncio.Task[Rest]) -> None:
        self._in_work = False
        try:
            rest = task.result()
            if not self._is_closing:
                self._settle(rest())
        except asyncio.CancelledError:
            self.hang_up()
        except Exception:
            self._fail()
        self._go_on()

    def _enter_hold(self, hold: Hold) -> None:
        self._hold = hold
        self._hall.tally.held += 1
        self._hold_slot = self._hall.holds.put(hold.until, self)
        if hold.scope_id:
            self._hall.board.hold(hold.scope_id, self)

    def _leave_hold(self) -> Hold | None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._hall.tally.held -= 1
            self._hall.board.release(hold.scope_id, self)
            self._hall.holds.drop(self._hold_slot, self)
        return hold

    def _resume(self, over: bool) -> None:
        hold = self._leave_hold()
        if hold is None or self._is_closing:
            return
        try:
            self._settle(hold.resume(over))
        except Exception:
            self._fail()
        self._go_on()

    def _write(self, response: Response, *, linger: bool = False) -> None:
        self._transport.write(self._bytes_for(response))
        self._end_answer(linger=linger)

    def _bytes_for(self, response: Response) -> bytes:
        self._keep_alive = self._keep_alive and not self._hall.is_draining
        self._hall.tally.answered[self._sort, response.status] += 1
        return self._hall.writer.bytes_for(response, keep_alive=self._keep_alive, is_old=self._is_old)

    def _end_answer(self, *, linger: bool) -> None:
        self._quiet_since = self._hall.loop.time()
        if not self._keep_alive or self._hall.is_draining:
            self._close(linger=linger or self._intake.waiting > 0)

    def _drip(self, drip: Drip) -> None:
        raw = self._bytes_for(drip.response)
        self._pour = Pour(write=self._transport.write, raw=raw, take_s=drip.take_s, done=self._poured)
        if self._hall.is_draining:
            self._pour.finish()

    def _poured(self) -> None:
        self._pour = None
        self._end_answer(linger=False)
        self._go_on()

    def _refuse(self, response: Response) -> None:
        self._keep_alive = False
        self._write(response, linger=True)

    def _fail(self) -> None:
        _log.exception("a request of VM %r met a mistake of ours and was answered 500", self.caller.vm)
        if not self._is_closing:
            self._refuse(BROKEN)

    def _be_late(self) -> None:
        self._deadline = None
        if not self._is_closing:
            self._sort = NO_REQUEST
            self._refuse(timed_out())

    def look_idle(self) -> None:
        idle_s, now = self._hall.limits.idle_s, self._hall.time()
        is_busy = self._in_work or self._hold is not None or self._pour is not None or self._deadline is not None
        left_s = idle_s if is_busy else self._quiet_since + idle_s - now
        if left_s > 0:
            self._idle_slot = self._hall.idlers.put(now + left_s, self)
        elif self._transport.get_write_buffer_size() > 0:
            self.hang_up()
        else:
            self._close(linger=False)

    def _steer_reading(self) -> None:
        """Read no further while answers are not read, or while more waits than one request's head may have."""
        waits = self._writes_wait or self._intake.waiting > self._hall.limits.head_bytes
        if self._is_closing or self._has_eof or waits == self._reads_wait:
            return
        self._reads_wait = waits
        if waits:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _close(self, *, linger: bool) -> None:
        """With `linger` we go on listening for a while: closing on unread bytes would take our last answer back."""
        self._shut()
        self._hall.idlers.drop(self._idle_slot, self)
        if self._last_timer is not None:
            self._last_timer.cancel()
        if not linger or self._has_eof:
            self._transport.close()
            patience_s = self._hall.limits.idle_s
        else:
            patience_s = self._hall.limits.linger_s
            with suppress(OSError):
                self._transport.write_eof()
            if self._reads_wait:
                self._transport.resume_reading()
        self._last_timer = self._hall.loop.call_later(patience_s, self._transport.abort)

    def _shut(self) -> None:
        """No request is taken any more."""
        self._is_closing = True
        self._at_hand = _NOTHING

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > _LINGER_BYTES:
            self._transport.abort()
