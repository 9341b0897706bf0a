"""The geometry of a timeline: positions of bars, segments and marks."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from forewarn.base.times import timestamp
from forewarn.core.cause import Cause
from forewarn.core.event import Ending, Event, EventState
from forewarn.errors import Rejected
from forewarn.web.portal.states import STATES, StateFamily, state_class
from forewarn.web.portal.timeline_chart import (
    BAND_HEIGHT,
    LEGEND,
    NARROW_AXIS,
    OFFERED_SPANS,
    ROW_HEIGHT,
    EventBar,
    EventRow,
    TimeWindow,
    axis_ticks,
    build_chart,
    event_row,
    parse_instant,
    parse_span,
    window_around,
)
from tests.support.world import NOON

HOUR = TimeWindow(since=timestamp(NOON), until=timestamp(NOON + 3600))


def a_row(event_id: str = "E1", *, title: str = "web", **facts: Any) -> EventRow:
    given: dict[str, Any] = {
        "scope_id": "set:sub/lab/web",
        "request_id": "r1",
        "cause": Cause.USER_RESTART,
        "requested_by": "ann",
        "vms": ("web-0",),
        "published_at": NOON + 600,
        "not_before": NOON + 1500,
    }
    return event_row(Event(id=event_id, **{**given, **facts}), scope_name=title)


def the_bar(row: EventRow, *, window: TimeWindow = HOUR, now: float = NOON + 900) -> EventBar:
    (band,) = build_chart([row], window, now).bands
    (bar,) = band.bars
    return bar


def parts(bar: EventBar) -> dict[str, tuple[float, float]]:
    """Start and end of each segment, in percent."""
    return {part.kind: (round(part.x, 2), round(part.x + part.width, 2)) for part in bar.parts}


def marks(bar: EventBar) -> dict[str, float]:
    return {mark.kind: round(mark.x, 2) for mark in bar.marks}


FINISHED: dict[str, Any] = {"status": EventState.OVER, "ending": Ending.FINISHED}


def test_a_scheduled_event_is_a_bar_of_notice_from_publication_to_not_before() -> None:
    bar = the_bar(a_row())
    assert parts(bar) == {"promised": (16.67, 41.67), "notice": (16.67, 41.67)}
    assert marks(bar) == {"published": 16.67, "not-before": 41.67}


def test_an_approved_event_shows_the_given_notice_within_the_promised_one() -> None:
    row = a_row(approved_at=NOON + 1200, approved_by="web-0", started_at=NOON + 1200, over_at=NOON + 1230, **FINISHED)
    bar = the_bar(row)
    assert parts(bar) == {"promised": (16.67, 41.67), "notice": (16.67, 33.33), "performing": (33.33, 34.17)}
    assert marks(bar) == {
        "published": 16.67,
        "not-before": 41.67,
        "started": 33.33,
        "finished": 34.17,
        "approved": 33.33,
    }
    assert "approved by web-0, 2026-01-05 12:20:00 UTC" in bar.title
    assert row.notice == "15 min of notice promised, 10 min given"
    assert (row.promised_s, row.given_s) == (900, 600)


def test_waiting_and_performing_segments_grow_with_time() -> None:
    waiting = the_bar(a_row(), now=NOON + 1800)
    assert parts(waiting)["waiting"] == (41.67, 50.0)
    assert [part.kind for part in waiting.parts if part.grows] == ["waiting"]

    started = the_bar(a_row(status=EventState.STARTED, started_at=NOON + 1800), now=NOON + 2160)
    assert parts(started) == {
        "promised": (16.67, 41.67),
        "notice": (16.67, 41.67),
        "waiting": (41.67, 50.0),
        "performing": (50.0, 60.0),
    }
    assert [part.kind for part in started.parts if part.grows] == ["performing"]


def test_a_withdrawn_event_ends_where_it_was_withdrawn() -> None:
    bar = the_bar(a_row(status=EventState.OVER, ending=Ending.WITHDRAWN, over_at=NOON + 780))
    assert parts(bar) == {"promised": (16.67, 41.67), "notice": (16.67, 21.67)}
    assert marks(bar)["withdrawn"] == 21.67
    assert bar.row.notice == "15 min of notice promised, withdrawn after 3 min"


def test_an_event_without_notice_has_no_notice_segment() -> None:
    at = NOON + 600
    row = a_row(
        listed=False,
        cause=Cause.POWER_OFF,
        note="none is given",
        not_before=at,
        started_at=at,
        over_at=at + 36,
        **FINISHED,
    )
    assert parts(the_bar(row)) == {"performing": (16.67, 17.67)}
    assert (row.label, row.notice, row.promised_s) == ("Power-off of web-0", "no notice: none is given", None)


def test_bars_much_longer_than_the_window_are_clamped() -> None:
    week = a_row(published_at=NOON - 3 * 86400, not_before=NOON + 4 * 86400)
    bar = the_bar(week)
    assert parts(bar)["notice"] == (-10.0, 110.0)


def test_an_event_that_was_not_needed_is_not_called_withdrawn() -> None:
    bar = the_bar(a_row(status=EventState.OVER, ending=Ending.NOT_NEEDED, over_at=NOON + 780))
    assert bar.row.state == "not needed"
    assert marks(bar)["not-needed"] == 21.67
    assert bar.row.notice == "15 min of notice promised, not needed after 3 min"
    assert "withdrawn" not in bar.title


def test_rows_are_grouped_by_scope_and_standalone_vms_share_a_band() -> None:
    rows = [
        a_row("E3", published_at=NOON + 30),
        a_row("E1", title="VM db-10", scope_id="vm:sub/lab/db-10", vms=("db-10",)),
        a_row("E2", title="VM db-9", scope_id="vm:sub/lab/db-9", vms=("db-9",)),
        a_row("E5", title="VM db-9", scope_id="vm:sub/lab/db-9", vms=("db-9",), published_at=NOON + 10),
        a_row("E4", published_at=NOON + 20),
    ]
    chart = build_chart(rows, HOUR, NOON)
    assert [(band.title, band.y, [(bar.row.id, bar.y) for bar in band.bars]) for band in chart.bands] == [
        ("web", 0, [("E4", BAND_HEIGHT), ("E3", BAND_HEIGHT + ROW_HEIGHT)]),
        (
            "standalone VMs",
            BAND_HEIGHT + 2 * ROW_HEIGHT,
            [(event, 2 * BAND_HEIGHT + row * ROW_HEIGHT) for row, event in enumerate(("E5", "E2", "E1"), 2)],
        ),
    ]
    assert chart.height == 2 * BAND_HEIGHT + 5 * ROW_HEIGHT
    assert chart == build_chart(reversed(rows), HOUR, NOON)


def test_the_line_of_the_current_time_is_at_its_position() -> None:
    assert build_chart([], HOUR, NOON + 900).now_x == 25.0


@pytest.mark.parametrize(
    ("span", "texts"),
    [
        ("5m", ["11:58", "11:59", "12:00", "12:01", "12:02"]),
        ("15m", ["11:54", "11:56", "11:58", "12:00", "12:02", "12:04", "12:06"]),
        ("1h", ["11:30", "11:40", "11:50", "12:00", "12:10", "12:20", "12:30"]),
        ("6h", ["09:00", "10:00", "11:00", "12:00", "13:00", "14:00", "15:00"]),
        ("1d", ["00:00", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "00:00"]),
        ("7d", ["02 Jan", "03 Jan", "04 Jan", "05 Jan", "06 Jan", "07 Jan", "08 Jan", "09 Jan"]),
        ("14d", ["30 Dec", "01 Jan", "03 Jan", "05 Jan", "07 Jan", "09 Jan", "11 Jan"]),
    ],
)
def test_every_span_has_a_handful_of_ticks_at_whole_times(span: str, texts: list[str]) -> None:
    ticks = axis_ticks(window_around(NOON, OFFERED_SPANS[span]))
    assert [tick.text for tick in ticks] == texts
    assert ticks[0].day
    assert all(0 <= tick.x <= 100 for tick in ticks)


@pytest.mark.parametrize("span", OFFERED_SPANS)
def test_the_axis_of_a_phone_has_at_most_four_ticks(span: str) -> None:
    ticks = axis_ticks(window_around(NOON, OFFERED_SPANS[span]), NARROW_AXIS)
    assert 2 <= len(ticks) <= 4
    assert any(tick.day for tick in ticks)


def test_the_axis_shows_the_date_where_it_changes() -> None:
    ticks = axis_ticks(TimeWindow(since=timestamp(NOON + 9 * 3600), until=timestamp(NOON + 15 * 3600)))
    days = [(tick.text, tick.day) for tick in ticks if tick.day]
    assert days == [("21:00", "Mon 05 Jan"), ("00:00", "Tue 06 Jan")]


def test_two_dates_are_never_on_adjacent_ticks() -> None:
    ticks = axis_ticks(TimeWindow(since=timestamp(NOON + 11 * 3600), until=timestamp(NOON + 17 * 3600)))
    assert [(tick.text, tick.day) for tick in ticks][:2] == [("23:00", ""), ("00:00", "Tue 06 Jan")]


@pytest.mark.parametrize(
    "text", ["2026-01-05T12:00:00Z", "2026-01-05T12:00:00", "2026-01-05T13:00:00+01:00", str(NOON)]
)
def test_links_give_instants_in_iso_8601_or_seconds(text: str) -> None:
    assert parse_instant(text) == NOON


@pytest.mark.parametrize("text", ["yesterday", "-1", "nan", "inf", "1e30", "9999-12-31T23:59:59Z"])
def test_an_invalid_instant_is_rejected(text: str) -> None:
    with pytest.raises(Rejected, match="write it like 2026-01-05T12:00:00Z"):
        parse_instant(text)


@pytest.mark.parametrize("text", ["59s", "32d", "0"])
def test_a_span_out_of_bounds_is_rejected(text: str) -> None:
    with pytest.raises(Rejected, match="give between 1m and 31d"):
        parse_span(text)


def test_every_state_and_segment_has_a_symbol_and_a_style() -> None:
    """Colour is never the only difference."""
    legend = {what for what, _ in LEGEND}
    assert {state_class(state) for state in STATES[StateFamily.EVENT]} - {"scheduled"} < legend
    template, looks = _text("templates", "timeline-chart.html"), _text("static", "timeline-chart.css")
    for what in legend - {"notice", "waiting", "performing", "now"}:
        assert f'id="mark-{what}"' in template
    for what in ("notice", "waiting", "performing", "promised", "now"):
        assert f".drawing .{what}" in looks


def test_labels_have_the_height_of_their_rows() -> None:
    looks = _text("static", "timeline.css")
    heights = dict(re.findall(r"\.labels \.(band|event-row) { height: (\d+)px", looks))
    assert heights == {"band": str(BAND_HEIGHT), "event-row": str(ROW_HEIGHT)}


def _text(folder: str, name: str) -> str:
    return files("forewarn.web.portal").joinpath(folder, name).read_text("utf-8")
