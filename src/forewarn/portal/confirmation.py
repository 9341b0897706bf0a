"""Before anything is done: what will happen to whom and when, and who is not prepared for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from forewarn.console.call import Call
from forewarn.console.portal.context import PortalContext
from forewarn.console.portal.field import Typed
from forewarn.console.portal.formline import Form
from forewarn.console.showing import title_of_scope
from forewarn.control.rehearsal import TooMany
from forewarn.core.pace import SILENT_S
from forewarn.core.preview import Foreseen, Preview
from forewarn.core.story import span
from forewarn.store.seam import Polled

_SHOWN = 200  # events told one by one
_FEW = 50  # scopes
_TOLD = 5  # scopes or hosts told one by one


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, to be sent again with the confirmation."""

    name: str
    value: str


class ConfirmPage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    button: str
    is_grave: bool
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    events: tuple[Foreseen, ...]
    events_left_out: int
    now: float
    sent: tuple[Sent, ...]
    slip: str
    note: str = ""  # why it is asked again


async def confirmation(
    room: PortalContext, form: Form, call: Call, typed: Typed, slip: str, note: str = ""
) -> ConfirmPage:
    """Raises as sending it would, as far as that can be known beforehand."""
    sentences, events = await _foreseen(room, form, call)
    return ConfirmPage(
        name=form.name,
        title=form.title,
        button=form.button,
        is_grave=form.is_grave,
        sentences=sentences,
        warnings=tuple(_warnings(room, events)),
        events=events[:_SHOWN],
        events_left_out=max(0, len(events) - _SHOWN),
        now=room.now(),
        sent=tuple(Sent(name=name, value=value) for name, values in typed.items() for value in values),
        slip=slip,
        note=note,
    )


async def _foreseen(room: PortalContext, form: Form, call: Call) -> tuple[tuple[str, ...], tuple[Foreseen, ...]]:
    if (line := form.preview_route(room.api_routes)) is None:
        assert not isinstance(form.foresight, str)
        return tuple(form.foresight(room, call)), ()
    try:
        preview: Preview = await line.handler(room, call, **line.signature.read(call))
    except TooMany as error:
        return (f"What will happen is not told: {error}. It can be sent all the same.",), ()
    return preview.sentences or ("No VM is hit by this.",), preview.events


def _warnings(room: PortalContext, events: Sequence[Foreseen]) -> Iterator[str]:
    yield from _unprepared(room, events)
    yield from _neighbours(room, events)


def _unprepared(room: PortalContext, events: Sequence[Foreseen]) -> Iterator[str]:
    """Scopes where nobody asks for events: whatever notice is given there, nobody reads it."""
    listed = dict.fromkeys(event.scope for event in events if event.listed and event.starts_at != event.published_at)
    polls = _polls(room, listed)
    silent = [(scope_id, last) for scope_id in listed if (last := _silence(room, polls[scope_id])) is not None]
    for scope_id, last in silent[:_TOLD]:
        scope = room.store.scope(scope_id)
        title = title_of_scope(scope) if scope else scope_id
        whom = "it" if scope_id.startswith("vm:") else "its VMs"
        yield f"Nobody polls {title} ({last}): {whom} will be hit unprepared."
    if len(silent) > _TOLD:
        more = len(silent) - _TOLD
        yield f"Nobody polls {more} more scope{'s' if more > 1 else ''}, either."


def _polls(room: PortalContext, scope_ids: Collection[str]) -> dict[str, list[Polled]]:
    """Of a few scopes by each, of many by one look at all."""
    if len(scope_ids) <= _FEW:
        return {scope_id: room.store.polls(scope_id=scope_id) for scope_id in scope_ids}
    polls: dict[str, list[Polled]] = {scope_id: [] for scope_id in scope_ids}
    for polled in room.store.polls():
        if polled.scope_id in polls:
            polls[polled.scope_id].append(polled)
    return polls


def _silence(room: PortalContext, polls: Sequence[Polled]) -> str | None:
    """Since when nobody of those has asked, in words; None: somebody does."""
    if not polls:
        return "nobody ever did"
    silent_s = room.now() - max(polled.at for polled in polls)
    paces = [pace for polled in polls if (pace := room.house.pace(polled.vm)) is not None]
    _, speed, _ = room.control.labtime.show()
    # After a restart of the service nobody has been heard yet: then what is stored must do.
    is_silent = all(pace.is_silent for pace in paces) if paces else silent_s > SILENT_S * max(1.0, speed)
    return f"the last poll was {span(silent_s)} ago" if is_silent else None


def _neighbours(room: PortalContext, events: Sequence[Foreseen]) -> Iterator[str]:
    """Who else is on the hosts that are worked on, and is not hit."""
    hit = {(event.scope, name.casefold()) for event in events for name in event.vms}
    for host in list(dict.fromkeys(event.host for event in events if event.host))[:_TOLD]:
        others = [vm.name for vm in room.store.vms(host=host) if (vm.scope_id, vm.name.casefold()) not in hit]
        if others:
            more = f" and {len(others) - _TOLD} more" if len(others) > _TOLD else ""
            yield f"Also on host {host}, and not hit by this: {', '.join(others[:_TOLD])}{more}."
