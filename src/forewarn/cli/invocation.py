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

from forewarn.base.duration import parse_duration
from forewarn.cli.api_client import ApiClient, JsonObject
from forewarn.cli.credentials import Profile, ProfileFile, resolve_profile
from forewarn.cli.output import Output
from forewarn.cli.service_address import RemoteSelection, data_directory, select_remote_service
from forewarn.cli.transport import LocalTransport, RemoteTransport
from forewarn.errors import Rejected

CommandFunction = Callable[..., Any]


class Invocation:
    """One run of the command: its common options, its output, and the client of the selected service."""

    def __init__(self) -> None:
        self.as_json = False  # --json
        self.given_data: str | None = None  # --data
        self.given_server = ""  # --server
        self.given_profile = ""  # --profile
        self.is_confirmed = False  # --yes
        self._is_local = False  # after `require_local`

    @property
    def data(self) -> Path:
        """The path of the local service's data directory: --data, else FOREWARN_DATA, else the default one."""
        return data_directory(self.given_data, os.environ)

    @cached_property
    def output(self) -> Output:
        """The Output of this run, which prints JSON if --json was given; made once, at the first use."""
        return Output(as_json=self.as_json, program=self._command_prefix)

    @property
    def _command_prefix(self) -> str:
        """How to start the command again from another terminal, with the options that select the service."""
        name = "forewarn" if shutil.which("forewarn") or not sys.argv[0].endswith("forewarn") else sys.argv[0]
        given = {"--data": self.given_data, "--server": self.given_server, "--profile": self.given_profile}
        return " ".join([name, *(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value)])

    @property
    def remote_selection(self) -> RemoteSelection:
        """The remote service that the options or else the environment select; falsy for the local service."""
        flags = RemoteSelection(server=self.given_server, profile=self.given_profile)
        if self._is_local:
            return flags
        return select_remote_service(flags, self.given_data, os.environ)

    @property
    def profiles(self) -> ProfileFile:
        """The user's file of sign-in profiles, a new ProfileFile at each access; the file may not exist."""
        return ProfileFile.from_environment(os.environ)

    @cached_property
    def remote_profile(self) -> Profile | None:
        """The profile of the selected remote service; None if the local service is selected."""
        return resolve_profile(self.remote_selection, self.profiles, os.environ) if self.remote_selection else None

    @cached_property
    def api(self) -> ApiClient:
        """The ApiClient of the selected service, made at the first use; it opens a connection for each call."""
        confirm = None if self.is_confirmed else self._confirm
        if self.remote_profile is not None:
            return ApiClient(RemoteTransport(self.remote_profile), confirm)
        is_signed_in = self.profiles.path.exists() and not self._is_local
        extra_remedy = ", or choose a remote one with --profile" if is_signed_in else ""
        return ApiClient(LocalTransport(self.data, given_data=self.given_data, extra_remedy=extra_remedy), confirm)

    def _confirm(self, preview: JsonObject) -> None:
        from forewarn.cli.request_output import confirm_preview  # imports this module

        confirm_preview(self, preview)

    def confirm(self, question: str, what: str) -> None:
        """Ask the person at the terminal; exits with 1 if they decline. With --yes, do not call this.

        `what` says what would happen, for the refusal where nobody can be asked: without a terminal, and with --json.
        """
        if self.as_json or not sys.stdin.isatty():
            raise Rejected(
                f"nothing was changed, because a person has to confirm this ({what}): "
                "use --yes to do it, or --dry-run to see what it would do"
            )
        if not click.confirm(question, err=True):
            self.output.print_error("nothing was changed")
            raise click.exceptions.Exit(1)

    def require_local(self, command: str) -> None:
        """Select the local service for this run, even if the environment selects a remote one."""
        self._is_local = True
        if self.given_server or self.given_profile:
            flag = "--server" if self.given_server else "--profile"
            raise Rejected(f"`{command}` works on this machine only: leave {flag} out, or run it where the service is")


def _store_json_flag(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Invocation).as_json |= value


def _store_yes_flag(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Invocation).is_confirmed |= value


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
    "--json", is_flag=True, expose_value=False, callback=_store_json_flag, help="Print the answer as JSON."
)
yes_option = click.option(
    "--yes", is_flag=True, expose_value=False, callback=_store_yes_flag, help="Do it without asking."
)
data_option = click.option(
    "--data",
    metavar="DIR",
    expose_value=False,
    callback=_store_data_option,
    help="Use the service with this data directory.  [env: FOREWARN_DATA]",
)


def remote_options(function: CommandFunction, *, hidden: bool = False) -> CommandFunction:
    """Decorate a command with the options --server and --profile, which select a remote service."""
    options = (
        click.option(
            "--server",
            metavar="URL",
            expose_value=False,
            callback=_store_server_option,
            hidden=hidden,
            help="Use the remote service at https://HOST:PORT.  [env: FOREWARN_SERVER]",
        ),
        click.option(
            "--profile",
            metavar="NAME",
            expose_value=False,
            callback=_store_profile_option,
            hidden=hidden,
            help="Use the remote service of this `forewarn login` profile.  [env: FOREWARN_PROFILE]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _with_invocation(function: CommandFunction, *, is_local: bool) -> CommandFunction:
    @wraps(function)
    def call_with_invocation(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        call = context.ensure_object(Invocation)
        if is_local:
            call.require_local(context.command_path)
        return function(call, *args, **kwargs)

    return json_option(call_with_invocation)


def offline_command(function: CommandFunction) -> CommandFunction:
    """Decorate a command that needs no remote service: it gets the Invocation as its first argument."""
    return remote_options(_with_invocation(function, is_local=True), hidden=True)


def local_command(function: CommandFunction) -> CommandFunction:
    """Decorate a command for the service of this machine: it gets the Invocation as its first argument."""
    return data_option(offline_command(function))


def profile_command(function: CommandFunction) -> CommandFunction:
    """Decorate a command about sign-in profiles: it gets the Invocation as its first argument."""
    return remote_options(_with_invocation(function, is_local=False))


def service_command(function: CommandFunction) -> CommandFunction:
    """Decorate a command that calls the selected service: it gets the Invocation as its first argument."""
    return data_option(remote_options(_with_invocation(function, is_local=False)))


def non_empty_name(text: str) -> str:
    """Click type of a name: returns it unchanged; raises BadParameter for a blank one."""
    if not text.strip():
        raise click.BadParameter("the name is empty: give one (in a script, look for a variable that is not set)")
    return text


def duration(text: str) -> float:
    """Click type of a length of time such as 20m, 1h30m or 90 (seconds): returns seconds, 0 or more."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@contextmanager
def require_server_extra(command: str) -> Iterator[None]:
    """Context manager for a command's imports; raises Rejected if the [server] extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "forewarn"):
            raise
        raise Rejected(
            f"`forewarn {command}` needs {missing}, which is not installed: pip install 'forewarn[server]'"
        ) from error
