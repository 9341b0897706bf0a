"""Secret files and sign-in profiles of the user who runs the command.

Files with secrets have mode 0600 from the moment they exist and are replaced atomically. Standard library only,
because the [agent] extra has nothing else; `forewarn.auth` has its own file functions for the service.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from forewarn.cli.service_address import RemoteSelection, config_directory, parse_server_url
from forewarn.errors import NotFound, Rejected, Unauthenticated


def read_private_file(path: Path) -> str:
    """What the file holds; Rejected where anybody but its owner could read it too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would keep us waiting
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            content = file.read() if stat.S_ISREG(mode) else b""
        text = content.decode()
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}: check its name") from None
    except OSError as error:
        raise Rejected(f"file {str(path)!r} cannot be read ({error.strerror}): see to its permissions") from error
    except UnicodeDecodeError:
        raise Rejected(f"file {str(path)!r} is no text: name the right file") from None
    if not stat.S_ISREG(mode):
        raise Rejected(f"{str(path)!r} is not a file: name one")
    if mode & 0o077:
        raise Rejected(
            f"file {str(path)!r} holds a secret and others may read it (mode {stat.S_IMODE(mode):04o}): "
            "run chmod 600 on it, and replace the secret if somebody may have seen it"
        )
    return text


def read_secret_file(path: Path) -> str:
    return parse_secret(read_private_file(path), f"file {str(path)!r}")


def parse_secret(text: str, source: str) -> str:
    secret = text.strip()
    if not secret:
        raise Rejected(f"{source} is empty: put the secret in it")
    if len(secret.splitlines()) > 1:
        raise Rejected(f"{source} holds more than one line: put the secret in it and nothing else")
    return secret


def write_private_file(path: Path, text: str) -> None:
    """Whole or not there. A link is followed, so that those who keep such files elsewhere go on doing so."""
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(handle)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise Rejected(f"file {str(path)!r} cannot be written ({error.strerror}): name another") from error


DEFAULT_PROFILE = "default"  # the name of a profile that was given none
_PROFILE_NAME = re.compile(r"[\w.-]+", re.ASCII)


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
        return self.secret or read_secret_file(Path(self.secret_file))


class ProfileFile:
    """The file of profiles; one that does not exist has none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ProfileFile:
        return cls(config_directory(environ) / "profiles.toml")

    def read_all(self) -> dict[str, Profile]:
        if not self.path.exists():
            return {}
        try:
            tables = tomllib.loads(read_private_file(self.path))
            return {name: _profile_from_table(table) for name, table in tables.items()}
        except (ValueError, TypeError):
            # Not `from` the cause: what a parser quotes may be a secret.
            raise Rejected(
                f"profiles file {str(self.path)!r} makes no sense: mend it, or move it away and run `forewarn login`"
            ) from None

    def find(self, name: str) -> Profile:
        known = self.read_all()
        if name not in known:
            there = f"give one of {', '.join(known)}" if known else "`forewarn login` makes one"
            raise NotFound(f"profile {name!r} does not exist: {there}")
        return known[name]

    def save(self, name: str, profile: Profile) -> None:
        self._write({**self.read_all(), name: profile})

    def remove(self, name: str) -> Profile:
        gone = self.find(name)
        self._write({known: profile for known, profile in self.read_all().items() if known != name})
        return gone

    def _write(self, profiles: Mapping[str, Profile]) -> None:
        write_private_file(self.path, "\n".join(_profile_to_toml(name, profile) for name, profile in profiles.items()))


def require_printable(text: str, what: str) -> str:
    """Fit for a form and a file: no line breaks, and no bytes that are no text."""
    if not text.isprintable() or not text.strip():
        raise Rejected(f"{text!r} is no {what}: give it as it was told you")
    return text


def require_profile_name(name: str) -> str:
    if not _PROFILE_NAME.fullmatch(name):
        raise Rejected(f"{name!r} is no name for a profile: use letters, digits, dots, dashes and underscores")
    return name


def resolve_profile(named: RemoteSelection, book: ProfileFile, environ: Mapping[str, str]) -> Profile:
    """How to reach the service that was named, and as whom."""
    if named.profile:
        profile = book.find(named.profile)
        if named.server and str(parse_server_url(named.server)) != profile.server:
            raise Rejected(
                f"profile {named.profile!r} is for {profile.server}, not for {named.server}: leave one of them out"
            )
    else:
        profile = _profile_for_server(str(parse_server_url(named.server)), book, environ)
    return profile if profile.ca else _with_ca_from_environment(profile, environ)


def _profile_for_server(server: str, book: ProfileFile, environ: Mapping[str, str]) -> Profile:
    """The client that the environment names, else the one profile for this server."""
    client_id, secret_file = environ.get("FOREWARN_CLIENT_ID"), environ.get("FOREWARN_SECRET_FILE")
    if bool(client_id) != bool(secret_file):
        raise Rejected("FOREWARN_CLIENT_ID and FOREWARN_SECRET_FILE belong together: give both or neither")
    if client_id and secret_file:
        return Profile(server=server, client_id=client_id, secret_file=secret_file)
    found = {name: profile for name, profile in book.read_all().items() if profile.server == server}
    if not found:
        raise Unauthenticated(
            f"no profile is for {server}: sign in with `forewarn login --server {server} --client-id ID`"
        )
    if len(found) > 1:
        raise Rejected(f"profiles {', '.join(found)} are all for {server}: choose one with --profile")
    return next(iter(found.values()))


def _with_ca_from_environment(profile: Profile, environ: Mapping[str, str]) -> Profile:
    return Profile(**{**asdict(profile), "ca": environ.get("FOREWARN_CA", "")})


def _profile_from_table(table: Mapping[str, object]) -> Profile:
    known = {each.name for each in fields(Profile)}
    if not known.issuperset(table) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError
    return Profile(**table)  # type: ignore[arg-type]


def _profile_to_toml(name: str, profile: Profile) -> str:
    lines = [f"{key} = {_toml_string(value)}" for key, value in asdict(profile).items() if value]
    return "\n".join([f"[{_toml_string(name)}]", *lines, ""])


def _toml_string(text: str) -> str:
    """A basic string of TOML is one of JSON, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
