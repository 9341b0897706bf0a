"""Sessions: they survive a restart, follow the rights of their user, and end when the user signs out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forewarn.auth.claims import Claims, InvalidToken
from forewarn.auth.sessions import SESSION_LIFETIME_S, EndedSessions, PortalSession, SessionIssuer
from forewarn.auth.tokens import MANAGEMENT_AUDIENCES
from forewarn.errors import Unavailable
from forewarn.store.memory import MemoryStore
from tests.portal.http_browser import ORIGIN, TENANT, Browser, PortalService, signing_key
from tests.support.operator_api import Api

TLS = "https://localhost:8443"


@pytest.fixture
def service(api_of: Callable[..., Api]) -> PortalService:
    return PortalService(api_of())


@pytest.fixture
def ann(service: PortalService) -> Browser:
    return Browser(service).signed_in("ann", service.add_client())


def test_sessions_and_open_forms_survive_a_restart_of_the_service(service: PortalService, ann: Browser) -> None:
    token = ann.token()
    service.restart()
    assert ann.user_name() == "client ann"
    assert ann.token() == token


def test_a_session_expires_after_twelve_hours(service: PortalService, ann: Browser) -> None:
    service.clock_offset_s = SESSION_LIFETIME_S - 60
    assert ann.user_name() == "client ann"
    service.clock_offset_s = SESSION_LIFETIME_S + 1
    assert ann.user_name() == ""


def test_removing_a_client_ends_its_sessions(service: PortalService, ann: Browser) -> None:
    service.api.delete("/access/clients/ann")
    assert ann.user_name() == ""
    service.add_client()  # another client with the same name
    assert ann.user_name() == ""


def test_renewing_a_secret_ends_the_sessions_of_the_client(service: PortalService, ann: Browser) -> None:
    service.api.post("/access/clients/ann/secret")
    assert ann.user_name() == ""


def test_grants_and_revocations_count_with_the_next_request(service: PortalService, ann: Browser) -> None:
    (grant,) = service.api.get("/access")["grants"]
    assert "has no role anywhere" not in ann.get("/portal/").text
    service.api.delete(f"/access/grants/{grant['id']}")
    page = ann.get("/portal/")
    assert (page.status, "client ann has no role anywhere" in page.text) == (403, True)
    service.api.post("/access/grants", {"role": "Reader", "principal": "ann", "resource": "/"})
    assert ann.get("/portal/").status == 200


def test_a_copied_cookie_is_worthless_after_signing_out(service: PortalService, ann: Browser) -> None:
    thief = Browser(service)
    thief.cookie_jar = dict(ann.cookie_jar)
    assert thief.user_name() == "client ann"
    page = ann.post("/portal/sign-out", {"token": ann.token()})
    assert (page.status, page.headers["location"]) == (303, "/portal/sign-in")
    assert ann.cookie_jar == {}
    assert (ann.user_name(), thief.user_name()) == ("", "")
    service.restart()
    assert thief.user_name() == ""


def test_two_browsers_of_one_client_have_separate_sessions(service: PortalService) -> None:
    secret = service.add_client()
    one, other = (Browser(service).signed_in("ann", secret) for _ in range(2))
    assert one.token() != other.token()
    one.post("/portal/sign-out", {"token": one.token()})
    assert (one.user_name(), other.user_name()) == ("", "client ann")


@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_a_sign_out_needs_the_token_of_the_session(ann: Browser, token: str) -> None:
    page = ann.post("/portal/sign-out", {"token": token})
    assert (page.status, ann.user_name()) == (403, "client ann")
    assert "the form does not belong to your current session" in page.text


def test_the_token_of_another_session_is_rejected(service: PortalService, ann: Browser) -> None:
    bob = Browser(service).signed_in("bob", service.add_client("bob"))
    assert ann.post("/portal/sign-out", {"token": bob.token()}).status == 403


def test_the_token_may_be_sent_in_a_header(ann: Browser) -> None:
    assert ann.post("/portal/sign-out", {}, {"X-Forewarn-Token": ann.token()}).status == 303
    assert ann.user_name() == ""


def test_a_link_cannot_sign_out(ann: Browser) -> None:
    assert ann.get("/portal/sign-out").status != 303
    assert ann.user_name() == "client ann"


def test_signing_out_twice_is_harmless(service: PortalService, ann: Browser) -> None:
    service.api.delete("/access/clients/ann")
    page = ann.post("/portal/sign-out", {"token": "any"})
    assert (page.status, ann.cookie_jar) == (303, {})


class FullStore(MemoryStore):
    is_full = False

    async def save(self, name: str, value: bytes) -> None:
        if self.is_full:
            raise Unavailable("the disk is full: make room and try again")
        await super().save(name, value)


def test_a_sign_out_that_cannot_be_stored_is_reported_and_can_be_repeated(api_of: Callable[..., Api]) -> None:
    store = FullStore()
    service = PortalService(api_of(store=store))
    ann = Browser(service).signed_in("ann", service.add_client())
    store.is_full = True
    page = ann.post("/portal/sign-out", {"token": ann.token()})
    assert (page.status, "the disk is full" in page.text) == (503, True)
    store.is_full = False
    assert ann.post("/portal/sign-out", {"token": ann.token()}).status == 303


def test_cookies_and_bearer_tokens_are_not_interchangeable(service: PortalService) -> None:
    secret = service.add_client()
    ann = Browser(service, TLS).signed_in("ann", secret)
    (name,) = ann.cookie_jar
    assert ann.get("/forewarn/v1/clock", {"authorization": f"Bearer {ann.cookie}"}).status == 401
    form = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": secret}
    bearer = ann.post("/adfs/oauth2/token", form).json["access_token"]
    assert ann.get("/forewarn/v1/clock", {"authorization": f"Bearer {bearer}"}).status == 200
    ann.cookie_jar = {name: bearer}
    assert ann.user_name() == ""
    assert ann.get("/forewarn/v1/clock").status == 401  # a cookie alone is valid for the portal only


def test_no_token_is_issued_for_the_audience_of_sessions(service: PortalService) -> None:
    form = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": service.add_client()}
    asked = {**form, "scope": "forewarn portal/.default"}
    assert Browser(service, TLS).post("/adfs/oauth2/token", asked).status == 400


def test_the_cookie_is_secure_and_bound_to_the_host_over_tls(service: PortalService) -> None:
    secret = service.add_client()
    page = Browser(service, TLS).post("/portal/sign-in", {"client_id": "ann", "secret": secret})
    name, *facts = [part.strip() for part in page.headers["set-cookie"].split(";")]
    assert name.startswith(f"__Host-forewarn-{TENANT[:8]}=")
    assert set(facts) == {"HttpOnly", "Secure", "SameSite=strict", "Path=/", f"Max-Age={SESSION_LIFETIME_S}"}
    page = Browser(service, ORIGIN).post("/portal/sign-in", {"client_id": "ann", "secret": secret})
    name, *facts = [part.strip() for part in page.headers["set-cookie"].split(";")]
    assert name.startswith(f"forewarn-{TENANT[:8]}=")
    assert set(facts) == {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_LIFETIME_S}"}


def test_two_services_on_one_machine_do_not_sign_each_other_out(api_of: Callable[..., Api]) -> None:
    """Browsers send the cookies of a host to all its ports."""
    one, other = PortalService(api_of()), PortalService(api_of(), tenant_id="decade00-0000-4000-8000-000000000002")
    browser = Browser(one).signed_in("ann", one.add_client("ann"))
    browser.service = other
    assert browser.user_name() == ""
    browser.signed_in("bob", other.add_client("bob"))
    assert browser.user_name() == "client bob"
    browser.service = one
    assert browser.user_name() == "client ann"


def test_a_session_of_another_service_is_rejected_even_under_our_cookie_name(api_of: Callable[..., Api]) -> None:
    one, other = PortalService(api_of()), PortalService(api_of(), tenant_id="decade00-0000-4000-8000-000000000002")
    ann = Browser(one).signed_in("ann", one.add_client("ann"))
    other.add_client("ann")
    stray = Browser(other)
    stray.cookie_jar = {"forewarn-decade00": ann.cookie}
    assert stray.user_name() == ""


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "é", "..", "x" * 20_000])
def test_an_invalid_cookie_is_not_a_session(service: PortalService, text: str) -> None:
    browser = Browser(service)
    browser.cookie_jar = {f"forewarn-{TENANT[:8]}": text}
    assert browser.user_name() == ""


def test_a_changed_session_is_rejected() -> None:
    sessions = SessionIssuer(key=signing_key(), tenant_id=TENANT)
    text = sessions.issue(Claims(ids=("client:ann",), name="ann", tenant="", expires_at=0), 1000.0)
    head, payload, signature = text.split(".")
    assert sessions.verify(text, 1000.0).claims.primary_id == "client:ann"
    for changed in (f"{payload[:-2]}AA.{signature}", f"{payload}.", f"{payload}.{signature[:-4]}AAAA"):
        with pytest.raises(InvalidToken):
            sessions.verify(f"{head}.{changed}", 1000.0)


def ending(number: int, who: str = "client:ann") -> PortalSession:
    claims = Claims(ids=(who,), name="somebody", tenant="", expires_at=0)
    return PortalSession(id=f"s{number}", ends_at=1000.0 + number, claims=claims)


def test_ended_sessions_are_forgotten_once_they_expire() -> None:
    ended = EndedSessions().with_session(ending(1), now=0).with_session(ending(2), now=1001.5)
    assert {who: set(ids) for who, ids in ended.ids.items()} == {"client:ann": {"s2"}}


def test_the_record_of_ended_sessions_is_bounded_and_no_session_revives() -> None:
    ended = EndedSessions()
    for number in (5, 1, 2, 3, 4):
        ended = ended.with_session(ending(number), now=0, limit=3)
        assert ended.contains(ending(number))
    assert len(ended.ids["client:ann"]) == 3
    assert all(ended.contains(ending(number)) for number in range(1, 6))
    assert not ended.contains(ending(6))


def test_signing_out_often_does_not_end_the_sessions_of_others() -> None:
    ended = EndedSessions()
    for number in range(1, 1100):
        ended = ended.with_session(ending(number), now=0)
    assert ended.contains(ending(1))
    assert not ended.contains(ending(0, who="client:bob"))
    ended = ended.with_session(ending(0, who="client:bob"), now=0)
    assert ended.contains(ending(0, who="client:bob"))
    assert not ended.with_session(ending(2000), now=2500.0).until  # expired entries are dropped


def test_the_api_does_not_accept_the_audience_of_sessions(service: PortalService) -> None:
    assert all(service.sign_in.issuer.accepts(audience) for audience in MANAGEMENT_AUDIENCES)
    assert not service.sign_in.issuer.accepts("forewarn portal")
