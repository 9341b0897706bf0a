"""The [steps.NAME] tables of the agent's file."""

from __future__ import annotations

import re
from typing import Literal

from forewarn.agent.reaction import REACTIONS, BadOption
from forewarn.agent.table import Table, remedy_for
from forewarn.agent.value import Step

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
# What every step may say; all else is its reaction's.
_OWN = (
    *("use", "budget", "cut", "begin", "repeatable", "unclear"),
    *("undo_when", "undo_budget", "undo_tries", "survives_reboot"),
)


def steps_of(whole: Table) -> dict[str, Step]:
    tables = whole.table("steps")
    if tables is None:
        return {}
    named = {name: tables.table(name) for name in tables.raw}
    for name in named:
        if not _NAME.fullmatch(name):
            tables.refuse(name, f"a step cannot be called {name!r}", "use letters, digits, - and _")
    return {name: _step(name, table) for name, table in named.items() if table is not None}


def _step(name: str, table: Table) -> Step:
    table.title = f"[steps.{name}]"
    use = table.needed("use", '"command"')
    kind = REACTIONS.get(use)
    if kind is None and use:
        table.refuse("use", f"there is no reaction {use!r}", remedy_for(use, REACTIONS, ""))
    tells = kind is not None and not kind.holds
    if not table.has("budget"):
        table.refuse("", f"{table.title} has no budget", 'write budget = "30s" below it')
    step = Step(
        name=name,
        use=use,
        budget_s=table.seconds("budget", 30.0, least=0.1),
        cut=table.number("cut", None, 0, 1_000),
        begin=table.choice("begin", ("at-once", "late"), "at-once") if table.has("begin") or tells else None,
        repeatable=table.flag("repeatable", default=tells),
        unclear=table.choice("unclear", ("repeat", "skip", "report"), "report"),
        undo=_undo(table, undoes=kind is None or kind.undoes),
        undo_budget_s=table.seconds("undo_budget", 60.0, least=0.1),
        undo_tries=table.number("undo_tries", 3, 1, 1_000) or 3,
        survives_reboot=table.flag("survives_reboot", default=True),
        holds=not tells,
        options=_options(table, use),
    )
    if kind is not None:
        table.finish("begin", *kind.options)
    return step


def _undo(table: Table, *, undoes: bool) -> Literal["when-gone", "never"]:
    when = table.choice("undo_when", ("gone", "never"), "gone" if undoes else "never")
    return "never" if when == "never" else "when-gone"


def _options(table: Table, use: str) -> object:
    kind = REACTIONS.get(use)
    if kind is None:
        return None
    try:
        return kind.read({key: value for key, value in table.raw.items() if key not in _OWN})
    except BadOption as bad:
        table.refuse(bad.key, bad.what, bad.remedy)
        return None
