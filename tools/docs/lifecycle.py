"""Generates docs/reference/lifecycle.md from the transition table of `forewarn.core.lifecycle`."""

from __future__ import annotations

from collections.abc import Iterable

from forewarn.core.event import EventState
from forewarn.core.lifecycle import NONEXISTENT, TRANSITIONS, UNCHANGED, LifecycleState, Transition

_STATES: tuple[LifecycleState, ...] = (NONEXISTENT, *EventState)

_TRANSITION_TEXT: dict[Transition, str] = {
    Transition.ANNOUNCED: "its notice begins: the document lists it as Scheduled",
    Transition.STARTED_WITHOUT_NOTICE: (
        "it starts without notice: hardware failed, a policy approved it, or it is done at once"
    ),
    Transition.APPROVED: "a VM or an operator approves it; the document does not change",
    Transition.RELEASED: "it is approved or its notice has ended, and it waits for nothing else: it starts",
    Transition.PERFORMED: "the outcome of its work on one VM is known; the document does not change",
    Transition.FINISHED: "all outcomes are known and the settling time has passed",
    Transition.WITHDRAWN: "it is withdrawn before it starts, or not needed because its VMs have left the host",
}

_PAGE = """\
# The lifecycle of an event

<!-- from src/forewarn/core/lifecycle.py, by `make docs` -->

```mermaid
stateDiagram-v2
{diagram}
```

No edge leads back. For an event that a document lists, the scope's incarnation grows by one on each edge of the
diagram, and does not change where the table says *stays*.

{table}

| transition | what it means |
|---|---|
{meanings}
"""


def lifecycle_markdown() -> str:
    """The page docs/reference/lifecycle.md: the diagram, the table, and the meaning of each transition."""
    meanings = (f"| {transition} | {_TRANSITION_TEXT[transition]} |" for transition in Transition)
    return _PAGE.format(
        diagram=_join_lines(_diagram_edges()), table=_join_lines(_table_lines()), meanings=_join_lines(meanings)
    )


def _join_lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _diagram_edges() -> list[str]:
    edges = [
        f"    {_node_name(state)} --> {_node_name(to)}: {transition}"
        for (state, transition), to in TRANSITIONS.items()
        if to is not UNCHANGED
    ]
    return [*edges, f"    {_node_name(EventState.OVER)} --> [*]"]


def _node_name(state: LifecycleState) -> str:
    return "[*]" if state is NONEXISTENT else str(state)


def _table_lines() -> list[str]:
    head = f"| transition | {' | '.join(_STATES)} |"
    rows = (f"| {each} | {' | '.join(_table_cell(state, each) for state in _STATES)} |" for each in Transition)
    return [head, "|---" * (len(_STATES) + 1) + "|", *rows]


def _table_cell(state: LifecycleState, transition: Transition) -> str:
    if (state, transition) not in TRANSITIONS:
        return "refused"
    to = TRANSITIONS[state, transition]
    return "stays" if to is UNCHANGED else f"→ {to}"
