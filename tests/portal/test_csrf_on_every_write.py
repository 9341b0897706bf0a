"""Every write of the portal needs the CSRF token of the session, and our own origin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.routing import Route

from forewarn.web.portal.form_catalog import FORMS
from tests.portal.http_browser import Browser, PortalService
from tests.support.operator_api import Api

WRITES = ["/portal/sign-out", *(f"/portal/forms/{name}" for name in FORMS)]


@pytest.fixture
def admin(api_of: Callable[..., Api]) -> Browser:
    service = PortalService(api_of())
    return Browser(service).signed_in("root", service.add_client("root", "Administrator"))


def test_this_list_of_writes_is_complete(admin: Browser) -> None:
    paths = {route.path for route in admin.service.app.routes if isinstance(route, Route) and _writes(route)}
    assert paths == {"/portal/sign-in", "/portal/sign-out", "/portal/forms/{name}"}


def _writes(route: Route) -> bool:
    return route.path.startswith("/portal") and bool((route.methods or set()) - {"GET", "HEAD"})


@pytest.mark.parametrize("path", WRITES)
def test_every_write_without_the_token_or_from_another_origin_is_rejected(admin: Browser, path: str) -> None:
    fields = {"vm": "db", "vms": "db", "host": "h1", "confirmed": "yes"}
    whole, before = {**fields, "token": admin.token()}, admin.service.api.stored()
    refused = [
        admin.post(path, fields),
        admin.post(path, {**fields, "token": "another"}),
        admin.post(path, whole, {"origin": "https://evil.example"}),
        admin.post(path, whole, {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}),
        admin.post(path, whole, {"sec-fetch-site": "cross-site"}),
    ]
    assert [page.status for page in refused] == [403] * 5
    assert admin.service.api.stored() == before
    assert admin.user_name() == "client root"


@pytest.mark.parametrize("path", WRITES)
def test_every_write_needs_a_session(admin: Browser, path: str) -> None:
    other_browser = Browser(admin.service)
    page = other_browser.post(path, {"vms": "db", "confirmed": "yes", "token": admin.token()})
    assert (page.status, page.headers["location"].partition("?")[0]) == (303, "/portal/sign-in")
