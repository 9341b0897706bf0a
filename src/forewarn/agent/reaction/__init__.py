"""REACTIONS. What a step can do, one file each: a class with `do`, `undo` and `check`, and a `ReactionKind` that the
configuration finds by its name. Never here: which event gets which steps, and when.
"""

from __future__ import annotations

from forewarn.agent.reaction.command import COMMAND
from forewarn.agent.reaction.kind import BadOption, ReactionKind

REACTIONS: dict[str, ReactionKind] = {kind.name: kind for kind in (COMMAND,)}

__all__ = ["REACTIONS", "BadOption", "ReactionKind"]
