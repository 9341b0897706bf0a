"""Follows something until it is over, printing its history entries meanwhile.

The service holds each history request until there are new entries, so nothing here sleeps. On a terminal a live area
below the printed lines shows the current state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import RenderableType
from rich.live import Live

from forewarn.cli.api_client import JsonObject
from forewarn.cli.invocation import Invocation
from forewarn.cli.output import history_lines

# How long the service holds one history request; short on a terminal, which shows a countdown:
TERMINAL_INTERVAL_S = 1
PIPE_INTERVAL_S = 10
WATCH_INTERVAL_S = 30  # for `history --watch`
_ENTRIES_PER_PAGE = 500
HistoryFilter = Mapping[str, str]  # query parameters of the history: vm, event, request, scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a request, rollout or replay at one time, while `follow` waits for its end."""

    view: JsonObject  # the API's view of the request, rollout or replay
    is_over: bool  # whether it is over, so that nothing is left to follow
    renderable: RenderableType  # what the live area of a terminal shows of it


class LiveArea:
    """The updating area below the printed lines of a terminal; in a pipe and with --json it shows nothing."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    def show(self, renderable: RenderableType) -> None:
        """Replace what the area shows, at once; does nothing in a pipe and with --json."""
        if self._live is not None:
            self._live.update(renderable, refresh=True)


@contextmanager
def live_area(call: Invocation, *, keep_visible: bool = False) -> Iterator[LiveArea]:
    """Context manager that yields the live area of the terminal for the duration of its block."""
    if not call.output.is_terminal:
        yield LiveArea(None)
        return
    with Live(console=call.output.stdout, auto_refresh=False, transient=not keep_visible) as live:
        yield LiveArea(live)


def follow(
    call: Invocation, take_snapshot: Callable[[], Snapshot], *, entries_of: HistoryFilter, quiet: bool = False
) -> JsonObject:
    """Wait until a request, rollout or replay is over, printing its history entries; return its last view.

    `take_snapshot` asks the service for its state at the beginning, whenever there are new entries, and at least every
    10 s (1 s on a terminal).
    """
    quiet = quiet or call.output.as_json
    interval_s = TERMINAL_INTERVAL_S if call.output.is_terminal else PIPE_INTERVAL_S
    with live_area(call) as area:
        page = _print_new_entries(call, 0, wait_s=0, quiet=quiet, entries_of=entries_of)
        while True:
            snapshot = take_snapshot()
            # An entry written after the snapshot ends the next wait at once, so no change is missed.
            if snapshot.is_over:
                is_more = not quiet
                while is_more:
                    page = _print_new_entries(call, page["seq"], wait_s=0, quiet=quiet, entries_of=entries_of)
                    is_more = len(page["entries"]) == _ENTRIES_PER_PAGE
                return snapshot.view
            area.show(snapshot.renderable)
            page = _print_new_entries(call, page["seq"], wait_s=interval_s, quiet=quiet, entries_of=entries_of)


def _print_new_entries(
    call: Invocation, seq: int, *, wait_s: int, quiet: bool, entries_of: HistoryFilter
) -> JsonObject:
    page = wait_for_entries(call, seq, wait_s=wait_s, entries_of=entries_of)
    if page["entries"] and not quiet:
        print_entries(call, page["entries"], call.api.now())
    return page


def print_entries(call: Invocation, entries: list[JsonObject], now: float) -> None:
    """Print history entries as text, in their order: local time, kind and sentence of each."""
    for label, sentence in history_lines(entries, now):
        call.output.print_labelled(label, sentence)


def wait_for_entries(
    call: Invocation, after: int, *, wait_s: int, entries_of: HistoryFilter = MappingProxyType({})
) -> JsonObject:
    """Return a page of the oldest history entries after number `after` that match `entries_of`."""
    timeout_s = wait_s + 30.0
    query = {"after": after, "wait_s": wait_s, "limit": _ENTRIES_PER_PAGE, **entries_of}
    return call.api.get("history", query=query, timeout_s=timeout_s)
