"""Which api-version to ask with: the newest that the server takes, and what an older one does not tell. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from forewarn.errors import Rejected
from forewarn.protocol.document import Kind
from forewarn.protocol.message import Response
from forewarn.protocol.versions import NEWEST, VERSIONS, fields, is_dated, shows_kind

# Not below: a client that is not told of evictions or deletions would be silently deaf (spec §3).
OLDEST = next(version for version in VERSIONS if all(shows_kind(version, kind) for kind in Kind))


def next_version(tried: str, response: Response, ours: Sequence[str]) -> str | None:
    """The version to ask with instead, if this answer refuses the one that was tried; None: it does not, or there is
    none left (spec §10). Always an older one, so that asking ends.
    """
    older = [version for version in ours if version < tried]
    if response.status == 404 and b"invalid version" in response.body.lower():
        return max(older, default=None)
    offered = offered_versions(response)
    if not offered or tried in offered:
        return None
    usable = [version for version in older if version in offered]
    return max(usable or [version for version in older if version <= max(offered)], default=None)


def offered_versions(response: Response) -> tuple[str, ...]:
    """The list that comes with a refusal; () if this is none, or lists nothing."""
    if response.status != 400:
        return ()
    try:
        listed = json.loads(response.body)["newest-versions"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(str(version) for version in listed if is_dated(str(version))) if isinstance(listed, list) else ()


def must_tell_all_kinds(version: str) -> None:
    if version < OLDEST:
        kinds = " and ".join(kind for kind in Kind if not shows_kind(version, kind))
        raise Rejected(
            f"the service takes no api-version newer than {version}, which does not tell of {kinds}: "
            f"give version={version!r} to do without"
        )


def lost_with(version: str) -> str:
    """A sentence for people: what this version does not tell; "" if it tells all."""
    told = fields(version)
    missing = [name for name in fields(NEWEST) if name not in told]
    if not missing:
        return ""
    return f"the service takes api-version {version} at most: events come without {', '.join(missing)}"
