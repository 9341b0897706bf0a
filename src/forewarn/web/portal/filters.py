"""Filters of list pages: a value that does not exist is answered on the page, with the values that do.

A handler raises UnknownFilter. The page is then shown without that filter, with a FilterProblem in place of results; an
export fails with the error itself, because a program must not take an empty file for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, TypeVar

from msgspec import Meta

from forewarn.base.wording import scope_name_from_id, similar_names
from forewarn.errors import Rejected
from forewarn.web.errors import Surface, status_and_message
from forewarn.web.portal.context import PortalContext
from forewarn.web.request_parsing import StrictBody
from forewarn.web.views import BaseView

Found = TypeVar("Found")
T = TypeVar("T")
_MAX_OFFERED = 8
_MAX_NAMES_COMPARED = 5_000  # among more names a search for similar ones takes too long
_MIN_LIKENESS = 0.55  # from 0 to 1, of two texts that may be meant for each other
_REPEATED_CHOICES = re.compile(": use one of |: did you mean ")
_MIN_BEGINNING = 3  # characters of a name that are searched


class FilterChoice(BaseView, frozen=True, kw_only=True):
    """A value that a filter of a page may have, with its label; pages offer it as a link."""

    value: str  # of the query parameter
    label: str  # for people


class FilterProblem(BaseView, frozen=True, kw_only=True):
    """A filter of a page whose value matches nothing that exists: what is wrong, and which values exist."""

    parameter: str  # the name of the query parameter
    sentence: str  # what is wrong, for people
    nearest: FilterChoice | None  # the choice that is most like the value; None: none is
    choices: tuple[FilterChoice, ...]  # values that exist, of VMs and the like at most 8; () if none or only `nearest`


class UnknownFilter(Rejected):
    """The value of a filter of a page does not exist, or is ambiguous."""

    def __init__(self, parameter: str, value: str, reason: Rejected, choices: Iterable[FilterChoice] = ()) -> None:
        super().__init__(str(reason))
        self.parameter = parameter
        self.value = value
        self.reason = reason
        self.choices = tuple(choices)

    def problem(self) -> tuple[int, FilterProblem]:
        """Return the HTTP status of `reason` (400, 404 or 409), and what the page shows in place of results."""
        status, sentence = status_and_message(self.reason, Surface.PORTAL)
        if self.choices:
            sentence = _REPEATED_CHOICES.split(str(self.reason))[0]
        nearest = _nearest_choice(self.value, self.choices)
        return status, FilterProblem(
            parameter=self.parameter,
            sentence=sentence[:1].upper() + sentence[1:],
            nearest=nearest,
            choices=() if self.choices == (nearest,) else self.choices,
        )


def require_choice(parameter: str, value: str, labels: Mapping[str, str], what: str) -> None:
    """Raise UnknownFilter unless `value` is "" or a key of `labels`."""
    if value and value not in labels:
        reason = Rejected(f"{value!r} is not {what}: use one of {', '.join(labels)}")
        choices = (FilterChoice(value=known, label=label) for known, label in labels.items())
        raise UnknownFilter(parameter, value, reason, choices)


def require_page(number: int, pages: int) -> None:
    """Raise UnknownFilter if page `number`, counted from 1, is after the last of `pages` pages."""
    if number > pages:
        reason = Rejected(f"page {number} does not exist: the last one is {pages}")
        last = FilterChoice(value=str(pages), label=f"page {pages}")
        raise UnknownFilter("page", str(pages), reason, [last])


def resolve(
    parameter: str,
    value: str,
    find: Callable[[str], Found],
    offer: Callable[[str], Iterable[FilterChoice]] = lambda value: (),
) -> Found | None:
    if not value:
        return None
    try:
        return find(value)
    except Rejected as error:
        raise UnknownFilter(parameter, value, error, offer(value)) from error


def _nearest_choice(value: str, choices: Sequence[FilterChoice]) -> FilterChoice | None:
    by_text = {text.casefold(): choice for choice in choices for text in (choice.value, choice.label)}
    close = similar_names(value.strip().casefold(), by_text, cutoff=_MIN_LIKENESS)
    return by_text[close[0]] if close else None


def offer_vms(context: PortalContext, value: str) -> list[FilterChoice]:
    """Return up to 8 visible VMs whose name contains `value`, ignoring letter case, or similar names."""
    wanted = value.strip().casefold().rpartition("/")[2]
    found = context.overview.find_by_name(context.directory, wanted, _MAX_OFFERED)
    if not found:
        keys = list(islice(context.overview.visible_keys(context.directory), _MAX_NAMES_COMPARED + 1))
        if len(keys) <= _MAX_NAMES_COMPARED:
            by_name = {key.rpartition("/")[2]: key for key in keys}
            close = get_close_matches(wanted, by_name, n=_MAX_OFFERED, cutoff=_MIN_LIKENESS)
            found = [by_name[name] for name in close]
        elif len(wanted) > _MIN_BEGINNING:
            found = context.overview.find_by_name(context.directory, wanted[:_MIN_BEGINNING], _MAX_OFFERED)
    vms = (context.store.vm(key) for key in found)
    return [FilterChoice(value=vm.name, label=vm.name) for vm in vms if vm is not None]


def offer_scopes(context: PortalContext, value: str) -> list[FilterChoice]:
    """Return up to 8 visible scopes of sets and services, those with names most like `value` first."""
    ids = [
        block.id
        for group, _ in context.overview.visible_groups(context.directory)
        for block in islice(group.blocks.values(), _MAX_NAMES_COMPARED)
        if not block.is_standalone
    ]
    by_name = {scope_id.rpartition("/")[2]: scope_id for scope_id in ids[:_MAX_NAMES_COMPARED]}
    close = get_close_matches(value.strip().casefold(), by_name, n=_MAX_OFFERED, cutoff=_MIN_LIKENESS)
    ordered = dict.fromkeys([*close, *by_name])
    visible = (name for name in ordered if context.can_see_scope(by_name[name]))
    return [FilterChoice(value=name, label=scope_name_from_id(by_name[name])) for name in islice(visible, _MAX_OFFERED)]


def offer_rollouts(context: PortalContext, value: str) -> list[FilterChoice]:
    """Return the 8 newest rollouts, the newest first, for any `value`."""
    newest = reversed(context.list_rollouts()[-_MAX_OFFERED:])
    return [
        FilterChoice(value=request.id, label=f"{request.rollout.impact} {request.id[:8]}")
        for request in newest
        if request.rollout is not None
    ]


# Pages of a list: the query parameter `page`, and the part of a list that a page shows.

PageNumber = Annotated[int, Meta(ge=1, le=1_000_000)]  # from 1


class PageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of a page that shows one long list in parts: which part."""

    page: PageNumber = 1  # from 1


def items_on_page(items: Sequence[T], number: int, size: int) -> tuple[Sequence[T], int]:
    """Return the items of the page with this number, from 1, and how many pages there are."""
    pages = max(1, -(-len(items) // size))
    require_page(number, pages)
    return items[(number - 1) * size : number * size], pages
