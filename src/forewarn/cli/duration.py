"""Durations as an option or argument takes them."""

from __future__ import annotations

import click

from forewarn.duration import LONGEST_S, read_duration, span

__all__ = ["LONGEST_S", "duration", "read_duration", "span"]


def duration(text: str) -> float:
    """The type of an option or argument."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
