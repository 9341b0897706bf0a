"""Prints the environment variables that make az and Azure's SDKs use the service on this machine.

Values are quoted for bash, fish or PowerShell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import vm_names
from forewarn.cli.credentials import read_secret_file
from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.errors import Refused

_POWERSHELL_SINGLE_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")  # all of these end a string in PowerShell


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShellSyntax:
    quote: Callable[[str], str]  # the text as one word that the shell does not interpret
    assignment: str  # a format with the fields `name` and `value`, which is quoted already; without a line end

    def variable(self, name: str, value: str) -> str:
        return self.assignment.format(name=name, value=self.quote(value))


def shell_comment(text: str) -> str:
    """Return the text as a comment line for any of the shells; a line break would begin a command."""
    return f"# {''.join(char if char.isprintable() else '?' for char in text)}"


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quote_powershell(text: str) -> str:
    return f"'{_POWERSHELL_SINGLE_QUOTES.sub(lambda quote: quote[0] * 2, text)}'"


SHELLS = {
    "bash": _ShellSyntax(quote=shlex.quote, assignment="export {name}={value}"),
    "fish": _ShellSyntax(quote=_quote_fish, assignment="set -gx {name} {value}"),
    "powershell": _ShellSyntax(quote=_quote_powershell, assignment="$env:{name} = {value}"),
}

EnvironmentVariables = dict[str, str]


@click.command()
@click.option(
    "--shell",
    "shell_name",
    type=click.Choice(list(SHELLS)),
    default="bash",
    show_default=True,
    help="Print for this shell.",
)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Use this VM's managed identity, if allowed.")
@click.option("--with-secret", is_flag=True, help="Include the secret for DefaultAzureCredential.")
@local_command
def env(call: Invocation, shell_name: str, vm: str | None, with_secret: bool) -> None:
    """Print environment variables for az and Azure's SDKs.

    \b
    bash, zsh   eval "$(forewarn env)"
    fish        forewarn env --shell fish | source
    powershell  forewarn env --shell powershell | Out-String | Invoke-Expression
    """
    info = call.api.get("service", query={"vm": vm})
    api = info.get("api")
    if not api:
        raise Refused(
            f"the service {call.api.location} does not serve HTTPS: give it an address with the setting 'api'"
        )
    shell = SHELLS[shell_name]
    identity = _identity_variables(info, vm)
    variables = {
        **_ca_variables(api),
        **_azure_variables(call.data, api),
        **_sign_in_variables(api),
        **identity,
    }
    variables |= _credential_variables(api) if with_secret else {}
    remarks = [*_remarks(api, shell), *(() if identity else _missing_identity_remarks(info))]
    if call.output.as_json:
        call.output.print_json({"variables": variables, "remarks": remarks})
        return
    click.echo("\n".join(_shell_lines(shell, variables, remarks)))


def _shell_lines(shell: _ShellSyntax, variables: EnvironmentVariables, remarks: list[str]) -> Iterator[str]:
    yield from (shell.variable(name, value) for name, value in variables.items())
    yield from map(shell_comment, remarks)


def _ca_variables(api: JsonObject) -> EnvironmentVariables:
    """Trust the service's CA besides the system's; empty if the user provides the certificate."""
    if not api["ca"]:
        return {}
    with require_server_extra("env"):
        from forewarn.auth.certificates import write_ca_bundle

    ca = Path(api["ca"])
    bundle = str(write_ca_bundle(ca.parent))
    return {"REQUESTS_CA_BUNDLE": bundle, "SSL_CERT_FILE": bundle, "NODE_EXTRA_CA_CERTS": str(ca)}


def _azure_variables(data: Path, api: JsonObject) -> EnvironmentVariables:
    """Give az its own configuration without other clouds, so that no mistake reaches the real one."""
    return {
        "AZURE_CONFIG_DIR": str(data / "azure"),
        "ARM_CLOUD_METADATA_URL": f"{api['url']}/metadata/endpoints-list",
        "AZURE_CORE_COLLECT_TELEMETRY": "0",
    }


def _sign_in_variables(api: JsonObject) -> EnvironmentVariables:
    """The ids that `az login` needs, and the file of the secret, which stays in that file."""
    if api.get("issuer"):
        return {}
    return {
        "FOREWARN_TENANT_ID": api["tenant_id"],
        "FOREWARN_CLIENT_ID": api["client_id"],
        "FOREWARN_SECRET_FILE": api["admin_secret"],
    }


def _identity_variables(info: JsonObject, vm: str | None) -> EnvironmentVariables:
    if not info.get("identity_on_loopback"):
        if vm is not None:
            raise Refused(_NO_IDENTITY_ON_LOOPBACK)
        return {}
    endpoint = info["endpoint"]
    if vm is not None and not endpoint:
        raise Refused(f"VM {vm!r} has no address on this machine: request its token from inside the VM")
    return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": endpoint} if endpoint else {}


_NO_IDENTITY_ON_LOOPBACK = (
    "managed identities are not served on loopback, where any program could impersonate a VM: use "
    "`forewarn vm run VM`, or start the service with the setting identity_on_loopback = true"
)


def _missing_identity_remarks(info: JsonObject) -> list[str]:
    if not info.get("identity_on_loopback"):
        return [f"AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: {_NO_IDENTITY_ON_LOOPBACK}"]
    return ["AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: no VM has an address on this machine"]


def _credential_variables(api: JsonObject) -> EnvironmentVariables:
    if api.get("issuer"):
        raise Refused(
            f"the service accepts tokens of {api['issuer']} and has no secret: leave --with-secret out, and "
            "sign in with a client of that issuer"
        )
    return {
        "AZURE_AUTHORITY_HOST": api["url"],
        "AZURE_TENANT_ID": "adfs",  # with this name clients skip the discovery of the authority
        "AZURE_CLIENT_ID": api["client_id"],
        "AZURE_CLIENT_SECRET": read_secret_file(Path(api["admin_secret"])),
    }


def _remarks(api: JsonObject, shell: _ShellSyntax) -> list[str]:
    trust = [] if api["ca"] else ["The service uses your own certificate: your system must trust its CA."]
    if api.get("issuer"):
        return [*trust, f"Sign in with a client of {api['issuer']}."]
    secret = shell.quote(f"@{api['admin_secret']}")
    tenant, client_id = api["tenant_id"], shell.quote(api["client_id"])
    return [*trust, f"az login --service-principal -u {client_id} -p {secret} --tenant {tenant}"]
