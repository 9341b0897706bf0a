"""Secret files and sign-in profiles of the user who runs the command.

Files with secrets have mode 0600 from the moment they exist and are replaced atomically. Standard library only,
because the [agent] extra has nothing else; `forewarn.auth` has its own file functions for the service.
"""

from __future__ import annotations

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


def _read_private_file(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            content = file.read() if stat.S_ISREG(mode) else b""
        text = content.decode()
    except FileNotFoundError:
        raise NotFound(f"file {str(path)!r} does not exist: check its name") from None
    except OSError as error:
        raise Rejected(f"file {str(path)!r} cannot be read ({error.strerror}): check its permissions") from error
    except UnicodeDecodeError:
        raise Rejected(f"file {str(path)!r} is not text: give another file") from None
    if not stat.S_ISREG(mode):
        raise Rejected(f"{str(path)!r} is not a regular file: give one")
    if mode & 0o077:
        raise Rejected(
            f"file {str(path)!r} holds a secret and others may read it (mode {stat.S_IMODE(mode):04o}): "
            "run chmod 600 on it, and replace the secret if it may have been read"
        )
    return text


def read_secret_file(path: Path) -> str:
    """Return the one-line secret in a private file, without blanks around it."""
    return parse_secret(_read_private_file(path), f"file {str(path)!r}")


def parse_secret(text: str, source: str) -> str:
    """Return the secret in a text, without blanks around it."""
    secret = text.strip()
    if not secret:
        raise Rejected(f"{source} is empty: put the secret in it")
    if len(secret.splitlines()) > 1:
        raise Rejected(f"{source} holds more than one line: put only the secret in it")
    return secret


def write_private_file(path: Path, text: str) -> None:
    """Write or replace a UTF-8 file with mode 0600, atomically. A symbolic link is followed, not replaced."""
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
        raise Rejected(f"file {str(path)!r} cannot be written ({error.strerror}): give another") from error


DEFAULT_PROFILE = "default"  # the profile's name where --profile is not given
_PROFILE_NAME = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How to reach one remote service and sign in there; stored in profiles.toml under these field names."""

    server: str  # its https URL, as `str(ServerAddress)` writes it
    client_id: str  # as the issuer knows the client
    secret: str = field(default="", repr=False)  # the client's secret; "": it is in `secret_file`
    secret_file: str = ""  # path of a file with the secret, instead of `secret`
    ca: str = ""  # path of the server's CA; "": the CAs that the system trusts
    issuer: str = ""  # "": the issuer that the server names
    scope: str = ""  # "": the scope of the server's audience

    def read_secret(self) -> str:
        """Return the client's secret: `secret`, or else the one line in `secret_file`."""
        return self.secret or read_secret_file(Path(self.secret_file))


class ProfileFile:
    """The user's profiles.toml: sign-in profiles by name, whose letter case counts. Nothing is cached."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ProfileFile:
        """Return the ProfileFile of profiles.toml in the user's configuration directory (`config_directory`)."""
        return cls(config_directory(environ) / "profiles.toml")

    def read_all(self) -> dict[str, Profile]:
        """Return all profiles by name, in the file's order; {} if the file does not exist."""
        if not self.path.exists():
            return {}
        try:
            tables = tomllib.loads(_read_private_file(self.path))
            return {name: _profile_from_table(table) for name, table in tables.items()}
        except (ValueError, TypeError):
            # Not `from` the cause: the parser's message may quote a secret.
            raise Rejected(
                f"profiles file {str(self.path)!r} cannot be parsed: correct it, or move it and run `forewarn login`"
            ) from None

    def find(self, name: str) -> Profile:
        """Return the profile with this name, whose letter case counts; raise NotFound if there is none."""
        known = self.read_all()
        if name not in known:
            remedy = f"give one of {', '.join(known)}" if known else "create one with `forewarn login`"
            raise NotFound(f"profile {name!r} does not exist: {remedy}")
        return known[name]

    def save(self, name: str, profile: Profile) -> None:
        """Write a profile to the file, which is created if missing, in place of an earlier one of this name."""
        self._write({**self.read_all(), name: profile})

    def remove(self, name: str) -> Profile:
        """Remove a profile from the file and return it; a `secret_file` that it names stays."""
        removed = self.find(name)
        self._write({known: profile for known, profile in self.read_all().items() if known != name})
        return removed

    def _write(self, profiles: Mapping[str, Profile]) -> None:
        write_private_file(self.path, "\n".join(_profile_to_toml(name, profile) for name, profile in profiles.items()))


def require_printable(text: str, what: str) -> str:
    """Return the text unchanged if it is printable and not blank, else raise Rejected."""
    if not text.isprintable() or not text.strip():
        raise Rejected(f"{text!r} is not a {what}: give the one that you received")
    return text


def require_profile_name(name: str) -> str:
    """Return the name unchanged if it is a valid name of a profile, else raise Rejected."""
    if not _PROFILE_NAME.fullmatch(name):
        raise Rejected(f"{name!r} is not a valid profile name: use letters, digits, dots, dashes and underscores")
    return name


def resolve_profile(selection: RemoteSelection, profiles: ProfileFile, environ: Mapping[str, str]) -> Profile:
    """Return the profile for the selected remote service: the named one, else the one for its server."""
    if selection.profile:
        profile = profiles.find(selection.profile)
        if selection.server and str(parse_server_url(selection.server)) != profile.server:
            raise Rejected(
                f"profile {selection.profile!r} is for {profile.server}, not for {selection.server}: "
                "leave one of them out"
            )
    else:
        profile = _profile_for_server(str(parse_server_url(selection.server)), profiles, environ)
    return profile if profile.ca else _with_ca_from_environment(profile, environ)


def _profile_for_server(server: str, profiles: ProfileFile, environ: Mapping[str, str]) -> Profile:
    """The client that the environment names, else the only profile for this server."""
    client_id, secret_file = environ.get("FOREWARN_CLIENT_ID"), environ.get("FOREWARN_SECRET_FILE")
    if bool(client_id) != bool(secret_file):
        raise Rejected("FOREWARN_CLIENT_ID and FOREWARN_SECRET_FILE go together: set both or neither")
    if client_id and secret_file:
        return Profile(server=server, client_id=client_id, secret_file=secret_file)
    found = {name: profile for name, profile in profiles.read_all().items() if profile.server == server}
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
    from forewarn.base.tomlfile import toml_value  # most commands write no profile

    lines = [f"{key} = {toml_value(value)}" for key, value in asdict(profile).items() if value]
    return "\n".join([f"[{toml_value(name)}]", *lines, ""])
