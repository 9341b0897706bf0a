"""A worker: a process that answers VMs from memory and asks the owner for everything else.

It knows what it was told over one line, and serves once it has been told everything. When the line ends it ends: the
owner is gone, or has another worker in its place. While it hears nothing it accepts nobody, and what would have to be
written down is refused; polls on connections that are open are answered with what was heard last, since an owner that
says nothing decides nothing either. It goes on when it was told all that was said meanwhile: perhaps it was itself that
was stopped.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

from forewarn.assembly.exposition import Window
from forewarn.assembly.loop import fastest_loop
from forewarn.assembly.member import WAITING_SIGNALS
from forewarn.assembly.pipe import GONE, Pipe
from forewarn.clock import LabClock, SystemClock
from forewarn.errors import Unavailable
from forewarn.metadata import Board, Callers, Limits, Listener, MetadataServer, feed
from forewarn.metadata.allowance import SharedAllowance
from forewarn.metadata.counted import Counted
from forewarn.metadata.observation import PORTION, PORTIONS, REST_S
from forewarn.protocol.exchange import Rules
from forewarn.protocol.identity import ManagedIdentity, Token, WrongResource

log = logging.getLogger(__name__)
Answer: TypeAlias = "str | Token | WrongResource | None"
DRAINED = "drained"
_SILENCE_S = 1.0
_LOOK_EVERY_S = 0.1
_REPORT_EVERY_S = 1.0
_DRAIN_S = 5.0


class Asking:
    """The `Backend` of a worker: the owner, over the line."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._say = say
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self.is_heard = True  # whether the owner says anything these days
        self.clock: SystemClock | LabClock = SystemClock()

    def now(self) -> float:
        return self.clock.now()

    async def enable(self, vm: str) -> None:
        await self._ask(lambda number: feed.Enable(number, vm))

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await self._ask(lambda number: feed.Approve(number, vm, event_ids))
        assert unknown is None or isinstance(unknown, str)
        return unknown

    async def token(self, identity: ManagedIdentity, resource: str) -> Token | WrongResource:
        given = await self._ask(lambda number: feed.AskToken(number, identity, resource))
        assert isinstance(given, (Token, WrongResource))
        return given

    def hear(self, reply: feed.Reply) -> None:
        asked = self._asked.pop(reply.id, None)
        if asked is None or asked.done():
            return
        if isinstance(reply, feed.Failed):
            asked.set_exception(reply.error())
        elif isinstance(reply, feed.Given):
            asked.set_result(reply.token)
        elif isinstance(reply, feed.Denied):
            asked.set_result(WrongResource(accepted=reply.accepted))
        else:
            asked.set_result(reply.unknown)

    async def _ask(self, asking: Callable[[int], feed.Ask]) -> Answer:
        # What was asked before is waited for: it may be done, and a refusal says that nothing was.
        if not self.is_heard:
            raise Unavailable("the service does not answer: try again later")
        number = next(self._numbers)
        asked: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._say(feed.pack(asking(number)))
        try:
            return await asked
        finally:
            self._asked.pop(number, None)


class Door(socket.socket):
    """A listening socket; unless `is_open`, whoever calls waits in its backlog."""

    is_open: Callable[[], bool]

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.is_open():
            raise BlockingIOError
        return super().accept()


class Worker:
    """Serves from the moment it is told to begin until `run` returns."""

    def __init__(self, sock: socket.socket, allowance: SharedAllowance, *, silence_s: float = _SILENCE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._allowance = allowance
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._pipe = Pipe(sock, for_worker=True, hear=self._hear, lost=self._end)
        self._asking = Asking(self._pipe.say)
        self._callers = Callers()
        self._board: Board
        self._server: MetadataServer | None = None
        self._sockets: dict[int, tuple[feed.Open, socket.socket]] = {}
        self._serving: dict[int, Listener] = {}
        self._heard_at = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_leaving = self._tells_touches = self._is_complete = self._leaves_then = False
        self._told = Counted()
        self._windows: list[Window] = []
        self._do: dict[type, Callable[[Any], None]] = {
            feed.Begin: self._begin,
            feed.Clock: self._set_clock,
            feed.Faults: self._arm,
            feed.Seat: self._seat,
            feed.Show: lambda told: self._board.publish(told.view()),
            feed.Complete: self._be_ready,
            feed.Open: self._open,
            feed.Expose: self._expose,
            feed.Shut: self._shut,
            feed.Echo: lambda told: self._pipe.say(feed.pack(feed.Echoed(told.id))),
            feed.Report: self._report_to,
            feed.Resume: self._resume,
            feed.Drain: lambda told: self.leave(told.timeout_s),
        }

    async def run(self) -> str:
        """Until the line ends, or the owner or a signal says to; why."""
        watching = [self._loop.create_task(self._watch()), self._loop.create_task(self._keep_reporting())]
        try:
            return await self._over
        finally:
            for task in (*watching, *self._tasks):
                task.cancel()
            await asyncio.gather(*watching, *self._tasks, return_exceptions=True)
            self._pipe.close()
            for window in self._windows:
                await window.close()
            if self._server is not None:
                await self._server.drain(0.0)
            for _, sock in self._sockets.values():
                sock.close()

    def leave(self, timeout_s: float = _DRAIN_S) -> None:
        """Accept nobody, answer whoever is here, tell what was seen, and end."""
        if self._server is None:
            self._end("told to end before it began")
        elif not self._is_leaving:
            self._is_leaving = True
            for window in self._windows:
                self._spawn(window.close())  # another takes its place
            self._pipe.say(feed.pack(feed.Leaving()))
            self._spawn(self._drain(timeout_s))

    def leave_when_complete(self) -> None:
        """A signal says to. While all is told to us the owner waits for us, unless it was told to end as well."""
        if self._is_complete:
            self.leave()
        self._leaves_then = True

    @property
    def _running(self) -> MetadataServer:
        if self._server is None:
            raise feed.Broken("the first thing to be told is how to begin")
        return self._server

    def _hear(self, message: Any) -> None:
        self._look()
        self._heard_at = self._loop.time()
        do = self._do.get(type(message))
        if do is None:
            self._asking.hear(message)
        else:
            do(message)

    def _begin(self, told: feed.Begin) -> None:
        def rules_for(location: str) -> Rules:
            return told.rules_by_location.get(location, told.rules)

        self._board = Board(first_answer_delay_s=told.first_answer_delay_s)
        self._server = MetadataServer(
            board=self._board,
            backend=self._asking,
            callers=self._callers,
            rules_for=rules_for,
            limits=Limits(requests_per_s=told.requests_per_s),
            allowance=self._allowance,
        )
        self._server.faults.follow_touches(self._tell_touches_soon)

    def _be_ready(self, told: feed.Complete) -> None:
        # What is known of a fleet stays for good, and going through it for garbage takes longer than VMs should wait.
        gc.freeze()
        gc.enable()
        self._pipe.say(feed.pack(feed.Ready()))
        self._is_complete = True
        if self._leaves_then:
            self.leave()

    def _set_clock(self, told: feed.Clock) -> None:
        clock = self._asking.clock
        if isinstance(clock, LabClock):
            clock.adopt(told.setting)
        else:
            self._asking.clock = LabClock(told.setting)

    def _arm(self, told: feed.Faults) -> None:
        self._allowance.places = told.places
        self._running.faults.arm(told.faults)

    def _seat(self, told: feed.Seat) -> None:
        if told.vm is None:
            self._callers.release(told.place)
        else:
            self._callers.assign(told.place, told.vm)

    def _open(self, told: feed.Open) -> None:
        self._sockets[told.id] = (told, socket.socket(fileno=self._pipe.take_file()))
        self._serve(told.id)

    def _expose(self, told: feed.Expose) -> None:
        from forewarn.assembly.registry import WorkerMetrics  # takes its time, and most show none

        metrics = WorkerMetrics(counted=self._count, silent_s=lambda: self._loop.time() - self._heard_at)
        window = Window(metrics.show)
        self._windows.append(window)
        self._spawn(window.open(socket.socket(fileno=self._pipe.take_file())))

    def _count(self) -> Counted:
        return self._server.counted() if self._server is not None else Counted()

    def _shut(self, told: feed.Shut) -> None:
        self._stop_serving(told.id)
        _, sock = self._sockets.pop(told.id, (None, None))
        if sock is not None:
            sock.close()

    def _serve(self, number: int) -> None:
        """On a copy of the socket, so that it may be left and taken up again."""
        if self._is_leaving or number in self._serving:
            return
        told, sock = self._sockets[number]
        door = Door(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        door.is_open = self._accepts
        listener = Listener(sockets=(door,), strategy=told.told_by(), is_loopback=told.is_loopback)
        self._serving[number] = listener
        self._spawn(self._start(listener))

    async def _start(self, listener: Listener) -> None:
        try:
            await self._running.start([listener])
        except OSError as error:  # its device went in the same moment; the owner will hear of it
            log.warning("cannot serve a socket: %s", error)

    def _stop_serving(self, number: int) -> None:
        listener = self._serving.pop(number, None)
        if listener is not None:
            self._spawn(self._running.stop(listener))

    def _accepts(self) -> bool:
        """Asked for each caller: when we were stopped, one who waits may come before anything else that would tell."""
        self._look()
        return self._asking.is_heard

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self._look()

    def _look(self) -> None:
        is_silent = self._loop.time() - self._heard_at > self._silence_s
        if self._is_complete and self._asking.is_heard and is_silent:
            self._pause()

    def _pause(self) -> None:
        """Callers wait in the backlogs, which are the owner's too, until we know what to tell them."""
        log.warning("the service has said nothing for %g s: accepting nobody until it does", self._silence_s)
        self._pipe.say(feed.pack(feed.Silence()))
        self._asking.is_heard = False
        for number in tuple(self._serving):
            self._stop_serving(number)

    def _resume(self, told: feed.Resume) -> None:
        self._asking.is_heard = True
        for number in self._sockets:
            self._serve(number)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            while self._server is not None and self._asking.is_heard and self._report(rest_s=REST_S):
                await asyncio.sleep(_REPORT_EVERY_S / PORTIONS)

    def _report_to(self, told: feed.Report) -> None:
        for _ in range(PORTIONS):
            if not self._report(told.id):
                return
        self._pipe.say(feed.pack(feed.Seen(id=told.id)))

    def _report(self, number: int = 0, *, rest_s: float = 0.0) -> bool:
        """What was seen since the last time, of many VMs of a part of them; whether there may be more.

        `number`: of the report that was asked for, said with the last part.
        """
        polls, sightings = self._running.observations.take_new(rest_s)
        touches = self._running.faults.take()
        told, self._told = self._told, self._running.counted()
        has_more = len(polls) == PORTION
        number = 0 if has_more else number
        if number or polls or sightings or touches or told != self._told:
            self._pipe.say(feed.pack(feed.Seen(polls, sightings, touches, number, self._told)))
        return has_more

    def _tell_touches_soon(self) -> None:
        """At once: whoever looks at a fault wants to see what it did."""
        if not self._tells_touches:
            self._tells_touches = True
            self._loop.call_soon(self._tell_touches)

    def _tell_touches(self) -> None:
        self._tells_touches = False
        touches = self._running.faults.take()
        if touches:
            self._pipe.say(feed.pack(feed.Seen(touches=touches)))

    async def _drain(self, timeout_s: float) -> None:
        await self._running.drain(timeout_s)
        self._serving.clear()
        while self._report():
            await asyncio.sleep(0)
        while not self._pipe.is_quiet and not self._over.done():
            await asyncio.sleep(0.001)
        self._end(DRAINED)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)


async def _serve(sock: socket.socket, allowance: SharedAllowance) -> None:
    worker = Worker(sock, allowance)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.leave_when_complete)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the owner's to answer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITING_SIGNALS)
    why = await worker.run()
    if why not in (DRAINED, GONE):
        log.error("it cannot go on: %s", why)


def main() -> None:
    # Ctrl-C goes to everybody at the terminal, and the owner is the one to say what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s worker {os.getpid()}: %(message)s")
    gc.disable()  # until all is known
    line, shared = map(int, sys.argv[1:])
    for file in (line, shared):
        os.set_inheritable(file, False)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(socket.socket(fileno=line), SharedAllowance(shared)))


if __name__ == "__main__":
    main()
