"""The timeline of a case as lines of text, for people who read why a case failed."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.crash_test.timeline import (
    Approved,
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Impact,
    Observation,
    OtherRequest,
    Polled,
    Poller,
    ProbeAnswered,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    Timeline,
)

_SHORT_ID = 8  # characters of an event's id


def describe_timeline(timeline: Timeline, vm: str) -> list[str]:
    """Return what was observed on this VM and of all events, one line each, in order."""
    lines: list[str] = []
    last_poll, repeated = "", 0
    for item in timeline.observations:
        text = _describe(item) if item.vm in ("", vm) else ""
        if not text:
            continue
        if isinstance(item, Polled) and text == last_poll:
            repeated += 1
            continue
        lines += _repetition(repeated)
        repeated, last_poll = 0, text if isinstance(item, Polled) else last_poll
        lines.append(f"{item.at:7.1f} s  {text}")
    lines += _repetition(repeated)
    lines.append(f"{timeline.ended_at:7.1f} s  the case ended")
    return lines


def _repetition(count: int) -> Iterator[str]:
    if count:
        yield f"{'':9}  (and {count} more such poll{'s' if count > 1 else ''})"


def _describe(item: Observation) -> str:
    match item:
        case Polled() | Approved() | OtherRequest():
            return _describe_request(item) if item.by is Poller.HANDLER else ""
        case EventPublished(event=event, kind=kind, vms=vms, not_before=not_before):
            notice = "without notice" if not_before is None else f"NotBefore at {not_before:.1f} s"
            return f"{kind} of {', '.join(vms)} was published ({event[:_SHORT_ID]}), {notice}"
        case EventStarted(event=event):
            return f"the platform started {event[:_SHORT_ID]}"
        case EventEnded(event=event, is_withdrawn=is_withdrawn):
            return f"{event[:_SHORT_ID]} {'was withdrawn' if is_withdrawn else 'was over'}"
        case Impact(verb=verb, until=until):
            return f"the platform acted on the VM: {verb}" + ("" if until is None else f", until {until:.1f} s")
        case Disturbance(text=text, until=until):
            return f"disturbance by the case: {text}" + ("" if until is None else f", until {until:.1f} s")
        case ProbeAnswered(probe=probe, is_yes=is_yes):
            return f"the probe {probe} said {'yes' if is_yes else 'no'}"
        case ProgramStarted(is_boot=is_boot):
            return f"the program was started{' with its VM' if is_boot else ''}"
        case ProgramExited(code=code, signal=signal, by_case=by_case):
            how = f"status {code}" if code is not None else f"signal {signal}"
            return f"the program {'was ended' if by_case else 'ended by itself'} ({how})"
        case ProgramOutput(text=text):
            return f"it wrote: {_printable(text)}"
        case _:
            return ""


def _describe_request(item: Polled | Approved | OtherRequest) -> str:
    status = "no answer" if item.status is None else str(item.status)
    match item:
        case Polled(events=events, substitute=substitute):
            shown = ", ".join(f"{event.id[:_SHORT_ID]} {event.status}" for event in events) or "no events"
            return f"a poll got {status}, " + (f"a substitute: {substitute}, {shown}" if substitute else shown)
        case Approved(event_ids=ids, problem=problem):
            named = ", ".join(text[:_SHORT_ID] for text in ids) or "nothing"
            return f"it approved {_printable(named)} and got {status}" + (f" ({problem})" if problem else "")
        case OtherRequest(method=method, path=path):
            return f"it asked for {_printable(f'{method} {path}')} and got {status}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
