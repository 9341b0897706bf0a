"""Links that sign in once: whom, for how long, and what does not spend them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forewarn.auth.claims import Claims
from forewarn.auth.sessions import LINK_LIFETIME_S, SignInIdentity, SignInLinks
from forewarn.core.access import ADMIN_CLIENT_ID
from forewarn.errors import Unauthenticated
from tests.portal.http_browser import ORIGIN, Browser, Doors
from tests.support.operator_api import Api

SPENT = "this sign-in link is not valid: it was used already, or its 15 minutes are over"


@pytest.fixture
def doors(api_of: Callable[..., Api]) -> Doors:
    return Doors(api_of())


@pytest.fixture
def administered(doors: Doors) -> Doors:
    doors.add_client(ADMIN_CLIENT_ID, "Administrator")
    return doors


def new_link(doors: Doors) -> str:
    url: str = doors.owner().post("/access/links")["url"]
    assert url.startswith(f"{ORIGIN}/portal/sign-in/once/")
    return url.removeprefix(ORIGIN)


def test_a_link_signs_in_the_local_administrator(administered: Doors) -> None:
    browser = Browser(administered)
    page = browser.get(new_link(administered))
    # A redirect would still count as coming from wherever the link was opened, and the cookie would not be sent.
    assert (page.status, "location" in page.headers) == (200, False)
    assert browser.went_on(page).status == 200
    assert browser.who() == "client admin"


def test_a_link_works_once(administered: Doors) -> None:
    link = new_link(administered)
    assert Browser(administered).get(link).status == 200
    late = Browser(administered)
    page = late.get(link)
    assert (page.status, late.jar) == (401, {})
    assert SPENT in page.text


def test_a_link_is_valid_for_fifteen_minutes_of_real_time(administered: Doors) -> None:
    link, other = new_link(administered), new_link(administered)
    administered.world.advance(LINK_LIFETIME_S * 10)  # of lab time, which does not count
    administered.ahead_s = LINK_LIFETIME_S - 5
    assert Browser(administered).get(link).status == 200
    administered.ahead_s = LINK_LIFETIME_S + 5
    assert Browser(administered).get(other).status == 401


def test_a_link_does_not_outlive_the_process_that_made_it(administered: Doors) -> None:
    link = new_link(administered)
    administered.restart()
    assert Browser(administered).get(link).status == 401


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
def test_a_prefetch_does_not_use_up_a_link(administered: Doors, method: str, headers: dict[str, str]) -> None:
    link, browser = new_link(administered), Browser(administered)
    page = browser.get(link, headers, method=method)
    assert (page.status, browser.jar) == (400, {})
    assert browser.get(link, {"sec-fetch-dest": "document", "sec-fetch-site": "cross-site"}).status == 200


def test_a_link_is_neither_cached_nor_sent_as_a_referrer(administered: Doors) -> None:
    headers = Browser(administered).get(new_link(administered)).headers
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("code", ["x", "é", "a" * 5000, "%00"])
def test_an_unknown_code_is_rejected(administered: Doors, code: str) -> None:
    new_link(administered)
    page = Browser(administered).get(f"/portal/sign-in/once/{code}")
    assert (page.status, SPENT in page.text) == (401, True)


def test_without_an_administrator_the_owner_signs_in_as_themselves(doors: Doors) -> None:
    link = doors.owner().post("/access/links")
    assert link["signs_in"] == "local user ann"
    browser = Browser(doors)
    browser.get(link["url"].removeprefix(ORIGIN))
    assert browser.who() == "local user ann"
    doors.restart()
    assert browser.who() == "local user ann"
    assert browser.post("/portal/sign-out", {"token": browser.token()}).status == 303
    assert browser.who() == ""


def test_a_link_does_not_sign_in_an_administrator_without_the_role(administered: Doors) -> None:
    (grant,) = administered.api.get("/access")["grants"]
    administered.api.delete(f"/access/grants/{grant['id']}")
    assert administered.owner().post("/access/links")["signs_in"] == "local user ann"


def test_the_owner_signs_in_as_themselves_with_an_external_issuer(api_of: Callable[..., Api]) -> None:
    doors = Doors(api_of(), issuer_url="https://login.example")
    doors.add_client(ADMIN_CLIENT_ID, "Administrator")
    assert doors.owner().post("/access/links")["signs_in"] == "local user ann"
    browser = Browser(doors)
    browser.get(new_link(doors))
    assert browser.who() == "local user ann"


def test_renewing_the_secret_of_its_client_invalidates_a_link(administered: Doors) -> None:
    link, browser = new_link(administered), Browser(administered)
    administered.api.post("/access/clients/admin/secret")
    page = browser.get(link)
    assert (page.status, browser.jar) == (401, {})
    assert "client 'admin' has a new secret" in page.text


def bearer(doors: Doors, client_id: str, secret: str) -> dict[str, str]:
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    token = Browser(doors, "https://localhost:8443").post("/adfs/oauth2/token", form).json["access_token"]
    return {"authorization": f"Bearer {token}"}


def test_a_client_creates_links_for_itself_only_as_administrator_of_everything(doors: Doors) -> None:
    root = bearer(doors, "root", doors.add_client("root", "Administrator"))
    reader = bearer(doors, "ci", doors.add_client("ci", "Platform"))
    over_tls = Browser(doors, "https://localhost:8443")
    made = over_tls.send("POST", "/forewarn/v1/access/links", b"", root)
    assert (made.status, made.json["signs_in"]) == (200, "client root")
    over_tls.get(made.json["url"].removeprefix(ORIGIN))
    assert over_tls.who() == "client root"
    assert over_tls.send("POST", "/forewarn/v1/access/links", b"", reader).status == 403


def test_a_link_is_created_for_clients_and_the_owner_only(doors: Doors) -> None:
    stranger = doors.owner().holding("Administrator", "/", name="vm web")
    status, code, message = stranger.refused("POST", "/access/links")
    assert (status, code) == (409, "Refused")
    assert "sign-in links are for clients and for the owner of the service, not for vm web" in message


def test_a_service_without_a_portal_creates_no_links(doors: Doors) -> None:
    assert doors.api.refused("POST", "/access/links") == (
        409,
        "Refused",
        "this service has no portal: give it an address with the setting 'console'",
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
