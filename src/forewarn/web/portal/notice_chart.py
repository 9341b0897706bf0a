"""The charts of notice promised and given, and of why events started, for the overview page; no HTML.

All times are lab time. x is a percentage of the width, y is in pixels.
"""

from __future__ import annotations

import math

from forewarn.base.duration import duration_text
from forewarn.base.times import Timestamp, timestamp
from forewarn.web.portal.notice_history import KEPT_S, START_REASONS, NoticeHistory, NoticeTotals, ScopeFilter
from forewarn.web.portal.timeline_chart import AxisTick, TimeWindow, axis_ticks
from forewarn.web.views import BaseView

# The text of each reason in the legend, in the order in which the bars are stacked.
REASON_TEXTS = {
    "approved": "approved",
    "due": "notice ended",
    "without_notice": "without notice",
    "early": "too early (a defect)",
}
# The spans that the page offers, with the length of one column, in seconds.
CHART_SPANS = {"1h": (3_600, 300), "6h": (21_600, 900), "1d": (86_400, 3_600), "7d": (604_800, 21_600)}


class NoticeColumn(BaseView, frozen=True, kw_only=True):
    """One column of the notice charts: the events that started in a stretch of time.

    The reasons of a start are approved, due (the notice ended), without_notice and early. Averages are over events with
    notice.
    """

    since: Timestamp  # when the stretch begins
    events: int  # how many started
    reasons: dict[str, int]  # events by reason of their start; every reason is a key
    promised_s: float | None  # from publication to NotBefore, on average; None: no event had notice
    given_s: float | None  # from publication to the start, on average; None: likewise
    shortest_s: float | None  # the shortest notice that was given; None: likewise


class ScaleLine(BaseView, frozen=True, kw_only=True):
    """A horizontal line of a notice chart, with the duration or number that it stands for."""

    y: float  # pixels from the top
    text: str  # a duration or a number


class ColumnMarks(BaseView, frozen=True, kw_only=True):
    """What the notice charts draw for one column, with positions and the text of its tooltip."""

    x: float  # of its left edge, percent of the width
    width: float  # percent of the width
    centre: float  # x of its middle, percent of the width
    promised_y: float | None  # of the mean notice promised; None: no event had notice
    given_y: float | None  # likewise, of the mean notice given
    stack: tuple[tuple[str, float, float], ...]  # reason, y and height of each part of its bar, from the bottom
    title: str  # of its tooltip


PLOT_HEIGHT = 120  # in pixels, of each chart
_TOP = 10.0
_LEFT_PERCENT, _RIGHT_PERCENT = 11.0, 1.0  # beside the columns; the texts of the lines are on the left
_GAP = 0.2  # between two bars, as a share of a column
_SCALE_STEPS_S = (1, 10, 60, 300, 900, 3_600, 21_600, 86_400, 604_800)
_SCALE_TOLERANCE = 1.05  # a notice of 901 s does not need a line at an hour
_LINE_GAP = 18  # pixels, at least, between two lines


class NoticeChart(BaseView, frozen=True, kw_only=True):
    """Two charts over time: notice promised and given, and why events started. Field names are JSON keys."""

    span: str  # a key of CHART_SPANS: 1h, 6h, 1d or 7d
    since: Timestamp  # later than the span begins if earlier starts are not known
    until: Timestamp  # the end of the last column, in which the current time is
    complete_since: Timestamp | None  # starts before it are not counted; None: all of the span are
    columns: tuple[NoticeColumn, ...]  # those with events, in order of time

    @property
    def events(self) -> int:
        """How many events started in the time that the charts show."""
        return sum(column.events for column in self.columns)

    @property
    def spans(self) -> tuple[str, ...]:
        """The spans of time that the page offers for the charts, such as `6h`, the shortest first."""
        return tuple(CHART_SPANS)

    @property
    def reasons(self) -> dict[str, str]:
        """The legend: the text of each reason for which events start, by the name of the reason."""
        return {
            name: text
            for name, text in REASON_TEXTS.items()
            if name in ("approved", "due") or any(column.reasons[name] for column in self.columns)
        }

    @property
    def summary(self) -> str:
        """How many events started and why, and the mean notice promised and given, in sentences."""
        if not self.columns:
            return "No event started in this time."
        by_reason = {name: sum(column.reasons[name] for column in self.columns) for name in START_REASONS}
        phrases = {
            "approved": "after an approval",
            "due": "at the end of the notice",
            "without_notice": "without notice",
            "early": "early",
        }
        parts = ", ".join(f"{count} {phrases[name]}" for name, count in by_reason.items() if count)
        started = f"{self.events} {'event' if self.events == 1 else 'events'} started: {parts}."
        noticed = self.events - by_reason["without_notice"]
        if not noticed:
            return started
        weights = [(c.events - c.reasons["without_notice"], c) for c in self.columns]
        promised = sum(weight * (column.promised_s or 0) for weight, column in weights) / noticed
        given = sum(weight * (column.given_s or 0) for weight, column in weights) / noticed
        return (
            f"{started} On average {duration_text(promised)} of notice was promised and {duration_text(given)} given."
        )

    @property
    def ticks(self) -> tuple[AxisTick, ...]:
        """The ticks of the time axis, in order of time; their x is a percentage of the width of all columns."""
        return axis_ticks(self._window)

    @property
    def has_day_ticks(self) -> bool:
        """Whether the charts show more than two days: the page then labels ticks by day, else by time of day."""
        return self.until - self.since > 2 * 86_400

    @property
    def _window(self) -> TimeWindow:
        return TimeWindow(since=self.since, until=self.until)

    def plot_x(self, percent: float) -> float:
        """Return an x position in percent of the chart's width."""
        return _LEFT_PERCENT + percent * (100 - _LEFT_PERCENT - _RIGHT_PERCENT) / 100

    @property
    def height(self) -> int:
        """The height of each chart in pixels, without its time axis."""
        return PLOT_HEIGHT

    def notice_lines(self) -> tuple[ScaleLine, ...]:
        """Return the lines of the chart of notice from 0 upwards, far enough apart for their texts."""
        lines: list[ScaleLine] = []
        for step in reversed([step for step in _SCALE_STEPS_S if step <= self._longest_notice()]):
            y = self._notice_y(step)
            if (not lines or lines[-1].y + _LINE_GAP <= y) and y <= PLOT_HEIGHT - _LINE_GAP:
                lines.append(ScaleLine(y=y, text=duration_text(step)))
        return (ScaleLine(y=self._notice_y(0), text="0"), *reversed(lines))

    def count_lines(self) -> tuple[ScaleLine, ...]:
        """Return the lines of the chart of starts, in this order: at 0, at about half and at the highest bar."""
        top = self._highest_count()
        values = sorted({0, top // 2, top} if top > 2 else {0, top})
        return tuple(ScaleLine(y=self._count_y(value), text=str(value)) for value in values)

    def marks(self) -> tuple[ColumnMarks, ...]:
        """Return what the charts draw for each of `columns`, in the same order."""
        return tuple(map(self._column_marks, self.columns))

    def _column_marks(self, column: NoticeColumn) -> ColumnMarks:
        column_s = CHART_SPANS[self.span][1]
        left = self.plot_x(self._window.percent_at(column.since))
        right = self.plot_x(self._window.percent_at(column.since + column_s))
        width = right - left
        stack, below = [], 0
        for reason in START_REASONS:
            if count := column.reasons[reason]:
                top = self._count_y(below + count)
                stack.append((reason, top, self._count_y(below) - top))
                below += count
        return ColumnMarks(
            x=left + width * _GAP / 2,
            width=width * (1 - _GAP),
            centre=(left + right) / 2,
            promised_y=None if column.promised_s is None else self._notice_y(column.promised_s),
            given_y=None if column.given_s is None else self._notice_y(column.given_s),
            stack=tuple(stack),
            title=_column_title(column),
        )

    def _longest_notice(self) -> float:
        values = [value for c in self.columns for value in (c.promised_s, c.given_s) if value is not None]
        high = max(values, default=900)
        return max(high, min((step for step in _SCALE_STEPS_S if step * _SCALE_TOLERANCE >= high), default=high))

    def _notice_y(self, seconds: float) -> float:
        # Logarithmic, so that minutes stay visible beside days; about linear below a minute, so that it reaches 0.
        share = math.log1p(seconds / 60) / math.log1p(self._longest_notice() / 60)
        return _TOP + (PLOT_HEIGHT - _TOP) * (1 - share)

    def _count_y(self, count: int) -> float:
        return _TOP + (PLOT_HEIGHT - _TOP) * (1 - count / self._highest_count())

    def _highest_count(self) -> int:
        return max((column.events for column in self.columns), default=1)


def _column_title(column: NoticeColumn) -> str:
    count = f"{column.events} {'event' if column.events == 1 else 'events'} started"
    if column.promised_s is None or column.given_s is None:
        return f"{count}, without notice"
    return f"{count}; notice promised {duration_text(column.promised_s)}, given {duration_text(column.given_s)}"


def notice_chart(history: NoticeHistory, now: float, span: str, sees: ScopeFilter | None) -> NoticeChart:
    """Return the charts of a span of time, up to the end of the column that lab time `now` is in."""
    chosen = span or _suitable_span(history.first_start(now - KEPT_S, sees), now)
    window = _window_for(chosen, now)
    column_s = CHART_SPANS[chosen][1]
    complete_since = history.complete_since(sees)
    if complete_since is not None and complete_since <= window.since:
        complete_since = None
    if complete_since is not None:
        first_column = min(complete_since // column_s * column_s, window.until - column_s)
        window = TimeWindow(since=timestamp(first_column), until=window.until)
    totals = history.totals_by_column(window.since, window.until, column_s, sees)
    return NoticeChart(
        span=chosen,
        since=window.since,
        until=window.until,
        complete_since=timestamp(complete_since),
        columns=tuple(_notice_column(window.since + n * column_s, totals[n]) for n in sorted(totals)),
    )


def _suitable_span(first: float | None, now: float) -> str:
    if first is None:
        return next(iter(CHART_SPANS))
    return next((span for span in CHART_SPANS if _window_for(span, now).since <= first), "7d")


def _window_for(span: str, now: float) -> TimeWindow:
    span_s, column_s = CHART_SPANS[span]
    until = (now // column_s + 1) * column_s
    return TimeWindow(since=timestamp(until - span_s), until=timestamp(until))


def _notice_column(since: float, totals: NoticeTotals) -> NoticeColumn:
    noticed = totals.noticed
    return NoticeColumn(
        since=timestamp(since),
        events=totals.events,
        reasons={name: totals.reasons[name] for name in START_REASONS},
        promised_s=totals.promised_s / noticed if noticed else None,
        given_s=totals.given_s / noticed if noticed else None,
        shortest_s=totals.shortest_s if noticed else None,
    )
