"""Security headers of every response, and the CSRF checks of writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forewarn.core.access import owner_principal
from forewarn.errors import Forbidden
from forewarn.web.portal.browser_security import require_csrf_token, require_same_origin
from forewarn.web.portal.context import CurrentSession
from tests.portal.conftest import TOKEN
from tests.portal.http_browser import Browser, PortalService
from tests.support.operator_api import Api

SESSION = CurrentSession(principal=owner_principal("ann"), csrf_token=TOKEN, ends_at=0)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


@pytest.fixture
def ann(api_of: Callable[..., Api]) -> Browser:
    service = PortalService(api_of())
    return Browser(service).signed_in("ann", service.add_client())


TARGETS = [
    "/",
    "/portal",
    "/portal/",
    "/portal/nowhere",
    "/portal/sign-in",
    "/portal/sign-in/once/x",
    "/portal/sign-out",
    "/portal/static/style.css",
    "/portal/static/nothing.css",
    "/portal/?as=json",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_signed_in", [True, False], ids=["signed in", "signed out"])
def test_every_response_of_the_portal_has_security_headers(ann: Browser, target: str, is_signed_in: bool) -> None:
    headers = (ann if is_signed_in else Browser(ann.service)).get(target).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] in ("same-origin", "no-referrer")
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-cache" if "static" in target else "no-store")
    assert "strict-transport-security" not in headers  # it would count for every other port of this name


def test_browsers_revalidate_static_files(ann: Browser) -> None:
    first = ann.get("/portal/static/style.css")
    again = ann.get("/portal/static/style.css", {"if-none-match": first.headers["etag"]})
    assert (first.status, again.status, again.content) == (200, 304, b"")


@pytest.mark.parametrize("path", ["..%2f__init__.py", "%2e%2e/templates/base.html", "../routes.py", "/etc/passwd"])
def test_the_static_path_serves_static_files_only(ann: Browser, path: str) -> None:
    assert ann.get(f"/portal/static/{path}").status == 404


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"token": TOKEN}),
        ({}, {"token": [TOKEN]}),
        ({"X-Forewarn-Token": TOKEN}, {}),
        (
            {"host": "localhost:8443", "origin": "http://localhost:8443", "sec-fetch-site": "same-origin"},
            {"token": TOKEN},
        ),
        ({"host": "LOCALHOST:8443", "origin": "http://localhost:8443"}, {"token": TOKEN}),
        ({"sec-fetch-site": "none"}, {"token": TOKEN}),
    ],
)
def test_a_write_with_the_token_from_our_origin_is_accepted(headers: dict[str, str], fields: dict[str, str]) -> None:
    require_csrf_token(SESSION, headers, fields)


@pytest.mark.parametrize(
    "fields", [{}, {"token": ""}, {"token": "other"}, {"token": []}, {"token": "é"}, {"tokens": TOKEN}]
)
def test_a_write_without_the_token_is_rejected(fields: dict[str, str]) -> None:
    with pytest.raises(Forbidden, match="nothing was done: reload the page"):
        require_csrf_token(SESSION, {}, fields)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8443", "origin": "https://evil.example"},
        {"host": "localhost:8443", "origin": "http://localhost:3000"},
        {"host": "localhost:8443", "origin": "http://localhost"},
        {"host": "localhost:8443", "origin": "http://localhost:8443.evil.example"},
        {"host": "localhost:8443", "origin": "http://["},
        {"host": "localhost:8443", "origin": "null"},
        {"host": "localhost:8443", "origin": ""},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": ""},
    ],
)
def test_a_write_from_another_origin_is_rejected_even_with_the_token(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden, match="open the portal and submit the form there"):
        require_csrf_token(SESSION, headers, {"token": TOKEN})
    with pytest.raises(Forbidden):
        require_same_origin(headers)
