"""Handler functions: which are called, when again, and when a change counts as handled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.client import AsyncClient, Change, Client, Gone, Handler, Kind, Started
from forewarn.client.cursor import WatchCursor, load_cursor, save_cursor
from forewarn.errors import ForewarnError, Rejected
from forewarn.protocol.http_message import HttpRequest
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

WAIT_S = 60.0


class Service(ScriptedServer):
    """Answers requests for the name and approvals itself, and polls with the current document."""

    def __init__(
        self, *documents: ScriptedReply, name: ScriptedReply | None = None, approval: ScriptedReply | None = None
    ) -> None:
        super().__init__(*documents)
        self.current = 0
        self.name_failures = 0  # how many requests for the name still fail
        self.documents = documents
        self.approvals: list[bytes] = []
        self._name, self._approval = name or ScriptedReply(body=b"web-0"), approval or ScriptedReply()

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        if "/instance/" in request.target and self.name_failures:
            self.name_failures -= 1
            return ScriptedReply(status=500)
        if "/instance/" in request.target:
            return self._name
        if request.method == "POST":
            self.approvals.append(request.body)
            return self._approval
        return self.documents[self.current]


def document(incarnation: int, *words: str) -> ScriptedReply:
    """`Freeze`, `Freeze*` (started), `Freeze of web-1`: the kinds are also the ids."""
    events = []
    for word in words:
        kind, _, vm = word.partition(" of ")
        status = "Started" if "*" in kind else "Scheduled"
        event_id, kind = word.replace("*", ""), kind.strip("*")
        events.append({"EventId": event_id, "EventStatus": status, "EventType": kind, "Resources": [vm or "WEB-0"]})
    return json_reply({"DocumentIncarnation": incarnation, "Events": events})


def run(handler: Handler, server: ScriptedServer, cursor: Path | None = None) -> None:
    def sleep(s: float) -> None:
        threading.Event().wait(min(s, 0.01))

    handler.run(Client(server.url, sleep=sleep), cursor)


def arun(handler: Handler, server: ScriptedServer, cursor: Path | None = None) -> None:
    async def run_with_timeout() -> None:
        await asyncio.wait_for(handler.arun(AsyncClient(server.url, sleep=_short_sleep), cursor), WAIT_S)

    asyncio.run(run_with_timeout())


async def _short_sleep(s: float) -> None:
    await asyncio.sleep(min(s, 0.01))


Run = Callable[..., None]
EITHER = pytest.mark.parametrize("run_it", [run, arun], ids=["threads", "tasks"])


@EITHER
def test_functions_are_called_for_their_kinds_and_only_for_this_vm(run_it: Run) -> None:
    """Spec §7.2: a neighbour's event is ignored."""
    handler, calls = Handler(), []

    @handler.on(Kind.PREEMPT, "teleport")
    def leave(change: Change) -> None:
        calls.append(change.event.id)
        if len(calls) == 2:
            handler.stop()

    with Service(document(5, "Freeze", "Preempt of web-1", "Teleport", "Preempt")) as server:
        run_it(handler, server)
    assert sorted(calls) == ["Preempt", "Teleport"]


@EITHER
def test_functions_that_block_keep_no_other_event_waiting(run_it: Run) -> None:
    """There are more of them than the default executor of asyncio has threads."""
    count = (os.cpu_count() or 1) + 5
    handler, together = Handler(), threading.Barrier(count)

    @handler.on()
    def leave(change: Change) -> None:
        together.wait(WAIT_S / 2)
        handler.stop()

    with Service(document(5, *(f"Kind{number}" for number in range(count)))) as server:
        run_it(handler, server)
    assert not together.broken


@EITHER
def test_all_changes_of_an_event_reach_its_functions_in_order(run_it: Run) -> None:
    handler, calls = Handler(), []

    @handler.on()
    def leave(change: Change) -> None:
        calls.append("on")
        server.current = 1

    @handler.started(Kind.FREEZE)
    def note(change: Change) -> None:
        calls.append("started")
        server.current = 2

    @handler.gone
    def back(change: Gone) -> None:
        calls.append(change.outcome.value)
        handler.stop()

    with Service(document(2, "Freeze"), document(3, "Freeze*"), document(4)) as server:
        run_it(handler, server)
    assert calls == ["on", "started", "finished"]


@EITHER
def test_a_function_that_still_fails_when_the_event_is_gone_is_not_retried(run_it: Run, tmp_path: Path) -> None:
    handler, calls = Handler(retry_s=(0.01,)), []

    @handler.on()
    def leave(change: Change) -> None:
        calls.append("on")
        server.current = 1
        raise OSError("no")

    @handler.gone(Kind.FREEZE)
    def back(change: Gone) -> None:
        calls.append(change.outcome.value)
        handler.stop()

    with Service(document(2, "Freeze"), document(3)) as server:
        run_it(handler, server, tmp_path / "cursor")
    assert set(calls[:-1]) == {"on"}
    assert calls[-1] == "withdrawn"
    assert load_cursor(tmp_path / "cursor").unhandled == ()


@EITHER
def test_an_event_that_starts_without_notice_calls_the_on_function(run_it: Run) -> None:
    """Spec §11: Started with no Scheduled before."""
    handler, calls = Handler(), []

    @handler.on(approve=True)
    def leave(change: Change) -> None:
        calls.append(change)
        handler.stop()

    with Service(document(2, "Redeploy*")) as server:
        run_it(handler, server)
    (change,) = calls
    assert isinstance(change, Started)
    assert server.approvals == [], "there is nothing left to approve"


@EITHER
def test_an_event_is_approved_when_its_function_has_returned(run_it: Run) -> None:
    """Spec §5."""
    handler, approved_before = Handler(), []

    @handler.on(approve=True)
    def leave(change: Change) -> None:
        approved_before.append(len(server.approvals))
        handler.stop()

    with Service(document(2, "Freeze")) as server:
        run_it(handler, server)
    assert approved_before == [0]
    assert server.approvals == [b'{"StartRequests": [{"EventId": "Freeze"}]}']


@EITHER
def test_a_rebalance_recommendation_calls_the_function_and_is_not_approved(run_it: Run) -> None:
    """Spec §14.4: it has no impact, so there is nothing to approve."""
    handler, calls = Handler(), []

    @handler.on(approve=True)
    def move_work(change: Change) -> None:
        calls.append(change.event.kind)
        handler.stop()

    with Service(document(2, "SpotRebalanceRecommendation")) as server:
        run_it(handler, server)
    assert (calls, server.approvals) == (["SpotRebalanceRecommendation"], [])


@EITHER
def test_a_function_that_raises_is_called_again_and_others_continue(
    run_it: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler, calls = Handler(retry_s=(0.01,)), []

    @handler.on(Kind.FREEZE, approve=True)
    def fail_twice(change: Change) -> None:
        calls.append("fail")
        if calls.count("fail") < 3:
            raise OSError("disk full")
        handler.stop()

    @handler.on()
    def note(change: Change) -> None:
        calls.append(change.event.id)

    with Service(document(3, "Freeze", "Reboot")) as server:
        run_it(handler, server, tmp_path / "cursor")
    assert sorted(calls) == ["Freeze", "Reboot", "fail", "fail", "fail"]
    assert len(server.approvals) == 1, "not before it has returned"
    messages = [record.getMessage() for record in caplog.records if record.exc_info]
    assert messages == ["fail_twice failed for Freeze Freeze: disk full"] * 2


@EITHER
def test_only_changes_that_were_not_handled_come_again_the_next_time(run_it: Run, tmp_path: Path) -> None:
    calls: list[str] = []

    def handler_that(fails: bool) -> Handler:
        handler = Handler(retry_s=(0.01,))

        @handler.on()
        def function(change: Change) -> None:
            calls.append(change.event.id)
            if change.event.id == "Freeze":
                if fails and calls.count("Freeze") < 4:
                    raise OSError("no")
                handler.stop()
                if fails:
                    raise OSError("no")

        return handler

    with Service(document(3, "Reboot", "Freeze")) as server:
        run_it(handler_that(fails=True), server, tmp_path / "cursor")
        assert calls.count("Reboot") == 1
        calls.clear()
        run_it(handler_that(fails=False), server, tmp_path / "cursor")
    assert calls == ["Freeze"]


@EITHER
def test_the_cursor_is_not_written_once_for_each_event_of_another_vm(
    run_it: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with thousands of events takes long to write: the own event would wait for as many writes."""
    writes: list[int] = []

    def count_writes(path: Path, cursor: WatchCursor) -> None:
        writes.append(len(cursor.unhandled))
        save_cursor(path, cursor)

    monkeypatch.setattr("forewarn.client.watch.save_cursor", count_writes)
    handler = Handler()

    @handler.on(Kind.REBOOT)
    def leave(change: Change) -> None:
        handler.stop()

    others = [f"Freeze of other-{number}" for number in range(200)]
    with Service(document(1), document(300, *others, "Reboot")) as server:
        server.current = 1
        run_it(handler, server, tmp_path / "cursor")
    assert len(writes) < 10
    assert load_cursor(tmp_path / "cursor").unhandled == ()


@EITHER
def test_a_long_function_does_not_keep_another_event_waiting(run_it: Run) -> None:
    """Spec §6.3: a Preempt gives 30 s, while a drain for another event takes longer."""
    handler, preempted = Handler(), threading.Event()
    waited: list[bool] = []

    @handler.on(Kind.REBOOT)
    def drain(change: Change) -> None:
        server.current = 1
        waited.append(preempted.wait(WAIT_S))
        handler.stop()

    @handler.on(Kind.PREEMPT)
    def leave(change: Change) -> None:
        preempted.set()

    with Service(document(2, "Reboot"), document(3, "Reboot", "Preempt")) as server:
        run_it(handler, server)
    assert waited == [True]


@EITHER
def test_a_failed_request_for_the_name_is_retried(run_it: Run) -> None:
    handler = Handler(retry_s=(0.01,))
    handler.on()(lambda change: handler.stop())
    with Service(document(2, "Freeze")) as server:
        server.name_failures = 12  # more than one request retries
        run_it(handler, server)
    assert server.name_failures == 0


@EITHER
def test_an_endpoint_without_a_name_is_rejected_unless_neighbours_count_too(run_it: Run) -> None:
    nameless = json_reply({"error": "Not found"}, status=404)
    handler = Handler()
    handler.on()(lambda change: handler.stop())
    with (
        Service(document(2, "Freeze of web-1"), name=nameless) as server,
        pytest.raises(ForewarnError, match="Not found"),
    ):
        run_it(handler, server)
    handler = Handler(neighbours=True)
    handler.on()(lambda change: handler.stop())
    with Service(document(2, "Freeze of web-1"), name=nameless) as server:
        run_it(handler, server)


def test_a_rejected_approval_is_logged_and_not_repeated(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Spec §5.2: an id that was never an event of this scope."""
    handler = Handler()
    handler.on(approve=True)(lambda change: handler.stop())
    refusal = json_reply({"error": "Bad request. Unknown EventId: Freeze"}, status=400)
    with Service(document(2, "Freeze"), approval=refusal) as server:
        run(handler, server)
    assert len(server.approvals) == 1
    assert any("the approval after <lambda> failed for Freeze" in record.getMessage() for record in caplog.records)


def test_async_functions_are_awaited() -> None:
    handler, calls = Handler(), []

    @handler.on()
    async def leave(change: Change) -> None:
        await asyncio.sleep(0)
        calls.append(change.event.id)
        handler.stop()

    with Service(document(2, "Freeze")) as server:
        arun(handler, server)
    assert calls == ["Freeze"]


def test_async_functions_are_rejected_by_the_blocking_run() -> None:
    handler = Handler()

    @handler.on()
    async def leave(change: Change) -> None:
        """Never called."""

    with pytest.raises(Rejected, match=r"^leave is an async function: use `await handler\.arun\(AsyncClient\(\)\)`$"):
        handler.run(Client("127.0.0.1:1"))


def test_sys_exit_in_a_function_ends_the_program() -> None:
    handler = Handler()

    @handler.on()
    def leave(change: Change) -> None:
        raise SystemExit(3)

    with Service(document(2, "Freeze")) as server, pytest.raises(SystemExit, match="3"):
        run(handler, server)
