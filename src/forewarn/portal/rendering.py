"""Templates into HTML. Everything is escaped; what a template can say of instants and spans is told here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forewarn.console.showing import title_of_scope_id
from forewarn.core.story import span


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("forewarn.console.portal", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(instant=instant, day=day, span=span, segment=segment, but=but, percent=percent, shorten=shorten)
    made.filters.update(title_of_scope=title_of_scope_id)
    return made


def render(template: str, **given: Any) -> str:
    return environment().get_template(template).render(**given)


def instant(at: float | None, near: float | None = None) -> Markup:
    """A time of day that scripts can turn into the reader's own; a dash where there is none. With the day, where that
    is another than the day of `near`.
    """
    if at is None:
        return Markup("—")
    when = datetime.fromtimestamp(at, UTC)
    is_near = near is None or when.date() == datetime.fromtimestamp(near, UTC).date()
    date, time = f"{when:%Y-%m-%d}", f"{when:%H:%M:%S}"
    text = time if is_near else f"{when:%d %b} {time}"
    # Numbers only: there is nothing to escape.
    return Markup(f'<time datetime="{date}T{time}Z" data-at="{at:.3f}" title="{date} {time} UTC">{text}</time>')


def day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def but(query: Mapping[str, str], **changes: object) -> str:
    """This page's query with some of it changed; what is None or empty is left out."""
    wanted = {**query, **changes}
    return urlencode({name: value for name, value in wanted.items() if value not in (None, "")})


def percent(share: float) -> Markup:
    """Where something stands in a drawing of any width."""
    return Markup(f"{share:.2f}%")


def shorten(text: str, most: int = 40) -> str:
    """For drawings, which cannot break lines."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def segment(text: str) -> str:
    """A name within a path: its slashes stay, since a VM may be called group/name."""
    return quote(text, safe="/:")
