"""Names as people type them: in a script one may be an unset variable, and be nothing at all."""

from __future__ import annotations

import click


def name(text: str) -> str:
    """The type of an argument that names something."""
    if not text.strip():
        raise click.BadParameter("the name is empty: write one (in a script, look for a variable that is not set)")
    return text
