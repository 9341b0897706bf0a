"""Pages of a list: the query parameter `page`, and the part of a list that a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from msgspec import Meta

from forewarn.web.portal.filters import require_page
from forewarn.web.request_parsing import StrictBody

T = TypeVar("T")
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000)]  # from 1


class PageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of a page that shows one long list in parts: which part."""

    page: PageNumber = 1  # from 1


def items_on_page(items: Sequence[T], number: int, size: int) -> tuple[Sequence[T], int]:
    """Return the items of the page with this number, from 1, and how many pages there are."""
    pages = max(1, -(-len(items) // size))
    require_page(number, pages)
    return items[(number - 1) * size : number * size], pages
