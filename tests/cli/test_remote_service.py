"""Remote services over TLS: which one is selected, signing in, and failures on the way."""

import os
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from forewarn.auth import ServiceCertificates
from forewarn.auth.certificate_authority import CertificateAuthority, issue_server_certificate, new_ec_key
from forewarn.auth.pem import parse_private_key, read_certificate, write_certificate, write_key
from forewarn.base.clock import read_real_time
from forewarn.cli.api_client import ApiClient
from forewarn.cli.credentials import Profile
from forewarn.cli.transport import BearerToken, RemoteTransport
from forewarn.protocol.http_message import HttpRequest
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

SECRET = "it's-a-$ecret-of-the-administrator"
REPLY = json_reply({"name": "client ci", "id": "client:ci", "grants": []})
KNOWN = json_reply({"authentication": {"loginEndpoint": "ISSUER/adfs", "audiences": ["x"]}})
CLOCK = {"now": "2026-01-05T12:00:00.000Z", "speed": 1.0, "lab": True}


def paths(server: Any) -> list[str]:
    return [request.target for request in server.requests]


def test_a_command_calls_the_service_of_the_profile_or_url(signed_in: Any, remote_service: Any) -> None:
    for arguments in (["--profile", "lab"], ["--server", remote_service.url], ["--server", f"{remote_service.url}/"]):
        assert f"service  {remote_service.url}" in signed_in.good("whoami", *arguments)
        assert f"service  {remote_service.url}" in signed_in.good(*arguments, "whoami")
    assert remote_service.url in signed_in.good("whoami", FOREWARN_PROFILE="lab")
    assert remote_service.url in signed_in.good("whoami", FOREWARN_SERVER=remote_service.url)
    assert set(paths(remote_service)) == {"/forewarn/v1/access/me"}


def test_a_remote_service_is_never_selected_by_default(signed_in: Any) -> None:
    assert signed_in.refused("events", code=3) == (
        f"no forewarn service answers in {signed_in.data}: start one with `forewarn up`, "
        "or choose a remote one with --profile"
    )


def test_options_override_the_environment(signed_in: Any, remote_service: Any) -> None:
    assert "no forewarn service answers in /nowhere" in signed_in.refused(
        "events", "--data", "/nowhere", code=3, FOREWARN_PROFILE="lab"
    )
    assert remote_service.url in signed_in.good(
        "whoami", "--profile", "lab", FOREWARN_SERVER="https://other.example.org"
    )


def test_two_services_at_once_are_refused(signed_in: Any, remote_service: Any) -> None:
    assert signed_in.refused("events", "--data", "x", "--server", remote_service.url) == (
        "--data and --server select different services: give only one of them"
    )
    message = signed_in.refused("events", "--profile", "lab", "--server", "https://other.example.org")
    assert message.startswith(f"profile 'lab' is for {remote_service.url}, not for https://other.example.org: ")
    assert remote_service.sign_ins == []


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
def test_an_invalid_server_url_is_refused_with_a_valid_example(command: Any, typed: str, example: str) -> None:
    message = command.refused("events", "--server", typed)
    assert message == f"{typed!r} is not a server's URL: give one such as {example}"


def test_a_server_without_a_profile_says_how_to_sign_in(command: Any) -> None:
    assert command.refused("events", "--server", "https://vmhost:8443") == (
        "no profile is for https://vmhost:8443: sign in with `forewarn login --server https://vmhost:8443 "
        "--client-id ID`"
    )
    assert command.refused("events", "--profile", "x") == "profile 'x' does not exist: create one with `forewarn login`"


def test_two_profiles_for_one_server_need_profile(signed_in: Any, remote_service: Any, certificates: Any) -> None:
    arguments = ["--ca", str(certificates.ca.certificate), "--client-id", "ci", "--profile", "second"]
    assert signed_in("login", "--server", remote_service.url, *arguments, typed=SECRET).exit_code == 0
    message = signed_in.refused("events", "--server", remote_service.url)
    assert message == f"profiles lab, second are all for {remote_service.url}: choose one with --profile"


def test_a_script_may_sign_in_with_its_environment(
    command: Any, remote_service: Any, certificates: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(f"{SECRET}\n")
    env = {"FOREWARN_CLIENT_ID": "ci", "FOREWARN_SECRET_FILE": str(secret)}
    env |= {"FOREWARN_SERVER": remote_service.url, "FOREWARN_CA": str(certificates.ca.certificate)}
    assert "client ci" in command.good("whoami", **env)
    half = env | {"FOREWARN_SECRET_FILE": ""}
    assert "go together: set both or neither" in command.refused("whoami", **half)


def test_one_sign_in_serves_a_whole_command(signed_in: Any, remote_service: Any) -> None:
    page = json_reply({"seq": 1, "entries": []})
    over = json_reply({"state": "succeeded", "events": [], "skipped": []})
    replies = (json_reply({"request": {"id": "r"}}), page, over, json_reply(CLOCK), page)
    remote_service.set_replies(*replies)
    signed_in.good("restart", "web", "--wait", "--profile", "lab")
    assert len(remote_service.requests) == len(replies)
    assert [form["grant_type"] for form in remote_service.sign_ins] == ["client_credentials"]
    assert remote_service.sign_ins[0]["scope"] == f"{remote_service.url}/.default"


def api(server: Any, certificates: Any, **more: str) -> ApiClient:
    ca = str(certificates.ca.certificate)
    return ApiClient(
        RemoteTransport(Profile(**{"server": server.url, "client_id": "ci", "secret": SECRET, "ca": ca, **more}))
    )


def test_a_long_running_command_signs_in_again_when_its_token_is_refused(
    remote_service: Any, certificates: Any
) -> None:
    remote_service.max_uses_per_token = 2
    asking = api(remote_service, certificates)
    for _ in range(5):
        assert asking.get("access", "me")["name"] == "client ci"
    assert (len(remote_service.requests), len(remote_service.sign_ins)) == (5, 3)


@pytest.mark.parametrize("lifetime_s", [0, "0", "nonsense", None])
def test_an_expired_token_is_not_sent_again(remote_service: Any, certificates: Any, lifetime_s: object) -> None:
    remote_service.lifetime_s = lifetime_s
    asking = api(remote_service, certificates)
    asking.get("access", "me")
    asking.get("access", "me")
    assert len(remote_service.sign_ins) == 2


@pytest.mark.parametrize(("lifetime_s", "lasts_s"), [(3600, 3540), (100, 50), (0, 0)])
def test_a_token_is_renewed_before_it_expires(lifetime_s: float, lasts_s: float) -> None:
    token = BearerToken(text="x", issued_at=1000, lifetime_s=lifetime_s)
    assert token.is_valid_at(1000 + lasts_s - 0.1) is (lasts_s > 0)
    assert not token.is_valid_at(1000 + lasts_s)
    assert not token.is_valid_at(999), "the clock was set back"


def test_a_refused_new_token_is_not_renewed_again(signed_in: Any, remote_service: Any) -> None:
    remote_service.max_uses_per_token = 0
    assert signed_in.refused("events", "--profile", "lab") == "a sentence about Unauthenticated"
    assert len(remote_service.sign_ins) == 1


def test_a_forbidden_request_exits_with_2(signed_in: Any, remote_service: Any) -> None:
    remote_service.set_replies(json_reply({"error": {"code": "Forbidden", "message": "client ci may not"}}, status=403))
    assert signed_in.refused("events", "--profile", "lab") == "client ci may not"
    assert '"code":"Forbidden"' in signed_in.refused("events", "--profile", "lab", "--json")


def test_tokens_may_come_from_an_external_issuer(
    signed_in: Any, remote_service: Any, tls: ssl.SSLContext, certificates: Any
) -> None:
    with type(remote_service)(tls) as issuer:
        remote_service.issuer = f"{issuer.url}/adfs"
        issuer.uses = remote_service.uses
        assert signed_in.good("whoami", "--profile", "lab")
        assert [form["scope"] for form in issuer.sign_ins] == [f"{remote_service.url}/.default"]
        assert remote_service.sign_ins == []
        asking = api(remote_service, certificates, issuer=f"{issuer.url}/adfs", scope="forewarn")
        asking.get("access", "me")
        assert issuer.sign_ins[-1]["scope"] == "forewarn"


def test_a_secret_is_never_sent_without_tls(signed_in: Any, remote_service: Any) -> None:
    with ScriptedServer(REPLY) as plain:
        remote_service.issuer = plain.url
        assert "is not a server's URL: give one such as https://" in signed_in.refused("events", "--profile", "lab")
        assert plain.requests == []


def test_an_untrusted_certificate_is_refused_with_the_remedy(command: Any, remote_service: Any, tmp_path: Path) -> None:
    other = ServiceCertificates.load_or_create(tmp_path / "other", (), read_real_time()).ca.certificate
    for ca in ([], ["--ca", str(other)]):
        result = command("login", "--server", remote_service.url, "--client-id", "ci", *ca, typed=SECRET)
        assert result.exit_code == 2
        assert f"the certificate of {remote_service.url} is not trusted (" in result.stderr
        assert "export its CA with `forewarn ca export` on the server" in result.stderr
    assert remote_service.sign_ins == []


def test_a_certificate_for_other_names_is_refused(command: Any, certificates: Any, tmp_path: Path) -> None:
    ca = certificates.ca
    ca_key = parse_private_key(ca.key.read_bytes(), ca.key)
    assert isinstance(ca_key, EllipticCurvePrivateKey)
    authority = CertificateAuthority(certificate=read_certificate(ca.certificate), key=ca_key)
    key = new_ec_key()
    write_key(tmp_path / "key", key)
    write_certificate(tmp_path / "pem", issue_server_certificate(authority, key, ["other.localhost"], read_real_time()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    with ScriptedServer(REPLY, tls=context) as server:
        arguments = ["login", "--server", server.url, "--client-id", "ci", "--ca", str(ca.certificate)]
        result = command(*arguments, typed=SECRET)
    assert result.exit_code == 2
    assert f"the certificate of {server.url} is for other names: " in result.stderr
    assert "api_names" in result.stderr


def test_a_server_without_tls_is_refused(command: Any) -> None:
    with ScriptedServer(REPLY) as server:
        url = server.url.replace("http://", "https://")
        result = command("login", "--server", url, "--client-id", "ci", typed=SECRET)
    assert result.exit_code == 2
    assert f"TLS handshake with {url} failed" in result.stderr


def test_a_server_that_is_not_forewarn_is_refused(command: Any, tls: ssl.SSLContext, certificates: Any) -> None:
    with ScriptedServer(ScriptedReply(status=404), json_reply({}), tls=tls) as server:
        arguments = ["login", "--server", server.url, "--client-id", "ci", "--ca", str(certificates.ca.certificate)]
        assert (
            "answered status 404, so it is not a forewarn service or issuer" in command(*arguments, typed=SECRET).stderr
        )
        assert "names no issuer, so it is not a forewarn service" in command(*arguments, typed=SECRET).stderr


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
def test_an_invalid_answer_is_reported_in_one_sentence(
    command: Any, tls: ssl.SSLContext, certificates: Any, replies: list[ScriptedReply]
) -> None:
    with SelfNamingServer(*replies, tls=tls) as server:
        arguments = ["login", "--server", server.url, "--client-id", "ci", "--ca", str(certificates.ca.certificate)]
        result = command(*arguments, typed=SECRET)
    assert result.exit_code in (1, 2, 3)
    assert len(result.stderr.splitlines()) == 1
    assert SECRET not in result.output


class SelfNamingServer(ScriptedServer):
    """A server whose replies may contain its own URL, written as ISSUER."""

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        reply = super().next_reply(request)
        return replace(reply, body=reply.body.replace(b"ISSUER", self.url.encode()))


def test_a_server_that_does_not_answer_exits_with_3(signed_in: Any, remote_service: Any) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        result = signed_in("login", "--server", url, "--client-id", "ci", typed=SECRET)
    assert result.exit_code == 3
    assert result.stderr.startswith(f"no forewarn service answers at {url} (Connection refused): ")
    remote_service.set_replies(ScriptedReply(resets=True))
    message = signed_in.refused("events", "--profile", "lab", code=3)
    assert message == f"the connection to the forewarn service at {remote_service.url} was lost: try again"


def test_an_unusable_ca_file_is_refused(command: Any, remote_service: Any, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for file, why in (("nothing", "does not exist"), ("junk", "cannot be used (")):
        arguments = ["login", "--server", remote_service.url, "--client-id", "ci", "--ca", str(tmp_path / file)]
        result = command(*arguments, typed=SECRET)
        assert result.exit_code == 2
        assert f"CA file {str(tmp_path / file)!r} {why}" in result.stderr


HERE = {
    "up": [], "serve": [], "sockets": [], "restore": [__file__], "vm run": ["web", "--", "true"], "vm shell": ["web"],
    "ca": [], "env": [], "record": [], "guest events": [], "completion": ["bash"],
}  # fmt: skip


@pytest.mark.parametrize("name", HERE)
def test_a_local_command_refuses_a_remote_service(signed_in: Any, remote_service: Any, name: str) -> None:
    message = f"`forewarn {name}` works on this machine only: leave --profile out, or run it where the service is"
    assert signed_in.refused(*name.split(), "--profile", "lab", *HERE[name]) == message
    before = signed_in.refused("--server", remote_service.url, *name.split(), *HERE[name])
    assert before == message.replace("--profile", "--server")


def test_a_local_command_ignores_a_remote_service_in_the_environment(signed_in: Any) -> None:
    for arguments in (["env"], ["ca"]):
        assert str(signed_in.data) in signed_in.refused(
            *arguments, code=3 if arguments == ["env"] else 2, FOREWARN_PROFILE="lab"
        )


def test_a_backup_is_written_on_the_services_machine(signed_in: Any, remote_service: Any) -> None:
    assert signed_in.refused("backup", "lab.db", "--profile", "lab") == (
        f"the service at {remote_service.url} writes the backup on its own machine, where 'lab.db' is ambiguous: "
        "give an absolute path"
    )
    remote_service.set_replies(json_reply({"path": "/srv/lab.db", "bytes": 4096}))
    message = signed_in.good("backup", "/srv/lab.db", "--profile", "lab")
    assert message == f"/srv/lab.db on {remote_service.url} holds the whole store, 4,096 bytes.\n"


def test_doctor_shows_which_service_answered(signed_in: Any, remote_service: Any) -> None:
    remote_service.set_replies(json_reply({"checks": []}))
    assert f"it answers at {remote_service.url}" in signed_in.good("doctor", "--profile", "lab")


@pytest.mark.parametrize("missing", ["msgspec", "cryptography", "starlette"])
def test_a_remote_service_needs_no_server_extra(signed_in: Any, remote_service: Any, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from forewarn.cli import main; sys.exit(main())"
    env = {**os.environ, "XDG_CONFIG_HOME": str(signed_in.data / "config")}
    arguments = [sys.executable, "-c", code, "--profile", "lab", "whoami"]
    result = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert remote_service.url in result.stdout


def test_a_newer_service_may_say_more_about_a_problem(signed_in: Any, remote_service: Any) -> None:
    problem = {"line": 3, "message": "host 'h9' is unknown", "remedy": "declare it", "column": 7}
    error = {"code": "Rejected", "message": "the file is wrong", "problems": [problem]}
    remote_service.set_replies(json_reply({"error": error}, status=400))
    (signed_in.data / "fleet.toml").write_text("")
    message = signed_in.refused("fleet", "apply", str(signed_in.data / "fleet.toml"), "--yes", "--profile", "lab")
    assert "fleet.toml:3: host 'h9' is unknown: declare it" in message


def test_every_command_is_found_without_the_server_extra() -> None:
    missing = ["msgspec", "cryptography", "starlette", "httptools", "sqlalchemy", "jinja2", "jwt", "httpx2", "tomli"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "import click; from forewarn.cli.root_command import forewarn\n"
        "context = click.Context(forewarn)\n"
        "for name in forewarn.list_commands(context): forewarn.get_command(context, name)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
