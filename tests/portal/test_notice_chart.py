"""The charts of notice promised and given."""

from __future__ import annotations

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Event, EventState
from forewarn.web.portal.notice_chart import CHART_SPANS, PLOT_HEIGHT, notice_chart
from forewarn.web.portal.notice_history import NoticeHistory, NoticeSample, notice_sample
from tests.support.world import NOON


def an_event(**facts: object) -> Event:
    defaults: dict[str, object] = {
        "id": "E",
        "scope_id": "vm:sub/lab/db",
        "request_id": "r",
        "cause": Cause.USER_RESTART,
        "requested_by": "ann",
        "vms": ("db",),
        "published_at": NOON,
        "not_before": NOON + 900,
        "status": EventState.STARTED,
        "started_at": NOON + 900,
    }
    return Event(**{**defaults, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, (900, 900, "due")),
        ({"started_at": NOON + 60, "approved_at": NOON + 60}, (900, 60, "approved")),
        ({"started_at": NOON}, (None, 0, "without_notice")),
        ({"started_at": NOON + 60}, (900, 60, "early")),
    ],
    ids=["due", "approved", "without notice", "early"],
)
def test_the_notice_of_an_event_has_a_reason(facts: dict[str, object], expected: tuple[object, ...]) -> None:
    sample = notice_sample(an_event(**facts))
    assert sample is not None
    assert (sample.promised_s, sample.given_s, sample.reason) == expected


@pytest.mark.parametrize(
    "facts",
    [{"started_at": None, "status": EventState.SCHEDULED}, {"listed": False}, {"cause": Cause.POWER_OFF}],
    ids=["scheduled", "unlisted", "without a kind"],
)
def test_only_listed_events_that_started_have_notice(facts: dict[str, object]) -> None:
    assert notice_sample(an_event(**facts)) is None


def history_of(*samples: tuple[float, float | None, float, str], scope: str = "vm:sub/lab/db") -> NoticeHistory:
    history = NoticeHistory()
    for at, promised, given, reason in samples:
        history.add(NoticeSample(scope, at, promised, given, reason))
    return history


def test_the_columns_hold_averages_and_counts_by_reason() -> None:
    history = history_of(
        (NOON + 10, 900, 900, "due"), (NOON + 20, 900, 100, "approved"), (NOON + 400, None, 0, "without_notice")
    )
    chart = notice_chart(history, NOON + 600, "1h", None)
    first, second = chart.columns
    assert (first.since, first.events, first.promised_s, first.given_s, first.shortest_s) == (NOON, 2, 900, 500, 100)
    assert (second.events, second.promised_s, second.reasons["without_notice"]) == (1, None, 1)
    assert chart.summary == (
        "3 events started: 1 after an approval, 1 at the end of the notice, 1 without notice. "
        "On average 15 min of notice was promised and 8 min 20 s given."
    )


@pytest.mark.parametrize(
    ("ago_s", "span"), [(600, "1h"), (5 * 3600, "6h"), (20 * 3600, "1d"), (3 * 86_400, "7d"), (8 * 86_400, "1h")]
)
def test_without_a_choice_the_charts_show_every_start_of_the_last_week(ago_s: float, span: str) -> None:
    assert notice_chart(history_of((NOON - ago_s, 900, 900, "due")), NOON, "", None).span == span


def test_a_user_is_shown_the_notice_of_visible_scopes_only() -> None:
    history = history_of((NOON, 900, 900, "due"), (NOON + 1, 900, 0, "approved"))
    history.add(NoticeSample("vm:sub/lab/web", NOON, 900, 30, "approved"))
    assert notice_chart(history, NOON, "1h", None).events == 3
    assert notice_chart(history, NOON, "1h", lambda scope: scope == "vm:sub/lab/web").events == 1
    hidden = notice_chart(history, NOON, "", lambda scope: False)
    assert (hidden.columns, hidden.summary) == ((), "No event started in this time.")


def test_old_sums_are_dropped() -> None:
    history = history_of((NOON - 30 * 86_400, 900, 900, "due"), (NOON, 900, 900, "due"))
    assert history.first_start(0, None) == NOON


def test_the_charts_begin_when_every_start_is_known() -> None:
    history = NoticeHistory(complete_since=NOON - 7_000)
    for ago_s in (7_100, 6_000, 60):
        history.add(NoticeSample("vm:sub/lab/db", NOON - ago_s, 900, 900, "due"))
    chart = notice_chart(history, NOON, "7d", None)
    assert (chart.complete_since, chart.since, chart.until) == (NOON - 6_900, NOON - 21_600, NOON + 21_600)
    assert (chart.events, chart.has_day_ticks) == (2, False)
    assert [tick.text for tick in chart.ticks]
    hour = notice_chart(history, NOON, "1h", None)
    assert (hour.complete_since, hour.since, hour.events) == (None, NOON - 3_300, 1)


@pytest.mark.parametrize("span", CHART_SPANS)
def test_the_charts_have_a_column_even_if_no_start_is_known(span: str) -> None:
    chart = notice_chart(NoticeHistory(complete_since=NOON + 1), NOON + 2, span, None)
    assert chart.until - chart.since == CHART_SPANS[span][1]
    assert chart.summary == "No event started in this time."


def test_a_restricted_user_is_shown_starts_since_the_first_one_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.web.portal.notice_history._MAX_SAMPLES", 2)
    history = history_of(*((NOON + at, 900, 900, "due") for at in (0, 310, 700)))
    chart = notice_chart(history, NOON + 900, "1h", lambda scope: True)
    assert (chart.events, chart.complete_since, chart.since) == (1, NOON + 600, NOON + 600)
    assert notice_chart(history, NOON + 900, "7d", lambda scope: True).events == 1
    assert notice_chart(history, NOON + 900, "1h", None).complete_since is None


def test_the_charts_stay_within_their_height() -> None:
    samples = [(NOON + n * 60, 10.0**n, 10.0 ** (n / 2), "approved") for n in range(6)]
    chart = notice_chart(history_of(*samples), NOON + 600, "1h", None)
    heights = [y for mark in chart.marks() for y in (mark.promised_y, mark.given_y) if y is not None]
    heights += [line.y for line in (*chart.notice_lines(), *chart.count_lines())]
    assert all(0 <= y <= PLOT_HEIGHT for y in heights)
    assert all(y >= 0 and y + height <= PLOT_HEIGHT + 0.01 for mark in chart.marks() for _, y, height in mark.stack)
    assert all(mark.x >= 0 and mark.x + mark.width <= 100 for mark in chart.marks())


def test_longer_notice_is_drawn_higher() -> None:
    chart = notice_chart(history_of((NOON, 900, 30, "approved")), NOON, "1h", None)
    (mark,) = chart.marks()
    assert mark.promised_y is not None
    assert mark.given_y is not None
    assert mark.promised_y < mark.given_y


@pytest.mark.parametrize("promised", [5, 30, 900, 901, 7 * 86_400, 30 * 86_400])
def test_the_scale_of_notice_begins_at_0(promised: float) -> None:
    chart = notice_chart(history_of((NOON, promised, promised / 2, "approved"), (NOON, 60, 0, "due")), NOON, "1h", None)
    lines = chart.notice_lines()
    assert (lines[0].text, lines[0].y) == ("0", PLOT_HEIGHT)
    assert 2 <= len(lines) <= 6
    assert [line.y for line in lines] == sorted((line.y for line in lines), reverse=True)
