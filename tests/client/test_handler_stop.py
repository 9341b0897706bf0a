"""`Handler.stop` ends a run at once, also during an open long poll, a pause or a first answer that does not come."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forewarn.client import AsyncClient, Change, Client, Handler
from forewarn.client.cursor import load_cursor
from forewarn.client.requests import LONG_POLL_S
from forewarn.errors import Rejected
from forewarn.protocol.http_message import HttpRequest
from tests.client.test_handler import Service, document
from tests.support.scripted_server import ScriptedReply, json_reply

START_S = 60.0  # for a busy machine
STOP_S = 15.0  # less than any of the waits that `stop` must end
LISTED = ("Freeze",)


class HoldingService(Service):
    """Holds long polls until the test ends; with `holds_all` every poll."""

    def __init__(self, *documents: ScriptedReply, holds_all: bool = False) -> None:
        super().__init__(*documents)
        self.is_held, self.is_over = threading.Event(), threading.Event()
        self._holds_all = holds_all

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        is_poll = request.method == "GET" and "/scheduledevents" in request.target
        if is_poll and (self._holds_all or f"wait={LONG_POLL_S}" in request.header_values("prefer")):
            self.is_held.set()
            self.is_over.wait(300)
        return super().next_reply(request)

    def __exit__(self, *reason: object) -> None:
        self.is_over.set()
        super().__exit__(*reason)  # type: ignore[arg-type]


def with_etag(*words: str) -> ScriptedReply:
    reply = document(2, *words)
    return ScriptedReply(body=reply.body, headers=(("ETag", '"1-2"'),))


def run(handler: Handler, server: Service, cursor: Path | None = None) -> None:
    handler.run(Client(server.url), cursor)


def arun(handler: Handler, server: Service, cursor: Path | None = None) -> None:
    asyncio.run(handler.arun(AsyncClient(server.url), cursor))


Run = Callable[..., None]
EITHER = pytest.mark.parametrize("run_it", [run, arun], ids=["threads", "tasks"])


@contextmanager
def running(run_it: Run, handler: Handler, server: Service, cursor: Path | None = None) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=run_it, args=(handler, server, cursor), daemon=True)
    thread.start()
    yield thread
    thread.join(STOP_S)
    assert not thread.is_alive(), "stop did not end the run"


@EITHER
def test_stop_does_not_wait_for_an_open_long_poll(run_it: Run) -> None:
    handler = Handler()
    with HoldingService(with_etag()) as server, running(run_it, handler, server):
        assert server.is_held.wait(START_S)
        handler.stop()


@EITHER
def test_stop_does_not_wait_for_a_first_answer(run_it: Run) -> None:
    """Spec §8.1: it may take two minutes."""
    handler = Handler()
    with HoldingService(with_etag(), holds_all=True) as server, running(run_it, handler, server):
        assert server.is_held.wait(START_S)
        handler.stop()


@EITHER
def test_stop_does_not_wait_for_the_pause_after_a_failure(run_it: Run) -> None:
    handler, asked = Handler(), threading.Event()

    class Throttling(Service):
        def next_reply(self, request: HttpRequest) -> ScriptedReply:
            asked.set()
            return ScriptedReply(status=429, headers=(("Retry-After", "3600"),))

    with Throttling(document(1)) as server, running(run_it, handler, server):
        assert asked.wait(START_S)
        handler.stop()


@EITHER
def test_stop_before_a_run_makes_that_run_return_and_the_next_one_run(run_it: Run) -> None:
    handler, calls = Handler(), []

    @handler.on()
    def leave(change: Change) -> None:
        calls.append(change.event.id)
        handler.stop()

    handler.stop()
    with Service(document(2, *LISTED)) as server:
        with running(run_it, handler, server):
            pass
        assert calls == []
        with running(run_it, handler, server):
            pass
    assert calls == ["Freeze"]


@EITHER
def test_functions_that_run_at_the_stop_are_waited_for_and_their_changes_handled(run_it: Run, tmp_path: Path) -> None:
    handler, begun, may_end, ended = Handler(), threading.Event(), threading.Event(), []

    @handler.on(approve=True)
    def leave(change: Change) -> None:
        begun.set()
        may_end.wait(START_S)
        ended.append(change.event.id)

    with HoldingService(with_etag(*LISTED)) as server, running(run_it, handler, server, tmp_path / "cursor") as thread:
        assert begun.wait(START_S)
        handler.stop()
        thread.join(0.1)
        assert thread.is_alive()
        may_end.set()
        thread.join(STOP_S)
        assert ended == ["Freeze"]
        assert len(server.approvals) == 1
    assert load_cursor(tmp_path / "cursor").unhandled == ()


def test_a_signal_handler_may_stop_a_run_in_the_main_thread() -> None:
    handler = Handler()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: handler.stop())

    def send_signal() -> None:
        if server.is_held.wait(START_S):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    sender = threading.Thread(target=send_signal)
    try:
        with HoldingService(with_etag()) as server:
            sender.start()
            handler.run(Client(server.url))
            sender.join(STOP_S)
            assert not server.is_over.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)


@EITHER
def test_a_run_that_failed_after_a_stop_can_be_run_again(run_it: Run) -> None:
    nameless = json_reply({"error": "Not found"}, status=404)
    handler, calls = Handler(), []
    handler.on()(lambda change: calls.append(change.event.id) or handler.stop())  # type: ignore[func-returns-value]

    class Refusing(Service):
        def next_reply(self, request: HttpRequest) -> ScriptedReply:
            handler.stop()  # while the answer that refuses is on its way
            return nameless

    with Refusing(document(1)) as refusing, suppress(Rejected):  # the refusal may come before the end
        run_it(handler, refusing)
    with Service(document(2, *LISTED)) as server, running(run_it, handler, server):
        pass
    assert calls == ["Freeze"]


def wrong_none() -> None:
    """Takes no argument."""


def wrong_two(change: Change, context: object) -> None:
    """Needs two arguments."""


def wrong_keyword(change: Change, *, vm: str) -> None:
    """Needs a keyword argument."""


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (wrong_none, "wrong_none() -> 'None' cannot be called with one argument, the change: write def wrong_none"),
        (wrong_two, "cannot be called with one argument, the change: write def wrong_two(change)"),
        (wrong_keyword, "cannot be called with one argument, the change: write def wrong_keyword(change)"),
        (7, "7 is not a function: decorate a function that takes one argument, the change"),
    ],
    ids=["no argument", "two arguments", "a keyword", "no function"],
)
@pytest.mark.parametrize("decorator", ["on", "started", "gone"])
def test_a_function_that_cannot_take_a_change_is_rejected_when_it_is_decorated(
    decorator: str, function: object, text: str
) -> None:
    with pytest.raises(Rejected) as error:
        getattr(Handler(), decorator)()(function)
    assert text in str(error.value)


def test_functions_that_can_take_one_argument_are_accepted() -> None:
    class Callback:
        def __call__(self, change: Change) -> None:
            """Takes the change."""

        def method(self, change: Change, extra: int = 0) -> None:
            """Takes the change."""

    handler = Handler()
    for function in (Callback(), Callback().method, print, lambda *arguments: None):
        handler.on()(function)


@pytest.mark.parametrize("decorator", ["on", "started"])
def test_a_decorator_without_its_parentheses_is_rejected(decorator: str) -> None:
    with pytest.raises(Rejected, match=rf"@handler\.{decorator} has no parentheses: write @handler\.{decorator}\(\)"):
        getattr(Handler(), decorator)(wrong_none)


def test_a_kind_that_is_not_a_text_is_rejected() -> None:
    with pytest.raises(Rejected, match="7 is not a kind of event: give kinds as texts, such as 'Reboot'"):
        Handler().on(7)  # type: ignore[arg-type]
