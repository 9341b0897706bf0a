"""Lists in pieces: each piece links to the next by the place where it ended, whatever came or went in between."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode

from forewarn.console.arm.route import ArmAnswer, ArmCall
from forewarn.console.arm.shape import Json
from forewarn.console.register import Place, in_order
from forewarn.errors import Rejected

PAGE = 100
PAGE_OF_SETS = 10  # to show one, all its VMs are read
_TOKEN = "$skiptoken"


def paged(call: ArmCall, names: Sequence[str], show: Callable[[str], Json], most: int = PAGE) -> ArmAnswer:
    """One piece of what is called so, in the order of lists."""
    start = bisect_right(names, _begins_after(call), key=in_order)
    piece = names[start : start + most]
    body: Json = {"value": [show(name) for name in piece]}
    if start + most < len(names):
        body["nextLink"] = _link(call, piece[-1])
    return ArmAnswer(body=body)


def _begins_after(call: ArmCall) -> Place:
    token = call.query.get(_TOKEN, "")
    try:
        return in_order(base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode())
    except (binascii.Error, ValueError):
        raise Rejected(f"{_TOKEN} {token[:100]!r} is not from a nextLink of ours: begin without it") from None


def _link(call: ArmCall, last: str) -> str:
    token = base64.urlsafe_b64encode(last.encode()).decode()
    return f"{call.base}{quote(call.path)}?{urlencode({**call.query, _TOKEN: token})}"
