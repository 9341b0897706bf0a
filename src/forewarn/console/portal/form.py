"""Where people ask for things: a form, what would happen, and then it happens."""

from __future__ import annotations

from starlette.routing import BaseRoute

from forewarn.console.portal.frame import Enter


def form_routes(enter: Enter) -> list[BaseRoute]:
    return []
