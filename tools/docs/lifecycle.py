"""Generates docs/lifecycle.md from the transition table of `forewarn.core.lifecycle`."""

from __future__ import annotations

from collections.abc import Iterable

from forewarn.core.event import EventState
from forewarn.core.lifecycle import NONEXISTENT, TRANSITIONS, UNCHANGED, LifecycleState, Transition

_STATES: tuple[LifecycleState, ...] = (NONEXISTENT, *EventState)

_TRANSITION_TEXT: dict[Transition, str] = {
    Transition.ANNOUNCED: "notice is given: the document lists the event as Scheduled",
    Transition.STARTED_WITHOUT_NOTICE: (
        "no notice: hardware failed, a policy had approved it, or it is carried out at once"
    ),
    Transition.APPROVED: "somebody approved it; the document does not change",
    Transition.RELEASED: "it is ready, and there is nothing else that it must wait for",
    Transition.PERFORMED: "the outcome of one VM is known; the document does not change",
    Transition.FINISHED: "every outcome is known, and the settling time is over",
    Transition.WITHDRAWN: "taken back before it started",
}

_PAGE = """\
# The life of an event

*Generated from `src/forewarn/core/lifecycle.py` by `make docs`; change the table there, not this page.*

```mermaid
stateDiagram-v2
{diagram}
```

Every edge goes one way. The scope's incarnation grows by one on each edge of the diagram, for an event that a
document lists; it stays where the table says *stays*.

{table}

| happening | what it means |
|---|---|
{meanings}
"""


def lifecycle_markdown() -> str:
    """The whole page: the diagram, every cell of the table, and what each happening means."""
    meanings = (f"| {happening} | {_TRANSITION_TEXT[happening]} |" for happening in Transition)
    return _PAGE.format(
        diagram=_join_lines(_diagram_edges()), table=_join_lines(_table_lines()), meanings=_join_lines(meanings)
    )


def _join_lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _diagram_edges() -> list[str]:
    edges = [
        f"    {_node_name(state)} --> {_node_name(to)}: {h}"
        for (state, h), to in TRANSITIONS.items()
        if to is not UNCHANGED
    ]
    return [*edges, f"    {_node_name(EventState.OVER)} --> [*]"]


def _node_name(state: LifecycleState) -> str:
    return "[*]" if state is NONEXISTENT else str(state)


def _table_lines() -> list[str]:
    head = f"| happening | {' | '.join(_STATES)} |"
    rows = (f"| {h} | {' | '.join(_table_cell(state, h) for state in _STATES)} |" for h in Transition)
    return [head, "|---" * (len(_STATES) + 1) + "|", *rows]


def _table_cell(state: LifecycleState, happening: Transition) -> str:
    if (state, happening) not in TRANSITIONS:
        return "refused"
    to = TRANSITIONS[state, happening]
    return "stays" if to is UNCHANGED else f"→ {to}"
