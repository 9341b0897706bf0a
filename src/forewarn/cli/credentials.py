"""Profiles: services elsewhere, each with the client that signs in there, in a file of the user's own.

A secret is kept in that file, mode 0600, or in one that it points to. Standard library only, as the [agent] extra is.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from forewarn.cli.place import Named, config_directory
from forewarn.cli.private import read_private, read_secret, write_private
from forewarn.cli.server import read_server
from forewarn.errors import NotFound, Rejected, Unauthenticated

USUAL = "default"  # the name of a profile that was given none
_NAME = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    server: str
    client_id: str
    secret: str = field(default="", repr=False)
    secret_file: str = ""  # instead of the secret itself
    ca: str = ""  # "": those that the system trusts
    issuer: str = ""  # "": the one that the server names
    scope: str = ""  # "": the server's audience

    def read_secret(self) -> str:
        return self.secret or read_secret(Path(self.secret_file))


class ProfileBook:
    """The file of profiles; one that does not exist has none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ProfileBook:
        return cls(config_directory(environ) / "profiles.toml")

    def all(self) -> dict[str, Profile]:
        if not self.path.exists():
            return {}
        try:
            tables = tomllib.loads(read_private(self.path))
            return {name: _profile(table) for name, table in tables.items()}
        except (ValueError, TypeError):
            # Not `from` the cause: what a parser quotes may be a secret.
            raise Rejected(
                f"profiles file {str(self.path)!r} makes no sense: mend it, or move it away and run `forewarn login`"
            ) from None

    def find(self, name: str) -> Profile:
        known = self.all()
        if name not in known:
            there = f"give one of {', '.join(known)}" if known else "`forewarn login` makes one"
            raise NotFound(f"profile {name!r} does not exist: {there}")
        return known[name]

    def keep(self, name: str, profile: Profile) -> None:
        self._write({**self.all(), name: profile})

    def forget(self, name: str) -> Profile:
        gone = self.find(name)
        self._write({known: profile for known, profile in self.all().items() if known != name})
        return gone

    def _write(self, profiles: Mapping[str, Profile]) -> None:
        write_private(self.path, "\n".join(_table(name, profile) for name, profile in profiles.items()))


def must_be_text(text: str, what: str) -> str:
    """Fit for a form and a file: no line breaks, and no bytes that are no text."""
    if not text.isprintable() or not text.strip():
        raise Rejected(f"{text!r} is no {what}: give it as it was told you")
    return text


def must_be_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Rejected(f"{name!r} is no name for a profile: use letters, digits, dots, dashes and underscores")
    return name


def profile_of(named: Named, book: ProfileBook, environ: Mapping[str, str]) -> Profile:
    """How to reach the service that was named, and as whom."""
    if named.profile:
        profile = book.find(named.profile)
        if named.server and str(read_server(named.server)) != profile.server:
            raise Rejected(
                f"profile {named.profile!r} is for {profile.server}, not for {named.server}: leave one of them out"
            )
    else:
        profile = _for_server(str(read_server(named.server)), book, environ)
    return profile if profile.ca else _with_ca(profile, environ)


def _for_server(server: str, book: ProfileBook, environ: Mapping[str, str]) -> Profile:
    """The client that the environment names, else the one profile for this server."""
    client_id, secret_file = environ.get("FOREWARN_CLIENT_ID"), environ.get("FOREWARN_SECRET_FILE")
    if bool(client_id) != bool(secret_file):
        raise Rejected("FOREWARN_CLIENT_ID and FOREWARN_SECRET_FILE belong together: give both or neither")
    if client_id and secret_file:
        return Profile(server=server, client_id=client_id, secret_file=secret_file)
    found = {name: profile for name, profile in book.all().items() if profile.server == server}
    if not found:
        raise Unauthenticated(
            f"no profile is for {server}: sign in with `forewarn login --server {server} --client-id ID`"
        )
    if len(found) > 1:
        raise Rejected(f"profiles {', '.join(found)} are all for {server}: choose one with --profile")
    return next(iter(found.values()))


def _with_ca(profile: Profile, environ: Mapping[str, str]) -> Profile:
    return Profile(**{**asdict(profile), "ca": environ.get("FOREWARN_CA", "")})


def _profile(table: Mapping[str, object]) -> Profile:
    known = {each.name for each in fields(Profile)}
    if not known.issuperset(table) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError
    return Profile(**table)  # type: ignore[arg-type]


def _table(name: str, profile: Profile) -> str:
    lines = [f"{key} = {_quoted(value)}" for key, value in asdict(profile).items() if value]
    return "\n".join([f"[{_quoted(name)}]", *lines, ""])


def _quoted(text: str) -> str:
    """A basic string of TOML is one of JSON, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
