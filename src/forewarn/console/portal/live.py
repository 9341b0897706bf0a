"""What changes, told to open pages as it happens."""

from __future__ import annotations

from starlette.routing import BaseRoute

from forewarn.console.portal.frame import Enter


def live_routes(enter: Enter) -> list[BaseRoute]:
    return []
