"""The certificates that the service shows its operators: a local CA and a server certificate, or the user's own.

The CA is made once and never replaced: people have told their clients to trust it. The server's certificate and key are
made anew whenever they no longer serve. Keys are written before certificates, so that what a crash leaves behind is
sound, or a key that nothing refers to yet, or a server's pair that does not match and is made anew.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from forewarn.access import file, pem
from forewarn.access.authority import Authority, new_authority, new_key, server_certificate, wanted_names
from forewarn.access.pem import Facts, Pair
from forewarn.errors import Rejected

_RENEWED_BEFORE_S = 30 * 86400
_MOVE_AWAY = "move 'ca.pem' and 'ca.key' away to have a new CA made, which clients must then be told to trust"


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the directory `tls`."""

    ca: Pair
    server: Pair

    @classmethod
    def ready(cls, directory: Path, names: Iterable[str], now: float) -> Certificates:
        """Make what is missing, renew the server's certificate where it no longer serves, keep the rest.

        `names` come on top of the loopback ones. Rejected, and nothing changed, where the CA cannot be used.
        """
        wanted = wanted_names(names)
        file.make_directory(directory)

        authority = _authority(directory, wanted, now)
        server = _serving(directory, authority, wanted, now) or _renew(directory, authority, wanted, now)

        ca = Pair(certificate=ca_file(directory), key=_ca_key(directory), facts=pem.facts_of(authority.certificate))
        return cls(ca=ca, server=server)


def own(certificate: Path, key: Path, *, now: float) -> Pair:
    """The user's own certificate, with the chain after it if there is one. Rejected where it cannot serve."""
    leaf, private = pem.read_certificate(certificate), pem.key_in(file.read_public(key), key)
    if not pem.belong_together(leaf, private):
        raise Rejected(
            f"key {str(key)!r} does not belong to the first certificate in {str(certificate)!r}: "
            "give the key it was made with, or put the server's certificate before its chain"
        )
    facts = pem.facts_of(leaf)
    pem.must_be_valid(certificate, facts, now, "give one that is valid now")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:  # also what ssl raises, of a key too weak and the like
        raise Rejected(f"certificate {str(certificate)!r} cannot be served ({error}): give another") from error
    return Pair(certificate=certificate, key=key, facts=facts)


def ca_file(directory: Path) -> Path:
    return directory / "ca.pem"


def _ca_key(directory: Path) -> Path:
    return directory / "ca.key"


def _authority(directory: Path, wanted: tuple[str, ...], now: float) -> Authority:
    path = ca_file(directory)
    if not path.exists():
        return _new_authority(directory, wanted, now)
    authority = _read_authority(path, _ca_key(directory))
    pem.must_be_valid(path, pem.facts_of(authority.certificate), now, _MOVE_AWAY)
    if foreign := [name for name in wanted if not authority.may_sign(name)]:
        raise Rejected(
            f"CA {str(path)!r} vouches for loopback names only, not for {foreign[0]!r}: "
            f"leave that name out, or {_MOVE_AWAY}"
        )
    return authority


def _new_authority(directory: Path, wanted: tuple[str, ...], now: float) -> Authority:
    """A key that a crash left without its certificate is used, not replaced."""
    path = _ca_key(directory)
    if path.exists():
        key = _signing_key(path)
    else:
        key = new_key()
        pem.write_key(path, key)
    authority = new_authority(key, wanted, now)
    pem.write_certificate(ca_file(directory), authority.certificate)
    return authority


def _read_authority(path: Path, key_path: Path) -> Authority:
    try:
        certificate, key = pem.read_certificate(path), _signing_key(key_path)
    except Rejected as error:
        raise Rejected(f"the CA in {str(path.parent)!r} cannot be used: {error}; or {_MOVE_AWAY}") from error
    if not pem.belong_together(certificate, key):
        raise Rejected(f"CA {str(path)!r} does not belong to the key 'ca.key' beside it: put it back, or {_MOVE_AWAY}")
    return Authority(certificate=certificate, key=key)


def _signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = pem.key_in(file.read_private(path), path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Rejected(f"key {str(path)!r} is no EC key, so not of forewarn's making: put the right one back")
    return key


def _serving(directory: Path, authority: Authority, wanted: tuple[str, ...], now: float) -> Pair | None:
    """The server's certificate and key, if they will do for a while."""
    path, key_path = _server_files(directory)
    if not (path.exists() and key_path.exists()):
        return None
    content = file.read_private(key_path)
    try:
        certificate, key = pem.read_certificate(path), pem.key_in(content, key_path)
    except Rejected:
        return None
    facts = pem.facts_of(certificate)
    sound = pem.belong_together(certificate, key) and authority.has_signed(certificate)
    return Pair(certificate=path, key=key_path, facts=facts) if sound and _will_do(facts, wanted, now) else None


def _will_do(facts: Facts, wanted: tuple[str, ...], now: float) -> bool:
    return facts.not_before <= now < facts.not_after - _RENEWED_BEFORE_S and set(wanted) <= set(facts.names)


def _renew(directory: Path, authority: Authority, wanted: tuple[str, ...], now: float) -> Pair:
    path, key_path = _server_files(directory)
    key = new_key()
    certificate = server_certificate(authority, key, wanted, now)
    pem.write_key(key_path, key)
    pem.write_certificate(path, certificate)
    return Pair(certificate=path, key=key_path, facts=pem.facts_of(certificate))


def _server_files(directory: Path) -> tuple[Path, Path]:
    return directory / "server.pem", directory / "server.key"
