"""Every surface words every remedy, in its own terms."""

from __future__ import annotations

import re

import pytest

from forewarn.errors import ForewarnError, NotFound, Rejected, Remedy
from forewarn.web.api_routes import ROUTES
from forewarn.web.errors import Surface, message_for, surface_of

FIELDS = {
    "client": "ci",
    "event": "E1",
    "external_id": "",
    "host": "host-1",
    "minimum": "900",
    "replay": "r1",
    "role": "Reader",
    "setting": "[commands.freeze]",
    "vm": "web-0",
}


def text_of(remedy: Remedy, surface: Surface) -> str:
    return message_for(ForewarnError("it cannot be done", remedy, **FIELDS), surface)


@pytest.mark.parametrize("surface", Surface)
@pytest.mark.parametrize("remedy", Remedy)
def test_a_remedy_has_words_on_every_surface(remedy: Remedy, surface: Surface) -> None:
    text = text_of(remedy, surface)
    assert text.startswith("it cannot be done: ")
    assert "{" not in text


@pytest.mark.parametrize("remedy", Remedy)
def test_the_portal_and_the_api_never_name_an_option_or_a_command(remedy: Remedy) -> None:
    for surface in (Surface.PORTAL, Surface.API):
        assert "--" not in text_of(remedy, surface)
        assert "`forewarn" not in text_of(remedy, surface)


@pytest.mark.parametrize("remedy", Remedy)
def test_the_api_names_only_routes_that_exist(remedy: Remedy) -> None:
    known = {re.sub(r"\{[^}]*\}", "*", route.path) for route in ROUTES}
    values = "|".join(re.escape(value) for value in FIELDS.values() if value)
    for path in re.findall(r"/forewarn/v1(/[^ ,?]*)", text_of(remedy, Surface.API)):
        assert re.sub(rf"/(?:{values})(?=/|$)", "/*", path) in known


def test_a_message_without_a_remedy_is_shown_as_it_is() -> None:
    assert message_for(Rejected("the name is empty: give one"), Surface.PORTAL) == "the name is empty: give one"


def test_a_question_is_followed_by_its_remedy_without_a_colon() -> None:
    error = NotFound("VM 'wbe-0' does not exist: did you mean 'web-0'?", Remedy.LIST_VMS)
    assert message_for(error, Surface.CLI).endswith("did you mean 'web-0'? `forewarn fleet show` lists the VMs")


def test_a_user_of_an_external_issuer_learns_the_command_for_the_administrator() -> None:
    """Only this user sees the id that the issuer gave them."""
    error = ForewarnError("ann has no role anywhere", Remedy.ASK_FOR_ANY_ROLE, external_id="6a1f")
    assert "`forewarn access grant ROLE --to-external 6a1f`" in message_for(error, Surface.PORTAL)


@pytest.mark.parametrize(("header", "surface"), [("cli", Surface.CLI), (None, Surface.API), ("CLI?", Surface.API)])
def test_only_our_command_line_gets_the_words_of_the_command_line(header: str | None, surface: Surface) -> None:
    assert surface_of(header) is surface
