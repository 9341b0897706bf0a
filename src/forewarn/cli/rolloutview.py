"""How far a rollout has come: a bar in the colours of its parts, and what is going on now."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from forewarn.cli.connection import View
from forewarn.cli.instant import when
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import Cell, faint, joined, strong, word
from forewarn.cli.wording import counted, event_headers, event_row, names, waits, what

_PARTS = (
    ("done", "green"),
    ("failed", "red"),
    ("withdrawn", "bright_black"),
    ("started", "cyan"),
    ("scheduled", "yellow"),
    ("waiting", "grey23"),
)
_WIDTH = 40
_NONE = "There are no rollouts. Start one: forewarn rollout start --all-hosts --impact update"


def shares(counts: list[int], width: int) -> list[int]:
    """How many cells of a bar each count gets: in proportion, together exactly the width."""
    total = sum(counts)
    if total == 0:
        return [0] * len(counts)
    ends = [round(sum(counts[: index + 1]) * width / total) for index in range(len(counts))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def bar(tally: View, width: int = _WIDTH) -> Text:
    text = Text()
    for cells, (_, style) in zip(shares([int(tally[name]) for name, _ in _PARTS], width), _PARTS, strict=True):
        text.append("━" * cells, style=style)
    return text


def progress_line(view: View) -> Text:
    """`12 of 40 done · 4 started · 4 scheduled · 20 waiting`."""
    tally = view["tally"]
    line = joined(strong(f"{tally['done']} of {tally['total']} done"))
    for name, style in _PARTS[1:]:
        if tally[name]:
            said = "never begun" if name == "waiting" and view["closed"] else name
            line.append_text(joined(faint(" · "), Text(f"{tally[name]} {said}", style=style.replace("grey23", ""))))
    return line


def panel(call: Invocation, view: View) -> RenderableType:
    """What a terminal shows while it goes on."""
    now = call.api.now()
    lines: list[Text] = [_title(call, view), joined(bar(view["tally"]), "  ", progress_line(view))]
    lines += [joined("  ", line) for line in current(view, now)]
    return Group(*lines)


def current(view: View, now: float) -> Iterator[Text]:
    """What is under way, by update domain."""
    live = [event for event in view.get("events", ()) if event["status"] != "over"]
    for event in live[:4]:
        head = joined(word(event["status"]), f"  update domain {event['update_domain']}: ", names(event["vms"], 3))
        yield joined(head, faint(f"  {_now(event, now)}"))
    if len(live) > 4:
        yield faint(f"and {counted(len(live) - 4, 'more event')}")


def _now(event: View, now: float) -> str:
    doing = waits(event, now) or what(event)
    return f"waits for {doing}" if event["status"] == "scheduled" else doing


def _title(call: Invocation, view: View) -> Text:
    title = f"Rollout {call.screen.short(view['id'])}: {view['impact']} over {_over(view)}"
    return joined(strong(title), "  ", state(view))


def state(view: View) -> Text:
    """`completed with 3 failed VMs`, `stopped`."""
    failed = view["tally"]["failed"]
    if view["progress"] != "completed" or not failed:
        return word(view["progress"])
    return Text(f"completed with {counted(failed, 'failed VM')}", style="red")


def _over(view: View) -> str:
    if not view["hosts"]:
        return f"scope {'/'.join(view['scope'].split('/')[1:]) or view['scope']}"
    return names(view["hosts"]) if len(view["hosts"]) <= 3 else counted(len(view["hosts"]), "host")


def show_rollout(call: Invocation, view: View) -> None:
    if call.screen.as_json:
        call.screen.document(view)
        return
    now = call.api.now()
    call.screen.say(_title(call, view))
    shown_bar = joined(bar(view["tally"]), "  ") if call.screen.is_terminal else ""
    call.screen.say(shown_bar, progress_line(view))
    if view["why"]:
        call.screen.hang(joined("why  "), view["why"])
    if view.get("events"):
        call.screen.say()
        rows = [event_row(event, now, call.screen.short(event["id"])) for event in view["events"]]
        call.screen.table(event_headers(view["events"]), rows)
    if not view["closed"]:
        call.screen.hints(_hints(call.screen.short(view["id"]), paused=view["progress"] == "paused"))


def _hints(shown: str, *, paused: bool) -> list[tuple[str, str]]:
    if paused:
        go_on = (f"forewarn rollout resume {shown}", "go on with it")
        return [go_on, (f"forewarn rollout abort {shown}", "end it")]
    return [(f"forewarn rollout show {shown} --watch", "follow it"), (f"forewarn rollout pause {shown}", "hold it")]


def show_rollouts(call: Invocation, page: View) -> None:
    if call.screen.as_json:
        call.screen.document(page)
    elif page["rollouts"]:
        now = call.api.now()
        call.screen.table(("rollout", "impact", "progress", "over", "VMs", "asked"), _rows(call, page, now))
    else:
        call.screen.say(_NONE)


def _rows(call: Invocation, page: View, now: float) -> Iterator[list[Cell]]:
    for view in page["rollouts"]:
        shown = strong(call.screen.short(view["id"]))
        yield [shown, view["impact"], state(view), _over(view), progress_line(view), when(view["at"], now)]
