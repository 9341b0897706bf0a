"""Virtual time: it moves only when a test advances it, and everything due has happened by then."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from forewarn.errors import Rejected
from forewarn.lab import Lab


def test_the_date_header_follows_lab_time_exactly(guest: Any) -> None:
    """Spec §12."""
    with Lab(["a"]) as lab:
        for span, seconds in (("15m", 900), (0.0, 0), ("7d", 604_800), (90, 90), (timedelta(hours=1), 3600)):
            before = lab.now
            if span:
                lab.advance(span)
            assert lab.now - before == timedelta(seconds=seconds)
            assert guest(lab.vm("a")).poll().date == lab.now.timestamp()


def test_advancing_a_week_takes_less_than_a_second_and_returns_what_happened() -> None:
    with Lab(["a"]) as lab:
        (event,) = lab.degrade("host-0", in_="7d")
        began = time.process_time()  # what other programs take does not count
        lines = lab.advance("8d")
        assert time.process_time() - began < 1
        assert event.notice_given == timedelta(days=7)
        assert lines == (
            "+7d 0:00:00  started    Redeploy of a started: its notice ended",
            "+7d 0:02:00  performed  redeploy of a performed: redeploy took 2 min, now on 'host-1'",
            "+7d 0:02:00  finished   Redeploy of a finished",
        )


def test_run_until_stops_as_soon_as_the_condition_holds() -> None:
    with Lab(["a"]) as lab:
        began, event = lab.now, lab.reboot("a")
        assert lab.run_until(lambda: event.started) is True
        assert lab.now - began == timedelta(minutes=15)
        assert lab.run_until(lambda: event.finished and event) is event
        assert lab.now - began == timedelta(minutes=15, seconds=30)


def test_run_until_fails_with_the_report_after_its_limit() -> None:
    with Lab(["a"]) as lab:
        began, event = lab.now, lab.reboot("a")
        with pytest.raises(AssertionError, match="within 10m of lab time") as caught:
            lab.run_until(lambda: event.started, within="10m")
        assert "Reboot of a scheduled" in str(caught.value)
        assert lab.now - began == timedelta(minutes=10)
        with pytest.raises(AssertionError, match="within 1s of lab time"):
            lab.run_until(lambda: False, within="1s")


def test_wait_for_waits_in_real_time_while_lab_time_stands_still(guest: Any) -> None:
    with Lab(["a"]) as lab:
        event, vm, before = lab.reboot("a"), guest(lab.vm("a")), lab.now
        handler = threading.Thread(target=lambda: vm.approve(vm.events()[0]["EventId"]))
        handler.start()
        lab.wait_for(lambda: event.approved)
        handler.join()
        assert lab.now == before
        with pytest.raises(AssertionError, match=r"within 0\.05 of real time:\n(?s:.*)Reboot of a started: approved"):
            lab.wait_for(lambda: event.withdrawn, within=0.05)


@pytest.mark.parametrize("span", [0, -1, "0s", "400d"])
def test_advance_takes_more_than_zero_and_at_most_a_year(span: Any) -> None:
    with Lab(["a"]) as lab, pytest.raises(Rejected, match="up to 366 days at a time"):
        lab.advance(span)
