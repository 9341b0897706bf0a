"""The portal: a link that signs in once, to be opened in a browser."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import click

from forewarn.cli.connection import View
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.screen import faint, joined
from forewarn.errors import Unavailable

_PAGE = '<!doctype html><title>forewarn</title><meta http-equiv="refresh" content="0; url={url}">\n'


@click.command()
@click.option("--open", "in_browser", is_flag=True, help="Open it in a browser, too.")
@served
def portal(call: Invocation, in_browser: bool) -> None:
    """Give a link that signs you in to the portal, once."""
    link = _reachable(call, call.api.post("access", "links"))
    if call.screen.as_json:
        call.screen.document(link)
    else:
        call.screen.hang(joined(), link["url"])
        if call.screen.is_terminal:
            call.screen.say(faint(f"It signs in {link['signs_in']}: once, and within 15 minutes."))
    if in_browser:
        _open(link["url"])


def _reachable(call: Invocation, link: View) -> View:
    """The service names itself as its own machine knows it; from elsewhere it is called as it was called now."""
    if call.elsewhere is None:
        return link
    return {**link, "url": f"{call.elsewhere.server}{urlsplit(link['url']).path}"}


def _open(url: str) -> None:
    """By a file that only its owner can read: what a browser is called with is in the list of processes."""
    handle, name = tempfile.mkstemp(prefix="forewarn-portal-", suffix=".html")  # mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_PAGE.format(url=html.escape(url)))
    if not webbrowser.open(Path(name).as_uri()):
        raise Unavailable("no browser could be started here: open the link yourself")
