"""One-time sign-in links: whom they sign in, for how long, and what does not use them up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forewarn.auth.claims import Claims
from forewarn.auth.sessions import LINK_LIFETIME_S, SignInIdentity, SignInLinks
from forewarn.core.access import ADMIN_CLIENT_ID
from forewarn.errors import Unauthenticated
from tests.portal.http_browser import ORIGIN, Browser, PortalService
from tests.support.operator_api import Api

SPENT = "this sign-in link is not valid: it was used already, or its 15 minutes are over"


@pytest.fixture
def service(api_of: Callable[..., Api]) -> PortalService:
    return PortalService(api_of())


@pytest.fixture
def service_with_admin(service: PortalService) -> PortalService:
    service.add_client(ADMIN_CLIENT_ID, "Administrator")
    return service


def new_link(service: PortalService) -> str:
    url: str = service.owner().post("/access/links")["url"]
    assert url.startswith(f"{ORIGIN}/portal/sign-in/once/")
    return url.removeprefix(ORIGIN)


def test_a_link_signs_in_the_local_administrator(service_with_admin: PortalService) -> None:
    browser = Browser(service_with_admin)
    page = browser.get(new_link(service_with_admin))
    # After a redirect the browser would still count as coming from another site, and would not send the cookie.
    assert (page.status, "location" in page.headers) == (200, False)
    assert browser.follow_redirects(page).status == 200
    assert browser.user_name() == "client admin"


def test_a_link_works_once(service_with_admin: PortalService) -> None:
    link = new_link(service_with_admin)
    assert Browser(service_with_admin).get(link).status == 200
    late = Browser(service_with_admin)
    page = late.get(link)
    assert (page.status, late.cookie_jar) == (401, {})
    assert SPENT in page.text


def test_a_link_is_valid_for_fifteen_minutes_of_real_time(service_with_admin: PortalService) -> None:
    link, other = new_link(service_with_admin), new_link(service_with_admin)
    service_with_admin.world.advance(LINK_LIFETIME_S * 10)  # of lab time, which does not count
    service_with_admin.clock_offset_s = LINK_LIFETIME_S - 5
    assert Browser(service_with_admin).get(link).status == 200
    service_with_admin.clock_offset_s = LINK_LIFETIME_S + 5
    assert Browser(service_with_admin).get(other).status == 401


def test_a_link_does_not_outlive_the_process_that_made_it(service_with_admin: PortalService) -> None:
    link = new_link(service_with_admin)
    service_with_admin.restart()
    assert Browser(service_with_admin).get(link).status == 401


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        pytest.param("HEAD", {}, id="head"),
        pytest.param("GET", {"sec-purpose": "prefetch"}, id="prefetch"),
        pytest.param("GET", {"sec-purpose": "prefetch;prerender"}, id="prerender"),
        pytest.param("GET", {"purpose": "prefetch"}, id="old prefetch"),
        pytest.param("GET", {"x-moz": "prefetch"}, id="firefox's prefetch"),
        pytest.param("GET", {"x-purpose": "preview"}, id="preview"),
        pytest.param("GET", {"sec-fetch-dest": "image"}, id="as an image"),
        pytest.param("GET", {"sec-fetch-dest": "iframe"}, id="in a frame"),
    ],
)
def test_a_prefetch_does_not_use_up_a_link(
    service_with_admin: PortalService, method: str, headers: dict[str, str]
) -> None:
    link, browser = new_link(service_with_admin), Browser(service_with_admin)
    page = browser.get(link, headers, method=method)
    assert (page.status, browser.cookie_jar) == (400, {})
    assert browser.get(link, {"sec-fetch-dest": "document", "sec-fetch-site": "cross-site"}).status == 200


def test_a_link_is_neither_cached_nor_sent_as_a_referrer(service_with_admin: PortalService) -> None:
    headers = Browser(service_with_admin).get(new_link(service_with_admin)).headers
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("code", ["x", "é", "a" * 5000, "%00"])
def test_an_unknown_code_is_rejected(service_with_admin: PortalService, code: str) -> None:
    new_link(service_with_admin)
    page = Browser(service_with_admin).get(f"/portal/sign-in/once/{code}")
    assert (page.status, SPENT in page.text) == (401, True)


def test_without_an_administrator_the_owner_signs_in_as_themselves(service: PortalService) -> None:
    link = service.owner().post("/access/links")
    assert link["user"] == "local user ann"
    browser = Browser(service)
    browser.get(link["url"].removeprefix(ORIGIN))
    assert browser.user_name() == "local user ann"
    service.restart()
    assert browser.user_name() == "local user ann"
    assert browser.post("/portal/sign-out", {"token": browser.token()}).status == 303
    assert browser.user_name() == ""


def test_a_link_does_not_sign_in_an_administrator_without_the_role(service_with_admin: PortalService) -> None:
    (grant,) = service_with_admin.api.get("/access")["grants"]
    service_with_admin.api.delete(f"/access/grants/{grant['id']}")
    assert service_with_admin.owner().post("/access/links")["user"] == "local user ann"


def test_the_owner_signs_in_as_themselves_with_an_external_issuer(api_of: Callable[..., Api]) -> None:
    service = PortalService(api_of(), issuer_url="https://login.example")
    service.add_client(ADMIN_CLIENT_ID, "Administrator")
    assert service.owner().post("/access/links")["user"] == "local user ann"
    browser = Browser(service)
    browser.get(new_link(service))
    assert browser.user_name() == "local user ann"


def test_renewing_the_secret_of_its_client_invalidates_a_link(service_with_admin: PortalService) -> None:
    link, browser = new_link(service_with_admin), Browser(service_with_admin)
    service_with_admin.api.post("/access/clients/admin/secret")
    page = browser.get(link)
    assert (page.status, browser.cookie_jar) == (401, {})
    assert "client 'admin' has a new secret" in page.text


def bearer(service: PortalService, client_id: str, secret: str) -> dict[str, str]:
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    token = Browser(service, "https://localhost:8443").post("/adfs/oauth2/token", form).json["access_token"]
    return {"authorization": f"Bearer {token}"}


def test_a_client_creates_links_for_itself_only_as_administrator_of_everything(service: PortalService) -> None:
    root = bearer(service, "root", service.add_client("root", "Administrator"))
    reader = bearer(service, "ci", service.add_client("ci", "Platform"))
    over_tls = Browser(service, "https://localhost:8443")
    made = over_tls.send("POST", "/forewarn/v1/access/links", b"", root)
    assert (made.status, made.json["user"]) == (200, "client root")
    over_tls.get(made.json["url"].removeprefix(ORIGIN))
    assert over_tls.user_name() == "client root"
    assert over_tls.send("POST", "/forewarn/v1/access/links", b"", reader).status == 403


def test_a_link_is_created_for_clients_and_the_owner_only(service: PortalService) -> None:
    vm = service.owner().holding("Administrator", "/", name="vm web")
    status, code, message = vm.refused("POST", "/access/links")
    assert (status, code) == (409, "Refused")
    assert "sign-in links are for clients and for the owner of the service, not for vm web" in message


def test_a_service_without_a_portal_creates_no_links(service: PortalService) -> None:
    assert service.api.refused("POST", "/access/links") == (
        409,
        "Refused",
        "this service has no portal: give it an address with the setting 'api'",
    )


def test_the_number_of_open_links_is_bounded_and_codes_are_not_stored() -> None:
    links = SignInLinks("", lambda: 0.0)
    whom = SignInIdentity(claims=Claims(ids=("client:ann",), name="ann", tenant="", expires_at=0))
    made = [links.create(whom) for _ in range(257)]
    assert links.redeem(made[-1].url) == links.redeem(made[1].url) == whom
    with pytest.raises(Unauthenticated):
        links.redeem(made[0].url)
    assert made[1].url not in repr(made[1])
    assert len(made[1].url) == 43
    assert made[1].url not in repr(vars(links))
