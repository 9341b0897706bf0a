"""What is told of an event: the same sentence to a log, a webhook and an administrator."""

from __future__ import annotations

from forewarn.agent.value import Case, Event, Phase


def sentence(case: Case) -> str:
    """`Reboot of web-0 not before Mon, 19 Sep …`; `Reboot of web-0 is gone`. One line, whatever a server sends."""
    what = f"{case.event.kind or 'An event'} of {', '.join(case.event.resources) or 'nobody'}"
    return _line(f"{what} is gone" if case.phase is Phase.UNDO else f"{what} {_when(case.event)}")


def _line(text: str) -> str:
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def _when(event: Event) -> str:
    if event.not_before_text:
        return f"not before {event.not_before_text}"
    return "has started" if event.status == "Started" else "is scheduled"


def paragraph(case: Case) -> str:
    """For people: everything that is known, a line each; what is not known is left out."""
    event = case.event
    rows = {
        "Event": event.id,
        "Kind": event.kind,
        "Status": "gone" if case.phase is Phase.UNDO else event.status,
        "VMs": ", ".join(event.resources),
        "Not before": "" if case.phase is Phase.UNDO else event.not_before_text,
        "Impact": _impact(event),
        "Source": event.source,
        "Description": event.description,
    }
    return "\n".join(f"{name + ':':<13}{_line(text)}" for name, text in rows.items() if text)


def _impact(event: Event) -> str:
    if event.duration_s is None:
        return ""
    return "of unknown length" if event.duration_s < 0 else f"{event.duration_s} s"
