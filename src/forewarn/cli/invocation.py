"""What every command is given: the screen to write to, and the service to ask."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import click

from forewarn.cli.connection import Api
from forewarn.cli.local import Local
from forewarn.cli.place import Named, data_directory, named_service
from forewarn.cli.profile import Profile, ProfileBook, profile_of
from forewarn.cli.remote import Remote
from forewarn.cli.screen import Screen
from forewarn.errors import Rejected

Function = Callable[..., Any]


class Invocation:
    """One run of the command; its common options may stand before or after the command's name."""

    def __init__(self) -> None:
        self.as_json = False
        self.given_data: str | None = None
        self.given_server = ""
        self.given_profile = ""
        self._is_here = False

    @property
    def data(self) -> Path:
        return data_directory(self.given_data, os.environ)

    @cached_property
    def screen(self) -> Screen:
        return Screen(as_json=self.as_json, program=self._program)

    @property
    def _program(self) -> str:
        """How to call us again from another terminal: what is on the PATH, else as we were called now."""
        name = "forewarn" if shutil.which("forewarn") or not sys.argv[0].endswith("forewarn") else sys.argv[0]
        given = {"--data": self.given_data, "--server": self.given_server, "--profile": self.given_profile}
        return " ".join([name, *(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value)])

    @property
    def named(self) -> Named:
        """The service elsewhere that flags or the environment name; falsy for the one on this machine."""
        flags = Named(server=self.given_server, profile=self.given_profile)
        if self._is_here:
            return flags
        return named_service(flags, self.given_data, os.environ)

    @property
    def profiles(self) -> ProfileBook:
        return ProfileBook.of(os.environ)

    @cached_property
    def elsewhere(self) -> Profile | None:
        """How the service is reached that is not on this machine; None where it is."""
        return profile_of(self.named, self.profiles, os.environ) if self.named else None

    @cached_property
    def api(self) -> Api:
        if self.elsewhere is not None:
            return Api(Remote(self.elsewhere))
        is_signed_in = self.profiles.path.exists() and not self._is_here
        return Api(Local(self.data, ", or name one elsewhere with --profile" if is_signed_in else ""))

    def stay_here(self, command: str) -> None:
        """This command is for this machine: what the environment names elsewhere is for others, a flag is refused."""
        self._is_here = True
        if self.given_server or self.given_profile:
            flag = "--server" if self.given_server else "--profile"
            raise Rejected(f"`{command}` works on this machine only: leave {flag} out, or run it where the service is")


def _take_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Invocation).as_json |= value


def _take_data(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_data = value or invocation.given_data


def _take_server(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_server = value or invocation.given_server


def _take_profile(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_profile = value or invocation.given_profile


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_take_json, help="Answer in JSON, for programs."
)
data_option = click.option(
    "--data",
    metavar="DIR",
    expose_value=False,
    callback=_take_data,
    help="The service's data directory.  [env: FOREWARN_DATA]",
)


def elsewhere_options(function: Function, *, hidden: bool = False) -> Function:
    """Which service elsewhere is meant."""
    options = (
        click.option(
            "--server",
            metavar="URL",
            expose_value=False,
            callback=_take_server,
            hidden=hidden,
            help="A service elsewhere, https://HOST:PORT.  [env: FOREWARN_SERVER]",
        ),
        click.option(
            "--profile",
            metavar="NAME",
            expose_value=False,
            callback=_take_profile,
            hidden=hidden,
            help="A service elsewhere, as `forewarn login` kept it.  [env: FOREWARN_PROFILE]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _given(function: Function, *, is_here: bool) -> Function:
    @wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        call = context.ensure_object(Invocation)
        if is_here:
            call.stay_here(context.command_path)
        return function(call, *args, **kwargs)

    return json_option(given)


def shown(function: Function) -> Function:
    """A command that shows something and asks no service: it is given its Invocation, and knows --json."""
    return elsewhere_options(_given(function, is_here=True), hidden=True)


def here(function: Function) -> Function:
    """A command for the service on this machine: it knows --data too."""
    return data_option(shown(function))


def shown_elsewhere(function: Function) -> Function:
    """A command about services elsewhere themselves."""
    return elsewhere_options(_given(function, is_here=False))


def served(function: Function) -> Function:
    """A command that asks the service, wherever that is."""
    return data_option(elsewhere_options(_given(function, is_here=False)))
