"""Waiting for something to be over: its history as it happens, and on a terminal one line below that tells what it
waits for. The service holds each question until there is news, so nothing here sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import RenderableType
from rich.live import Live

from forewarn.cli.connection import View
from forewarn.cli.invocation import Invocation
from forewarn.cli.wording import entry_lines

TERMINAL_TICK_S = 1  # a countdown is on show
PIPE_TICK_S = 10
WATCH_TICK_S = 30
_PAGE = 500
About = Mapping[str, str]  # what the history is asked about: vm, event, request, scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How something stands now."""

    view: View
    over: bool
    shows: RenderableType


class Bottom:
    """The place below the lines that scroll; in a pipe there is none."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    def show(self, shows: RenderableType) -> None:
        if self._live is not None:
            self._live.update(shows, refresh=True)


@contextmanager
def bottom(call: Invocation, *, stays: bool = False) -> Iterator[Bottom]:
    if not call.screen.is_terminal:
        yield Bottom(None)
        return
    with Live(console=call.screen.out, auto_refresh=False, transient=not stays) as live:
        yield Bottom(live)


def follow(call: Invocation, look: Callable[[], Look], *, about: About, quiet: bool = False) -> View:
    """Look until it is over; the history `about` it is told meanwhile, unless it is to be quiet."""
    tick_s = TERMINAL_TICK_S if call.screen.is_terminal else PIPE_TICK_S
    with bottom(call) as place:
        seq = _tell(call, 0, wait_s=0, quiet=quiet, about=about)
        while True:
            now = look()
            # What happens after the look is news to the next question, so none of it is waited past.
            if now.over:
                _tell(call, seq, wait_s=0, quiet=quiet, about=about)
                return now.view
            place.show(now.shows)
            seq = _tell(call, seq, wait_s=tick_s, quiet=quiet, about=about)


def _tell(call: Invocation, seq: int, *, wait_s: int, quiet: bool, about: About) -> int:
    """Print what is new; the number of the latest entry."""
    page = news(call, seq, wait_s=wait_s, about=about)
    if page["entries"] and not quiet and not call.screen.as_json:
        tell_entries(call, page["entries"], call.api.now())
    return int(page["seq"])


def tell_entries(call: Invocation, entries: list[View], now: float) -> None:
    for label, sentence in entry_lines(entries, now):
        call.screen.hang(label, sentence)


def all_since(call: Invocation, after: int) -> list[View]:
    """Every entry after this one, however many there are."""
    entries: list[View] = []
    while page := news(call, after, wait_s=0)["entries"]:
        entries += page
        after = page[-1]["seq"]
    return entries


def news(call: Invocation, after: int, *, wait_s: int, about: About = MappingProxyType({})) -> View:
    """Entries after this one, held by the service for a while if there are none."""
    patience_s = wait_s + 30.0
    query = {"after": after, "wait_s": wait_s, "limit": _PAGE, **about}
    return call.api.get("history", query=query, patience_s=patience_s)
