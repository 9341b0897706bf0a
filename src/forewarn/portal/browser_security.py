"""Whether a write was asked for by whoever is signed in, in a page of ours: no other site may write in their name."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from forewarn.console.portal.visit import Visit
from forewarn.errors import Forbidden

FIELD = "token"
HEADER = "X-Forewarn-Token"
_OURS = ("same-origin", "none")  # of Sec-Fetch-Site; another port of this machine is "same-site", and not ours
_ELSEWHERE = "this was sent by a page that is not of this portal, so nothing was done: open the portal and ask there"
_STALE = "the form is not of this sign-in, so nothing was done: load the page again, and send it from there"


def must_repeat(visit: Visit, headers: Mapping[str, str], fields: Mapping[str, str | Sequence[str]]) -> None:
    """Raise Forbidden unless the visit's token is in the field or the header, and the page that sent it is ours."""
    must_be_ours(headers)
    given = fields.get(FIELD) or headers.get(HEADER) or ""
    one = given if isinstance(given, str) else given[0]
    if not hmac.compare_digest(one.encode("utf-8", "surrogatepass"), visit.token.encode()):
        raise Forbidden(_STALE)


def must_be_ours(headers: Mapping[str, str]) -> None:
    """Where the browser says which page asked: it must be one that came from the very address that is asked."""
    if headers.get("sec-fetch-site", "none") not in _OURS:
        raise Forbidden(_ELSEWHERE)
    origin = headers.get("origin")
    if origin is not None and _authority(origin) != headers.get("host", "").lower():
        raise Forbidden(_ELSEWHERE)


def _authority(origin: str) -> str | None:
    """`null`, which is what pages without an origin have, is nobody's."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
