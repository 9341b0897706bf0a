"""What every command is given: the screen to write to, and the service to ask."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import click

from forewarn.cli.connection import Api
from forewarn.cli.place import data_directory
from forewarn.cli.screen import Screen

Function = Callable[..., Any]


class Invocation:
    """One run of the command; --json and --data may stand before or after the command's name."""

    def __init__(self) -> None:
        self.as_json = False
        self.given_data: str | None = None

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
        return f"{name} --data {self.given_data}" if self.given_data else name

    @cached_property
    def api(self) -> Api:
        return Api(self.data)


def _take_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Invocation).as_json |= value


def _take_data(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    invocation.given_data = value or invocation.given_data


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


def shown(function: Function) -> Function:
    """A command that shows something: it is given its Invocation, and knows --json."""

    @wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        return function(click.get_current_context().ensure_object(Invocation), *args, **kwargs)

    return json_option(given)


def served(function: Function) -> Function:
    """A command that asks the service: it knows --data too."""
    return data_option(shown(function))
