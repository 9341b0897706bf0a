"""A service elsewhere, over TLS: which one is meant, signing in there, and what can stand between."""

import os
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forewarn.auth import ServiceCertificates
from forewarn.auth.certificate_authority import CertificateAuthority, issue_server_certificate, new_ec_key
from forewarn.auth.pem import parse_private_key, read_certificate, write_certificate, write_key
from forewarn.cli.api_client import ApiClient
from forewarn.cli.credentials import Profile
from forewarn.cli.transport import BearerToken, RemoteTransport
from forewarn.clock import read_real_time
from forewarn.protocol.http_message import HttpRequest
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

SECRET = "it's-a-$ecret-of-the-administrator"
REPLY = json_reply({"name": "client ci", "id": "client:ci", "grants": []})
KNOWN = json_reply({"authentication": {"loginEndpoint": "ISSUER/adfs", "audiences": ["x"]}})
CLOCK = {"now": 1.0, "speed": 1.0, "lab": True}


def paths(server: Any) -> list[str]:
    return [request.target for request in server.requests]


def test_a_command_asks_the_service_that_a_profile_or_a_url_names(signed: Any, elsewhere: Any) -> None:
    for words in (["--profile", "lab"], ["--server", elsewhere.url], ["--server", f"{elsewhere.url}/"]):
        assert f"service  {elsewhere.url}" in signed.good("whoami", *words)
        assert f"service  {elsewhere.url}" in signed.good(*words, "whoami")
    assert elsewhere.url in signed.good("whoami", FOREWARN_PROFILE="lab")
    assert elsewhere.url in signed.good("whoami", FOREWARN_SERVER=elsewhere.url)
    assert set(paths(elsewhere)) == {"/forewarn/v1/access/me"}


def test_a_service_elsewhere_is_never_meant_by_itself(signed: Any) -> None:
    assert signed.refused("events", code=3) == (
        f"no forewarn service answers in {signed.data}: start one with `forewarn up`, "
        "or name one elsewhere with --profile"
    )


def test_a_flag_counts_more_than_the_environment(signed: Any, elsewhere: Any) -> None:
    assert "no forewarn service answers in /nowhere" in signed.refused(
        "events", "--data", "/nowhere", code=3, FOREWARN_PROFILE="lab"
    )
    assert elsewhere.url in signed.good("whoami", "--profile", "lab", FOREWARN_SERVER="https://other.example.org")


def test_two_services_at_once_are_refused(signed: Any, elsewhere: Any) -> None:
    assert signed.refused("events", "--data", "x", "--server", elsewhere.url) == (
        "--data and --server name two services: give one of them"
    )
    told = signed.refused("events", "--profile", "lab", "--server", "https://other.example.org")
    assert told.startswith(f"profile 'lab' is for {elsewhere.url}, not for https://other.example.org: ")
    assert elsewhere.sign_ins == []


@pytest.mark.parametrize(
    ("typed", "example"),
    [
        ("vmhost:8443", "https://vmhost:8443"),
        ("http://vmhost:8443/", "https://vmhost:8443"),
        ("https://", "https://vmhost.example.org:8443"),
        ("https://ann:pw@vmhost", "https://vmhost.example.org:8443"),
        ("https://vmhost/forewarn/v1", "https://vmhost.example.org:8443"),
        ("https://vmhost:99999", "https://vmhost.example.org:8443"),
        ("https://[::1", "https://vmhost.example.org:8443"),
    ],
)
def test_what_is_no_url_of_a_server_is_told_with_one_that_is(command: Any, typed: str, example: str) -> None:
    told = command.refused("events", "--server", typed)
    assert told == f"{typed!r} is no server: give its URL, such as {example}"


def test_a_server_without_a_profile_says_how_to_sign_in(command: Any) -> None:
    assert command.refused("events", "--server", "https://vmhost:8443") == (
        "no profile is for https://vmhost:8443: sign in with `forewarn login --server https://vmhost:8443 "
        "--client-id ID`"
    )
    assert command.refused("events", "--profile", "x") == "profile 'x' does not exist: `forewarn login` makes one"


def test_two_profiles_for_one_server_must_be_told_apart(signed: Any, elsewhere: Any, certificates: Any) -> None:
    words = ["--ca", str(certificates.ca.certificate), "--client-id", "ci", "--profile", "second"]
    assert signed("login", "--server", elsewhere.url, *words, typed=SECRET).exit_code == 0
    told = signed.refused("events", "--server", elsewhere.url)
    assert told == f"profiles lab, second are all for {elsewhere.url}: choose one with --profile"


def test_a_script_may_sign_in_with_what_its_environment_names(
    command: Any, elsewhere: Any, certificates: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(f"{SECRET}\n")
    env = {"FOREWARN_CLIENT_ID": "ci", "FOREWARN_SECRET_FILE": str(secret)}
    env |= {"FOREWARN_SERVER": elsewhere.url, "FOREWARN_CA": str(certificates.ca.certificate)}
    assert "client ci" in command.good("whoami", **env)
    half = env | {"FOREWARN_SECRET_FILE": ""}
    assert "belong together: give both or neither" in command.refused("whoami", **half)


def test_one_sign_in_serves_a_whole_command(signed: Any, elsewhere: Any) -> None:
    elsewhere.will_say(json_reply({"seq": 1, "entries": []}), json_reply(CLOCK), json_reply({"seq": 1, "entries": []}))
    signed.good("clock", "advance", "1m", "--profile", "lab")
    assert len(elsewhere.requests) == 3
    assert [form["grant_type"] for form in elsewhere.sign_ins] == ["client_credentials"]
    assert elsewhere.sign_ins[0]["scope"] == f"{elsewhere.url}/.default"


def api(server: Any, certificates: Any, **more: str) -> ApiClient:
    ca = str(certificates.ca.certificate)
    return ApiClient(
        RemoteTransport(Profile(**{"server": server.url, "client_id": "ci", "secret": SECRET, "ca": ca, **more}))
    )


def test_whoever_watches_signs_in_again_when_the_token_counts_no_longer(elsewhere: Any, certificates: Any) -> None:
    elsewhere.good_for = 2
    asking = api(elsewhere, certificates)
    for _ in range(5):
        assert asking.get("access", "me")["name"] == "client ci"
    assert (len(elsewhere.requests), len(elsewhere.sign_ins)) == (5, 3)


@pytest.mark.parametrize("lifetime_s", [0, "0", "nonsense", None])
def test_a_token_that_says_it_has_run_out_is_not_sent_again(
    elsewhere: Any, certificates: Any, lifetime_s: object
) -> None:
    elsewhere.lifetime_s = lifetime_s
    asking = api(elsewhere, certificates)
    asking.get("access", "me")
    asking.get("access", "me")
    assert len(elsewhere.sign_ins) == 2


@pytest.mark.parametrize(("lifetime_s", "lasts_s"), [(3600, 3540), (100, 50), (0, 0)])
def test_a_token_is_renewed_before_it_runs_out(lifetime_s: float, lasts_s: float) -> None:
    token = BearerToken(text="x", issued_at=1000, lifetime_s=lifetime_s)
    assert token.is_valid_at(1000 + lasts_s - 0.1) is (lasts_s > 0)
    assert not token.is_valid_at(1000 + lasts_s)
    assert not token.is_valid_at(999), "the clock was set back"


def test_a_new_token_that_is_refused_is_not_tried_for_ever(signed: Any, elsewhere: Any) -> None:
    elsewhere.good_for = 0
    assert signed.refused("events", "--profile", "lab") == "a sentence about Unauthenticated"
    assert len(elsewhere.sign_ins) == 1


def test_what_is_forbidden_is_told_and_exits_with_2(signed: Any, elsewhere: Any) -> None:
    elsewhere.will_say(json_reply({"error": {"code": "Forbidden", "message": "client ci may not"}}, status=403))
    assert signed.refused("events", "--profile", "lab") == "client ci may not"
    assert '"code":"Forbidden"' in signed.refused("events", "--profile", "lab", "--json")


def test_tokens_may_come_from_an_issuer_somewhere_else(
    signed: Any, elsewhere: Any, tls: ssl.SSLContext, certificates: Any
) -> None:
    with type(elsewhere)(tls) as issuer:
        elsewhere.issuer = f"{issuer.url}/adfs"
        issuer.uses = elsewhere.uses
        assert signed.good("whoami", "--profile", "lab")
        assert [form["scope"] for form in issuer.sign_ins] == [f"{elsewhere.url}/.default"]
        assert elsewhere.sign_ins == []
        asking = api(elsewhere, certificates, issuer=f"{issuer.url}/adfs", scope="forewarn")
        asking.get("access", "me")
        assert issuer.sign_ins[-1]["scope"] == "forewarn"


def test_a_secret_is_never_sent_without_tls(signed: Any, elsewhere: Any) -> None:
    with ScriptedServer(REPLY) as plain:
        elsewhere.issuer = plain.url
        assert "is no server: give its URL, such as https://" in signed.refused("events", "--profile", "lab")
        assert plain.requests == []


def test_a_certificate_that_is_not_trusted_is_told_with_the_remedy(
    command: Any, elsewhere: Any, tmp_path: Path
) -> None:
    other = ServiceCertificates.load_or_create(tmp_path / "other", (), read_real_time()).ca.certificate
    for ca in ([], ["--ca", str(other)]):
        result = command("login", "--server", elsewhere.url, "--client-id", "ci", *ca, typed=SECRET)
        assert result.exit_code == 2
        assert f"the certificate of {elsewhere.url} is not trusted (" in result.stderr
        assert "get its CA with `forewarn ca export` on the server" in result.stderr
    assert elsewhere.sign_ins == []


def test_a_certificate_for_other_names_is_told(command: Any, certificates: Any, tmp_path: Path) -> None:
    ca = certificates.ca
    authority = CertificateAuthority(
        certificate=read_certificate(ca.certificate), key=parse_private_key(ca.key.read_bytes(), ca.key)
    )  # type: ignore[arg-type]
    key = new_ec_key()
    write_key(tmp_path / "key", key)
    write_certificate(tmp_path / "pem", issue_server_certificate(authority, key, ["other.localhost"], read_real_time()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    with ScriptedServer(REPLY, tls=context) as server:
        words = ["login", "--server", server.url, "--client-id", "ci", "--ca", str(ca.certificate)]
        result = command(*words, typed=SECRET)
    assert result.exit_code == 2
    assert f"the certificate of {server.url} is for other names: " in result.stderr
    assert "console_names" in result.stderr


def test_a_server_that_speaks_no_tls_is_told(command: Any) -> None:
    with ScriptedServer(REPLY) as server:
        url = server.url.replace("http://", "https://")
        result = command("login", "--server", url, "--client-id", "ci", typed=SECRET)
    assert result.exit_code == 2
    assert f"{url} does not speak TLS as we do" in result.stderr


def test_a_server_that_is_no_forewarn_is_told(command: Any, tls: ssl.SSLContext, certificates: Any) -> None:
    with ScriptedServer(ScriptedReply(status=404), json_reply({}), tls=tls) as server:
        words = ["login", "--server", server.url, "--client-id", "ci", "--ca", str(certificates.ca.certificate)]
        assert "answers 404, so this is no forewarn service or issuer" in command(*words, typed=SECRET).stderr
        assert "does not say where to sign in, so it is no forewarn service" in command(*words, typed=SECRET).stderr


@pytest.mark.parametrize(
    "replies",
    [
        [json_reply([])],
        [json_reply({"authentication": 5})],
        [json_reply({"authentication": {"loginEndpoint": 5, "audiences": {}}})],
        [json_reply({"authentication": {"loginEndpoint": "https://[", "audiences": 5}})],
        [json_reply({"authentication": {"loginEndpoint": "https://a..b", "audiences": []}})],
        [KNOWN, ScriptedReply(body=b"<html>")],
        [KNOWN, json_reply({"token_endpoint": 5})],
        [KNOWN, json_reply({"token_endpoint": "nowhere"})],
        [KNOWN, json_reply({"token_endpoint": "ISSUER/a b"})],
        [KNOWN, json_reply({"token_endpoint": "ISSUER/t"}), json_reply({"access_token": None, "expires_in": 1})],
        [KNOWN, json_reply({"token_endpoint": "ISSUER/t"}), json_reply({"access_token": "a\r\nb", "expires_in": 1})],
        [KNOWN, json_reply({"token_endpoint": "ISSUER/t"}), ScriptedReply(status=503)],
        [
            KNOWN,
            json_reply({"token_endpoint": "ISSUER/t"}),
            json_reply({"access_token": "x"}),
            ScriptedReply(status=302),
        ],
    ],
)
def test_a_server_that_says_nonsense_is_told_in_a_sentence(
    command: Any, tls: ssl.SSLContext, certificates: Any, replies: list[ScriptedReply]
) -> None:
    with Nonsense(*replies, tls=tls) as server:
        words = ["login", "--server", server.url, "--client-id", "ci", "--ca", str(certificates.ca.certificate)]
        result = command(*words, typed=SECRET)
    assert result.exit_code in (1, 2, 3)
    assert len(result.stderr.splitlines()) == 1
    assert SECRET not in result.output


class Nonsense(ScriptedServer):
    """Its replies may name the server itself as ISSUER."""

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        reply = super().next_reply(request)
        return replace(reply, body=reply.body.replace(b"ISSUER", self.url.encode()))


def test_a_server_that_is_away_exits_with_3(signed: Any, elsewhere: Any) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        result = signed("login", "--server", url, "--client-id", "ci", typed=SECRET)
    assert result.exit_code == 3
    assert result.stderr.startswith(f"no forewarn service answers at {url} (Connection refused): ")
    elsewhere.will_say(ScriptedReply(resets=True))
    told = signed.refused("events", "--profile", "lab", code=3)
    assert told == f"the forewarn service at {elsewhere.url} broke off its answer: try again"


def test_a_ca_that_cannot_be_used_is_told(command: Any, elsewhere: Any, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for file, why in (("nothing", "does not exist"), ("junk", "cannot be used (")):
        words = ["login", "--server", elsewhere.url, "--client-id", "ci", "--ca", str(tmp_path / file)]
        result = command(*words, typed=SECRET)
        assert result.exit_code == 2
        assert f"CA file {str(tmp_path / file)!r} {why}" in result.stderr


HERE = {
    "up": [], "serve": [], "sockets": [], "restore": [__file__], "vm run": ["web", "--", "true"], "vm shell": ["web"],
    "ca": [], "env": [], "record": [], "guest events": [], "completion": ["bash"],
}  # fmt: skip


@pytest.mark.parametrize("name", HERE)
def test_what_works_on_this_machine_only_says_so(signed: Any, elsewhere: Any, name: str) -> None:
    told = f"`forewarn {name}` works on this machine only: leave --profile out, or run it where the service is"
    assert signed.refused(*name.split(), "--profile", "lab", *HERE[name]) == told
    before = signed.refused("--server", elsewhere.url, *name.split(), *HERE[name])
    assert before == told.replace("--profile", "--server")


def test_what_works_on_this_machine_only_does_not_mind_the_environment(signed: Any) -> None:
    for words in (["env"], ["ca"]):
        assert str(signed.data) in signed.refused(*words, code=3 if words == ["env"] else 2, FOREWARN_PROFILE="lab")


def test_a_backup_is_written_where_the_service_runs(signed: Any, elsewhere: Any) -> None:
    assert signed.refused("backup", "lab.db", "--profile", "lab") == (
        f"the service at {elsewhere.url} writes the backup where it runs, so 'lab.db' could be anywhere: "
        "give an absolute path"
    )
    elsewhere.will_say(json_reply({"path": "/srv/lab.db", "bytes": 4096}))
    told = signed.good("backup", "/srv/lab.db", "--profile", "lab")
    assert told == f"/srv/lab.db on {elsewhere.url} holds the whole store, 4,096 bytes.\n"


def test_the_doctor_says_which_service_answered(signed: Any, elsewhere: Any) -> None:
    elsewhere.will_say(json_reply({"checks": []}))
    assert f"it answers at {elsewhere.url}" in signed.good("doctor", "--profile", "lab")


@pytest.mark.parametrize("missing", ["msgspec", "cryptography", "starlette"])
def test_a_service_elsewhere_needs_nothing_of_the_server_extra(signed: Any, elsewhere: Any, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from forewarn.cli import main; sys.exit(main())"
    env = {**os.environ, "XDG_CONFIG_HOME": str(signed.data / "config")}
    words = [sys.executable, "-c", code, "--profile", "lab", "whoami"]
    result = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert elsewhere.url in result.stdout
