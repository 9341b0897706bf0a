"""What the agent says, to its log and to whoever observes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forewarn.agent.config import Config
from forewarn.agent.move import Settle
from forewarn.agent.observer import Observer
from forewarn.agent.record import Record, State
from forewarn.agent.rule import left_s
from forewarn.agent.value import Step
from forewarn.client import lists

LOG = logging.getLogger("forewarn.agent")


def tell_begun(config: Config) -> None:
    """Somebody who has just started it sees that it lives, and where to look."""
    pages = f"http://{config.listen}" if config.listen else "none"
    LOG.info("the agent runs; steps: %s; pages: %s", ", ".join(config.steps) or "none", pages)


class OneLine(logging.Formatter):
    """A message is a line, whatever a server puts into the names of things: it can forge no other."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        said = super().formatMessage(record)
        return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in said)


def tell_seen(observer: Observer, record: Record, *, is_new: bool, vm: str, now: float) -> None:
    """The event is new, has started, or is gone."""
    event, left = record.event, left_s(record.event, now)
    if record.gone_at is not None:
        LOG.info("%s %s is gone: %s", event.kind, record.key, record.outcome)
        observer.gone(event, record.outcome)
    elif is_new:
        LOG.info("%s %s of %s, rule %r", event.kind, record.key, ", ".join(event.resources), record.rule)
        observer.noticed(event, None if record.started_at is not None else left)
        if lists(event, vm) and left == 0:
            observer.missed(event)
    elif record.started_at is not None:
        LOG.info("%s %s has started", event.kind, record.key)
        observer.started(event, now - record.seen_at)


def tell_settled(observer: Observer, record: Record, move: Settle, steps: Mapping[str, Step]) -> None:
    """A step came to an end without being run."""
    deed = move.deed
    LOG.warning("%s %s %s for %s: %s", deed.phase, deed.step, deed.state, record.key, deed.text)
    if deed.state is State.CUT and deed.step in steps:
        observer.step_cut(steps[deed.step], record.event)
