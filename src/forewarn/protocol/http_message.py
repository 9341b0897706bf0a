"""What a request line points at: path and query, taken apart without judging them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

_ABSOLUTE = re.compile(r"https?://[^/?]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    path: tuple[str, ...]  # decoded segments, as spelled
    parameters: tuple[tuple[str, str], ...]  # decoded, names in lower case

    def lowered(self) -> tuple[str, ...]:
        return tuple(segment.lower() for segment in self.path)

    def parameter(self, name: str) -> str | None:
        return next((value for given, value in self.parameters if given == name), None)

    def repeated(self) -> str | None:
        """The first parameter name that is there twice; names are compared without case (spec §2.3)."""
        seen: set[str] = set()
        for name, _ in self.parameters:
            if name in seen:
                return name
            seen.add(name)
        return None


def read_target(text: str) -> Target | None:
    """None for what is no path at all, such as `*` or `host:80`.

    A client behind a proxy may send the whole address; its host is not looked at. Segments are split before
    they are decoded, so that %2F never makes a new one. One slash at the end is forgiven, dots are kept.
    """
    absolute = _ABSOLUTE.match(text)
    path, _, query = text[absolute.end() if absolute else 0 :].partition("?")
    if not path.startswith("/"):
        return None
    segments = path.removeprefix("/").removesuffix("/").split("/")
    return Target(path=tuple(map(unquote, segments)), parameters=_parameters(query))


def _parameters(query: str) -> tuple[tuple[str, str], ...]:
    pairs = (piece.partition("=") for piece in query.split("&") if piece)
    return tuple((unquote_plus(name).lower(), unquote_plus(value)) for name, _, value in pairs)
