"""Waits until something is over, printing its history meanwhile.

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
from forewarn.cli.formatting import history_lines
from forewarn.cli.invocation import Invocation

TERMINAL_INTERVAL_S = 1  # a countdown is on show
PIPE_INTERVAL_S = 10
WATCH_INTERVAL_S = 30
_ENTRIES_PER_PAGE = 500
HistoryFilter = Mapping[str, str]  # what the history is asked about: vm, event, request, scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How something stands now."""

    view: JsonObject
    is_over: bool
    renderable: RenderableType


class LiveArea:
    """The place below the lines that scroll; in a pipe there is none."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    def show(self, shows: RenderableType) -> None:
        if self._live is not None:
            self._live.update(shows, refresh=True)


@contextmanager
def live_area(call: Invocation, *, stays: bool = False) -> Iterator[LiveArea]:
    if not call.output.is_terminal:
        yield LiveArea(None)
        return
    with Live(console=call.output.stdout, auto_refresh=False, transient=not stays) as live:
        yield LiveArea(live)


def follow(call: Invocation, look: Callable[[], Snapshot], *, about: HistoryFilter, quiet: bool = False) -> JsonObject:
    """Look until it is over; the history `about` it is told meanwhile, unless it is to be quiet."""
    tick_s = TERMINAL_INTERVAL_S if call.output.is_terminal else PIPE_INTERVAL_S
    with live_area(call) as place:
        seq = _print_new_entries(call, 0, wait_s=0, quiet=quiet, about=about)
        while True:
            now = look()
            # What happens after the look is news to the next question, so none of it is waited past.
            if now.is_over:
                _print_new_entries(call, seq, wait_s=0, quiet=quiet, about=about)
                return now.view
            place.show(now.renderable)
            seq = _print_new_entries(call, seq, wait_s=tick_s, quiet=quiet, about=about)


def _print_new_entries(call: Invocation, seq: int, *, wait_s: int, quiet: bool, about: HistoryFilter) -> int:
    """Print what is new; the number of the latest entry."""
    page = wait_for_entries(call, seq, wait_s=wait_s, about=about)
    if page["entries"] and not quiet and not call.output.as_json:
        print_entries(call, page["entries"], call.api.now())
    return int(page["seq"])


def print_entries(call: Invocation, entries: list[JsonObject], now: float) -> None:
    for label, sentence in history_lines(entries, now):
        call.output.print_labelled(label, sentence)


def entries_since(call: Invocation, after: int) -> list[JsonObject]:
    """Every entry after this one, however many there are."""
    entries: list[JsonObject] = []
    while page := wait_for_entries(call, after, wait_s=0)["entries"]:
        entries += page
        after = page[-1]["seq"]
    return entries


def wait_for_entries(
    call: Invocation, after: int, *, wait_s: int, about: HistoryFilter = MappingProxyType({})
) -> JsonObject:
    """Entries after this one, held by the service for a while if there are none."""
    patience_s = wait_s + 30.0
    query = {"after": after, "wait_s": wait_s, "limit": _ENTRIES_PER_PAGE, **about}
    return call.api.get("history", query=query, patience_s=patience_s)
