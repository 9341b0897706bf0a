"""Where somebody goes on to after signing in: a page of ours, whatever the address says."""

from __future__ import annotations

from forewarn.console.portal.page import PREFIX

HOME = f"{PREFIX}/"
_SIGNING = f"{PREFIX}/sign-"  # in or out: nobody goes on to there


def local(to: str) -> str:
    """This path and query, if it is a page of the portal; else the first page there is.

    Browsers take a backslash for a slash and leave out line breaks, so neither may be in it.
    """
    ours = to == PREFIX or to.startswith((HOME, f"{PREFIX}?"))
    plain = to.isascii() and to.isprintable() and "\\" not in to
    return to if ours and plain and not to.startswith(_SIGNING) else HOME
