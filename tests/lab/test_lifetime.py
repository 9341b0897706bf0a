"""A lab opens quickly, several may be open at once, and a closed lab leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.errors import Refused, Unavailable
from forewarn.lab import Lab
from forewarn.lab.lab import LoopThread

FILES = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")


def open_files() -> int:
    return len(os.listdir(FILES))


def labs_alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "forewarn lab"]


def test_two_hundred_labs_leave_nothing_behind(guest: Any) -> None:
    with Lab(["a", "b"]):
        pass  # imports and one-time setup are done
    before = open_files()
    for _ in range(200):
        with Lab(["a", "b"]) as lab:
            event = lab.reboot("a")
            guest(lab.vm("a")).approve(event.id)
            lab.advance("1m")
            assert event.finished
    assert open_files() == before
    assert labs_alive() == []


def test_a_lab_is_open_in_less_than_a_tenth_of_a_second() -> None:
    took = []
    for _ in range(5):
        began = time.process_time()  # what other programs take does not count
        with Lab(["a", "b", "c"]):
            took.append(time.process_time() - began)
    assert min(took) < 0.1, took


def test_two_open_labs_are_independent(guest: Any) -> None:
    with Lab(["a"]) as one, Lab(["a"]) as other:
        event = one.reboot("a")
        one.advance("1h")
        assert event.finished
        assert other.events == ()
        assert one.now > other.now
        assert event != other.reboot("a")
        assert event in one.events
        assert len({event, *one.events}) == 1
        assert guest(other.vm("a")).events() != guest(one.vm("a")).events() == []


def test_closing_a_lab_closes_its_open_connections() -> None:
    """A long poll, a half-sent request, an idle connection, and a slow response body."""
    before = open_files()
    lab = Lab(["a"]).open()
    where = urlsplit(lab.vm("a").endpoint)
    assert where.hostname is not None
    address = (where.hostname, where.port)
    poll = "GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
    callers = [socket.create_connection(address, timeout=60) for _ in range(4)]
    callers[0].sendall(f"{poll}\r\n".encode())
    tag = next(line for line in callers[0].recv(4096).decode().split("\r\n") if line.lower().startswith("etag"))
    callers[0].sendall(f"{poll}Prefer: wait=100\r\nIf-None-Match:{tag.partition(':')[2]}\r\n\r\n".encode())
    callers[1].sendall(poll.encode())
    lab.fault("slow-body", vm="a", take="60s")
    callers[3].sendall(f"{poll}\r\n".encode())
    began = time.monotonic()
    lab.close()
    assert time.monotonic() - began < 50  # less than any of them takes
    for caller in callers:
        caller.close()
    assert open_files() == before
    assert labs_alive() == []


def test_a_failing_test_leaves_nothing_behind_and_its_error_has_the_report() -> None:
    before = open_files()

    def fail() -> None:
        with Lab(["a"]) as lab:
            lab.reboot("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    (note,) = caught.value.__notes__
    assert note.startswith("what happened in the lab:\n+0:00:00")
    assert "Reboot of a scheduled" in note
    assert (open_files(), labs_alive()) == (before, [])


def test_a_closed_lab_can_still_be_read() -> None:
    with Lab(["a"]) as lab:
        event, vm = lab.reboot("a"), lab.vm("a")
        lab.advance("1h")
    lab.close()
    assert event.finished
    assert (vm.reboots, vm.power) == (1, "running")
    assert "finished" in repr(event)
    assert "Reboot of a finished" in lab.history[-1]
    assert lab.explain("a").startswith("a, a scope of its own")
    assert repr(lab) == "<lab of a, not open>"
    with pytest.raises(Refused, match="the lab is closed: use it inside its `with` block"):
        lab.advance("1m")
    with pytest.raises(Refused, match="cannot be reopened: create another"):
        lab.open()


def test_a_lab_that_is_not_open_refuses_calls() -> None:
    with pytest.raises(Refused, match="the lab is not open: use it in a `with` block, or call open"):
        Lab(["a"]).reboot("a")
    Lab(["a"]).close()


def test_a_lab_may_be_called_from_many_threads_at_once() -> None:
    names = [f"vm-{number}" for number in range(16)]
    with Lab(names) as lab:
        threads = [threading.Thread(target=lab.reboot, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lab.advance("1h")
        assert sorted(event.vms[0] for event in lab.events if event.finished) == sorted(names)


def test_a_call_to_a_lab_that_closes_meanwhile_is_refused() -> None:
    with Lab(["a"]) as lab:
        began, errors = lab.now, list[BaseException]()

        def wait() -> None:
            try:
                lab.wait_for(lambda: lab.advance("1s") and False)
            except Refused as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        lab.wait_for(lambda: lab.now > began)
    waiter.join(60)
    assert len(errors) == 1
    assert "closed" in str(errors[0])


def test_a_service_that_cannot_be_opened_leaves_no_thread() -> None:
    def broken() -> Any:
        raise OSError("no room")

    thread: LoopThread[None] = LoopThread(broken)
    with pytest.raises(OSError, match="no room"):
        thread.open()
    assert labs_alive() == []


def test_a_lab_that_does_not_stop_in_time_is_an_error_when_it_is_closed() -> None:
    may_stop = threading.Event()

    @asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(may_stop.wait)

    thread: LoopThread[None] = LoopThread(stubborn)
    thread.open()
    try:
        with pytest.raises(Unavailable, match=r"the lab did not stop within 0\.01 s and is still running: "):
            thread.close(timeout_s=0.01)
    finally:
        may_stop.set()
    thread.close()
    assert labs_alive() == []
