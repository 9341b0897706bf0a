"""Whether an event may be approved now: are all listed VMs ready, who speaks for them, what does the gate say. Pure.

Of the VMs that an event lists, one speaks: the first that is alive by the board. A listed VM counts as ready once it
has said so for this event, even if it has died since. One that has not said so blocks while it is alive. One that is
not alive (its heartbeat is old, or it never had one) is absent: it blocks too, so that the event waits for its
NotBefore, unless the rule ignores the absent after so many seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forewarn.agent.record import Consent
from forewarn.agent.rule import plain
from forewarn.agent.value import Gate

ALIVE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView:
    """What the board shows: ages of heartbeats by VM, and who is ready for which event; names as `plain` makes them."""

    ages_s: Mapping[str, float] = field(default_factory=dict)
    ready: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by event id


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`yes`, or why not yet, and when to look again at the latest (None: when something changes)."""

    yes: bool
    why: str = ""
    again_at: float | None = None


def spokesman(resources: Sequence[str], board: BoardView, alive_s: float = ALIVE_S) -> str:
    """The first listed VM that is alive; "" if none is."""
    return next((plain(name) for name in resources if _is_alive(plain(name), board, alive_s)), "")


def all_ready(
    id_: str,
    resources: Sequence[str],
    vm: str,
    board: BoardView,
    *,
    waited_s: float,
    absent_after_s: float | None,
    alive_s: float = ALIVE_S,
) -> Verdict:
    """May this VM approve for all? `waited_s` since it was itself ready."""
    speaker = spokesman(resources, board, alive_s)
    if speaker != plain(vm):
        return Verdict(yes=False, why=f"{speaker} speaks for the event" if speaker else "no listed VM is alive")
    missing = [plain(name) for name in resources if plain(name) not in board.ready.get(id_, frozenset())]
    alive = [name for name in missing if _is_alive(name, board, alive_s)]
    if alive:
        return Verdict(yes=False, why=f"{', '.join(alive)} not ready")
    if missing and (absent_after_s is None or waited_s < absent_after_s):
        return Verdict(yes=False, why=f"{', '.join(missing)} absent")
    return Verdict(yes=True)


def _is_alive(name: str, board: BoardView, alive_s: float) -> bool:
    return name in board.ages_s and board.ages_s[name] <= alive_s


def consented(gate: Gate, consent: Consent | None, now: float) -> Verdict:
    """What the gate's answers so far come to; a `no` stands."""
    if consent is None:
        return Verdict(yes=False, why="the gate has not been asked", again_at=now)
    if consent.answer:
        return Verdict(yes=consent.answer == "yes", why=f"the gate says {consent.answer}")
    over_at = consent.first_at + gate.deadline_s
    if now < over_at:
        return Verdict(yes=False, why="the gate is silent", again_at=min(over_at, consent.asked_at + gate.every_s))
    return Verdict(yes=gate.on_silence == "approve", why=f"the gate was silent for {gate.deadline_s:g} s")
