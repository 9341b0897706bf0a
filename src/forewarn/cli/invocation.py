"""What all commands share: the context of one run, common options, argument types and decorators.

The decorators say which service a command needs: none, the local one, a profile, or whichever the options select.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import click

from forewarn.cli.api_client import ApiClient
from forewarn.cli.credentials import Profile, ProfileFile, resolve_profile
from forewarn.cli.output import Output
from forewarn.cli.service_address import RemoteSelection, data_directory, select_remote_service
from forewarn.cli.transport import LocalTransport, RemoteTransport
from forewarn.duration import parse_duration
from forewarn.errors import NotFound, Rejected

CommandFunction = Callable[..., Any]


class Invocation:
    """One run of the command; its common options may stand before or after the command's name."""

    def __init__(self) -> None:
        self.as_json = False
        self.given_data: str | None = None
        self.given_server = ""
        self.given_profile = ""
        self._is_local = False

    @property
    def data(self) -> Path:
        return data_directory(self.given_data, os.environ)

    @cached_property
    def output(self) -> Output:
        return Output(as_json=self.as_json, program=self._command_prefix)

    @property
    def _command_prefix(self) -> str:
        """How to call us again from another terminal: what is on the PATH, else as we were called now."""
        name = "forewarn" if shutil.which("forewarn") or not sys.argv[0].endswith("forewarn") else sys.argv[0]
        given = {"--data": self.given_data, "--server": self.given_server, "--profile": self.given_profile}
        return " ".join([name, *(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value)])

    @property
    def remote_selection(self) -> RemoteSelection:
        """The service elsewhere that flags or the environment name; falsy for the one on this machine."""
        flags = RemoteSelection(server=self.given_server, profile=self.given_profile)
        if self._is_local:
            return flags
        return select_remote_service(flags, self.given_data, os.environ)

    @property
    def profiles(self) -> ProfileFile:
        return ProfileFile.from_environment(os.environ)

    @cached_property
    def remote_profile(self) -> Profile | None:
        """How the service is reached that is not on this machine; None where it is."""
        return resolve_profile(self.remote_selection, self.profiles, os.environ) if self.remote_selection else None

    @cached_property
    def api(self) -> ApiClient:
        if self.remote_profile is not None:
            return ApiClient(RemoteTransport(self.remote_profile))
        is_signed_in = self.profiles.path.exists() and not self._is_local
        return ApiClient(LocalTransport(self.data, ", or name one elsewhere with --profile" if is_signed_in else ""))

    def require_local(self, command: str) -> None:
        """This command is for this machine: what the environment names elsewhere is for others, a flag is refused."""
        self._is_local = True
        if self.given_server or self.given_profile:
            flag = "--server" if self.given_server else "--profile"
            raise Rejected(f"`{command}` works on this machine only: leave {flag} out, or run it where the service is")


def _store_json_flag(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Invocation).as_json |= value


def _store_data_option(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_data = value or invocation.given_data


def _store_server_option(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_server = value or invocation.given_server


def _store_profile_option(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_profile = value or invocation.given_profile


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_store_json_flag, help="Answer in JSON, for programs."
)
data_option = click.option(
    "--data",
    metavar="DIR",
    expose_value=False,
    callback=_store_data_option,
    help="The service's data directory.  [env: FOREWARN_DATA]",
)


def remote_options(function: CommandFunction, *, hidden: bool = False) -> CommandFunction:
    """Which service elsewhere is meant."""
    options = (
        click.option(
            "--server",
            metavar="URL",
            expose_value=False,
            callback=_store_server_option,
            hidden=hidden,
            help="A service elsewhere, https://HOST:PORT.  [env: FOREWARN_SERVER]",
        ),
        click.option(
            "--profile",
            metavar="NAME",
            expose_value=False,
            callback=_store_profile_option,
            hidden=hidden,
            help="A service elsewhere, as `forewarn login` kept it.  [env: FOREWARN_PROFILE]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _with_invocation(function: CommandFunction, *, is_here: bool) -> CommandFunction:
    @wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        call = context.ensure_object(Invocation)
        if is_here:
            call.require_local(context.command_path)
        return function(call, *args, **kwargs)

    return json_option(given)


def offline_command(function: CommandFunction) -> CommandFunction:
    """A command that shows something and asks no service: it is given its Invocation, and knows --json."""
    return remote_options(_with_invocation(function, is_here=True), hidden=True)


def local_command(function: CommandFunction) -> CommandFunction:
    """A command for the service on this machine: it knows --data too."""
    return data_option(offline_command(function))


def profile_command(function: CommandFunction) -> CommandFunction:
    """A command about services elsewhere themselves."""
    return remote_options(_with_invocation(function, is_here=False))


def service_command(function: CommandFunction) -> CommandFunction:
    """A command that asks the service, wherever that is."""
    return data_option(remote_options(_with_invocation(function, is_here=False)))


def non_empty_name(text: str) -> str:
    """The type of an argument that names something."""
    if not text.strip():
        raise click.BadParameter("the name is empty: write one (in a script, look for a variable that is not set)")
    return text


def duration(text: str) -> float:
    """The type of an option or argument."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def resource_group_id(call: Invocation, group: str) -> str:
    """The id of a resource group, as its VMs tell it."""
    everywhere = call.api.get("fleet")["vms"]
    vms = [vm for vm in everywhere if vm["resource_group"].casefold() == group.casefold()]
    found = sorted({f"/subscriptions/{vm['subscription_id']}/resourceGroups/{vm['resource_group']}" for vm in vms})
    if not found:
        groups = ", ".join(sorted({vm["resource_group"] for vm in everywhere})) or "none"
        raise NotFound(f"no VM is in a resource group {group!r}: VMs are in {groups}; or give its id with --over")
    if len(found) > 1:
        raise Rejected(
            f"resource group {group!r} is in several subscriptions: give one of {', '.join(found)} to --over"
        )
    return found[0]


@contextmanager
def require_server_extra(command: str) -> Iterator[None]:
    """Around the imports of a command that needs the [server] extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "forewarn"):
            raise
        raise Rejected(
            f"`forewarn {command}` needs {missing}, which is not installed: pip install 'forewarn[server]'"
        ) from error
