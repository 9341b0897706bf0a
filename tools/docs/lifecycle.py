"""The page docs/lifecycle.md, drawn from `lifecycle.TABLE` so that it cannot say anything else."""

from __future__ import annotations

from collections.abc import Iterable

from forewarn.core.event import Status
from forewarn.core.lifecycle import NOTHING, STAYS, TABLE, Happening, State

_STATES: tuple[State, ...] = (NOTHING, *Status)

_MEANING: dict[Happening, str] = {
    Happening.ANNOUNCED: "notice is given: the document lists the event as Scheduled",
    Happening.STRUCK: "no notice: hardware failed, a policy had approved it, or it is carried out at once",
    Happening.APPROVED: "somebody approved it; the document does not change",
    Happening.RELEASED: "it is ready, and there is nothing else that it must wait for",
    Happening.PERFORMED: "the outcome of one VM is known; the document does not change",
    Happening.FINISHED: "every outcome is known, and the settling time is over",
    Happening.WITHDRAWN: "taken back before it started",
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
    meanings = (f"| {happening} | {_MEANING[happening]} |" for happening in Happening)
    return _PAGE.format(diagram=_lines(_edges()), table=_lines(_table()), meanings=_lines(meanings))


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _edges() -> list[str]:
    edges = [f"    {_node(state)} --> {_node(to)}: {h}" for (state, h), to in TABLE.items() if to is not STAYS]
    return [*edges, f"    {_node(Status.OVER)} --> [*]"]


def _node(state: State) -> str:
    return "[*]" if state is NOTHING else str(state)


def _table() -> list[str]:
    head = f"| happening | {' | '.join(_STATES)} |"
    rows = (f"| {h} | {' | '.join(_cell(state, h) for state in _STATES)} |" for h in Happening)
    return [head, "|---" * (len(_STATES) + 1) + "|", *rows]


def _cell(state: State, happening: Happening) -> str:
    if (state, happening) not in TABLE:
        return "refused"
    to = TABLE[state, happening]
    return "stays" if to is STAYS else f"→ {to}"
