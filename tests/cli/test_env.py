"""`forewarn env`: each shell that evaluates its output gets exactly the intended values."""

import json
import os
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.cli.env import SHELLS, shell_comment
from forewarn.cli.service_address import SOCKET_NAME
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

SECRET = "it's-a-$ecret-of-the-administrator"
AWKWARD = [
    "",
    "plain",
    "with space",
    "it's",
    'say "hi"',
    "$HOME `id` $(id)",
    "back\\slash\\",
    "a\nb",
    "ünïcødé’s",
    "; #x",
]


def evaluated(text: str, names: list[str]) -> dict[str, str]:
    """The variables of a real bash after it evaluated this text."""
    script = f'set -eu\neval "$TEXT"\nfor name in {" ".join(names)}; do printf "%s\\0" "${{!name}}"; done'
    env = {"PATH": os.environ["PATH"], "TEXT": text}
    result = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    return dict(zip(names, result.stdout.split("\0"), strict=False))


def read_fish(line: str) -> tuple[str, str]:
    """Reads an assignment as fish does: in single quotes only \\' and \\\\ are escapes (its manual, Quotes)."""
    match = re.fullmatch(r"set -gx (\w+) '((?:[^'\\]|\\.)*)'", line, re.DOTALL)
    assert match, line
    return match[1], re.sub(r"\\(['\\])", r"\1", match[2])


def read_powershell(line: str) -> tuple[str, str]:
    """Reads an assignment as PowerShell does: five kinds of quote end a string, doubled ones do not."""
    quote = "['\u2018\u2019\u201a\u201b]"
    match = re.fullmatch(rf"\$env:(\w+) = '((?:{quote}{{2}}|(?!{quote}).)*)'", line, re.DOTALL)
    assert match, line
    return match[1], re.sub(rf"({quote}){quote}", r"\1", match[2])


@pytest.mark.parametrize("value", AWKWARD)
def test_bash_gets_exactly_the_value(value: str) -> None:
    assert evaluated(SHELLS["bash"].variable("NAME", value), ["NAME"]) == {"NAME": value}


@given(st.text())
def test_fish_and_powershell_get_exactly_the_value(value: str) -> None:
    assert read_fish(SHELLS["fish"].variable("NAME", value)) == ("NAME", value)
    assert read_powershell(SHELLS["powershell"].variable("NAME", value)) == ("NAME", value)


@given(st.text())
def test_a_remark_is_always_one_line(text: str) -> None:
    assert shell_comment(text).startswith("# ")
    assert len(shell_comment(text).splitlines()) == 1


def variables(lab: Any, *arguments: str) -> dict[str, str]:
    found: dict[str, str] = lab.json("env", *arguments)["variables"]
    return found


def test_env_makes_a_shell_trust_the_lab_and_reach_no_other_cloud(lab: Any) -> None:
    expected = variables(lab)
    shell = evaluated(lab.good("env"), list(expected))
    assert shell == expected
    tls = lab.data / "tls"
    assert shell["REQUESTS_CA_BUNDLE"] == shell["SSL_CERT_FILE"] == str(tls / "ca-bundle.pem")
    assert shell["NODE_EXTRA_CA_CERTS"] == str(tls / "ca.pem")
    assert shell["AZURE_CONFIG_DIR"] == str(lab.data / "azure")
    assert shell["ARM_CLOUD_METADATA_URL"] == "https://localhost:8443/metadata/endpoints-list"
    assert shell["AZURE_CORE_COLLECT_TELEMETRY"] == "0"
    context = ssl.create_default_context(cafile=shell["SSL_CERT_FILE"])
    ours = ssl.PEM_cert_to_DER_cert((tls / "ca.pem").read_text())
    assert ours in context.get_ca_certs(binary_form=True)


@pytest.mark.parametrize(("shell", "read"), [("fish", read_fish), ("powershell", read_powershell)])
def test_other_shells_get_the_same_variables(lab: Any, shell: str, read: Any) -> None:
    lines = lab.good("env", "--shell", shell, "--with-secret").splitlines()
    settings = dict(read(line) for line in lines if not line.startswith("# "))
    assert settings == variables(lab, "--with-secret")


def test_env_prints_the_secret_only_with_with_secret(lab: Any) -> None:
    assert SECRET not in lab.good("env") + lab.good("env", "--json")
    shell = evaluated(lab.good("env", "--with-secret"), list(variables(lab, "--with-secret")))
    assert shell["AZURE_AUTHORITY_HOST"] == "https://localhost:8443"
    assert (shell["AZURE_TENANT_ID"], shell["AZURE_CLIENT_ID"]) == ("adfs", "admin")
    assert shell["AZURE_CLIENT_SECRET"] == SECRET


def test_a_remark_says_how_az_signs_in(lab: Any) -> None:
    tenant = "11111111-2222-3333-4444-555555555555"
    line = f"# az login --service-principal -u admin -p @{lab.data}/admin.secret --tenant {tenant}"
    assert line in lab.good("env").splitlines()


def test_env_offers_managed_identities_only_where_the_service_serves_them(lab: Any) -> None:
    assert "# AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: managed identities are not served" in lab.good("env")
    assert "any program could impersonate a VM" in lab.refused("env", "--vm", "web")


def test_env_takes_the_identity_of_the_given_vm(command: Any) -> None:
    console = {"url": "https://localhost:1", "ca": "", "admin_secret": "/s", "client_id": "admin", "tenant_id": "t"}

    def service(endpoint: str) -> ScriptedReply:
        return json_reply({"api": console, "identity_on_loopback": True, "endpoint": endpoint})

    with ScriptedServer(service("http://127.0.0.1:8254"), path=command.data / SOCKET_NAME):
        shown = command.json("env")
    assert shown["variables"]["AZURE_POD_IDENTITY_AUTHORITY_HOST"] == "http://127.0.0.1:8254"
    with ScriptedServer(service("http://127.0.0.3:8254"), path=_fresh(command)) as server:
        message = command.good("env", "--vm", "db-0")
        assert server.requests[-1].target == "/forewarn/v1/service?vm=db-0"
    assert "export AZURE_POD_IDENTITY_AUTHORITY_HOST=http://127.0.0.3:8254\n" in message
    with ScriptedServer(service(""), path=_fresh(command)):
        assert "has no address on this machine" in command.refused("env", "--vm", "db-0")


def _fresh(command: Any) -> Path:
    path: Path = command.data / SOCKET_NAME
    path.unlink()
    return path


def test_env_leaves_the_users_own_certificate_and_issuer_alone(command: Any) -> None:
    facts = {"url": "https://localhost:1", "ca": "", "admin_secret": "", "client_id": "", "tenant_id": "t"}
    view = json_reply({"api": {**facts, "issuer": "https://issuer.example.org"}, "identity_on_loopback": False})
    with ScriptedServer(view, path=command.data / SOCKET_NAME):
        shown = command.json("env")
        assert "has no secret: leave --with-secret out" in command.refused("env", "--with-secret")
    assert "REQUESTS_CA_BUNDLE" not in shown["variables"]
    assert "Sign in with a client of https://issuer.example.org." in shown["remarks"]
    assert "your system must trust its CA" in shown["remarks"][0]


def test_env_is_refused_by_a_service_without_https(command: Any) -> None:
    with ScriptedServer(json_reply({"api": None}), path=command.data / SOCKET_NAME):
        assert "does not serve HTTPS: give it an address with the setting 'api'" in command.refused("env")
        assert json.loads(command.refused("env", "--json"))["error"]["code"] == "Refused"
