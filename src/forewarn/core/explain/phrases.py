"""Short texts about events, names and durations that explanations, previews and the portal share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from forewarn.base.duration import duration_text
from forewarn.base.wording import first_names
from forewarn.core.cause import verb_noun
from forewarn.core.event import Ending, Event


def started_without_notice(event: Event) -> bool:
    """Return True if the event started when it was published; False if it has not started."""
    # False for an event that somebody approved, even if both times are equal because lab time is paused.
    return event.started_at == event.published_at and (event.approved_at is None or event.approved_by == "policy")


def promised_notice(event: Event) -> str:
    """Return the time from publication to NotBefore in words, such as `15 min`."""
    return duration_text(math.floor(event.not_before - event.published_at))


def ending_text(event: Event) -> str:
    """Return how an event that is over ended, with its reason: `withdrawn, replaced by user redeploy`."""
    if event.ending is Ending.FINISHED:
        return "finished"
    return f"{event.ending}, {event.reason}" if event.reason else str(event.ending)


def notice_phrases(event: Event) -> Iterator[str]:
    """Yield exactly one phrase about the notice of an event, such as `15 min of notice promised`."""
    if not event.listed or started_without_notice(event):
        yield f"no notice{': ' + event.note if event.note else ''}"
        return
    promised = promised_notice(event)
    if event.started_at is None:
        yield f"{promised} of notice promised"
    else:
        yield f"{promised} of notice promised, {duration_text(event.started_at - event.published_at)} given"


def event_kind_text(event: Event) -> str:
    """Return the event's kind as VMs see it (`Reboot`); if they never see it, what is done (`Delete`)."""
    return str(event.rules.kind if event.listed and event.rules.kind else verb_noun(event.rules.verb).capitalize())


def join_names(names: Sequence[str]) -> str:
    """Return names as `a, b and c`; of more than four, the first three and `and N more`; "" for none."""
    if len(names) > 4:
        return first_names(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
