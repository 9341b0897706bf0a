"""The certificates of the HTTPS port: a local CA and a server certificate, or the user's own.

The CA is created once and never replaced, because clients were configured to trust it. The server certificate is
renewed when needed. Keys are written before certificates, so that a crash leaves nothing unusable.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from forewarn.auth import pem, secure_files
from forewarn.auth.certificate_authority import (
    CertificateAuthority,
    certificate_names,
    issue_server_certificate,
    new_certificate_authority,
    new_ec_key,
)
from forewarn.auth.pem import CertificateFacts, CertificateFiles
from forewarn.errors import Rejected

_RENEW_BEFORE_S = 30 * 86400
_REPLACE_CA_ADVICE = "move 'ca.pem' and 'ca.key' away to get a new CA, which clients must then be made to trust"


class ServiceCertificates(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the service's own CA and server certificate, as they were when they were loaded."""

    ca: CertificateFiles  # of the files ca.pem and ca.key
    server: CertificateFiles  # of the files server.pem, without a chain, and server.key

    @classmethod
    def load_or_create(
        cls, directory: Path, names: Iterable[str], now: float, *, authority: Path | None = None
    ) -> ServiceCertificates:
        """Load the CA and the server certificate; create missing files, and renew a server certificate.

        The server certificate is renewed, with a new key, if it is damaged or not of this CA, lacks one of the names,
        is not valid yet or expires within 30 days. An existing CA is never changed. While the CA is not valid, because
        the clock is wrong or its ten years are over, the dates of the server certificate do not matter, and both have a
        `problem`.
        """
        wanted = certificate_names(names)
        secure_files.make_directory(directory)

        ca_directory = authority or directory
        ca = _load_or_create_authority(ca_directory, wanted, now)
        path, facts = ca_certificate_path(ca_directory), pem.certificate_facts(ca.certificate)
        problem = pem.validity_problem(path, facts, now, _REPLACE_CA_ADVICE)
        server = _usable_server_certificate(directory, ca, wanted, None if problem else now)
        server = server or _renew_server_certificate(directory, ca, wanted, now)
        return cls(
            ca=CertificateFiles(certificate=path, key=_ca_key_path(ca_directory), facts=facts, problem=problem),
            server=msgspec.structs.replace(server, problem=problem),
        )


def load_user_certificate(certificate: Path, key: Path, *, now: float) -> CertificateFiles:
    """Load and check the user's own certificate and key, used instead of a certificate of our CA."""
    leaf, private = pem.read_certificate(certificate), pem.parse_private_key(secure_files.read_public(key), key)
    if not pem.public_keys_match(leaf, private):
        raise Rejected(
            f"key {str(key)!r} does not belong to the first certificate in {str(certificate)!r}: "
            "give the key it was made with, or put the server's certificate before its chain"
        )
    facts = pem.certificate_facts(leaf)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:  # ssl.SSLError is an OSError, for example for a weak key
        raise Rejected(f"certificate {str(certificate)!r} cannot be served ({error}): give another") from error
    problem = pem.validity_problem(certificate, facts, now, "give one that is valid now")
    return CertificateFiles(certificate=certificate, key=key, facts=facts, problem=problem)


def ca_certificate_path(directory: Path) -> Path:
    """Return the path of our CA certificate, `ca.pem`, in the directory `tls`; it may not exist yet."""
    return directory / "ca.pem"


def _ca_key_path(directory: Path) -> Path:
    return directory / "ca.key"


def _load_or_create_authority(directory: Path, wanted: tuple[str, ...], now: float) -> CertificateAuthority:
    path = ca_certificate_path(directory)
    if not path.exists():
        return _create_authority(directory, wanted, now)
    authority = _read_authority(path, _ca_key_path(directory))
    if foreign := [name for name in wanted if not authority.may_sign(name)]:
        raise Rejected(
            f"CA {str(path)!r} can sign loopback names only, not {foreign[0]!r}: "
            f"leave that name out, or {_REPLACE_CA_ADVICE}"
        )
    return authority


def _create_authority(directory: Path, wanted: tuple[str, ...], now: float) -> CertificateAuthority:
    """Create the CA; a key that a crash left without a certificate is used, not replaced."""
    path = _ca_key_path(directory)
    if path.exists():
        key = _read_ca_key(path)
    else:
        key = new_ec_key()
        pem.write_key(path, key)
    authority = new_certificate_authority(key, wanted, now)
    pem.write_certificate(ca_certificate_path(directory), authority.certificate)
    return authority


def _read_authority(path: Path, key_path: Path) -> CertificateAuthority:
    try:
        certificate, key = pem.read_certificate(path), _read_ca_key(key_path)
    except Rejected as error:
        raise Rejected(f"the CA in {str(path.parent)!r} cannot be used: {error}; or {_REPLACE_CA_ADVICE}") from error
    if not pem.public_keys_match(certificate, key):
        raise Rejected(
            f"CA {str(path)!r} does not belong to the key 'ca.key' beside it: put it back, or {_REPLACE_CA_ADVICE}"
        )
    return CertificateAuthority(certificate=certificate, key=key)


def _read_ca_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = pem.parse_private_key(secure_files.read_private(path), path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Rejected(f"key {str(path)!r} is not an EC key, so forewarn did not create it: put the right one back")
    return key


def _usable_server_certificate(
    directory: Path, authority: CertificateAuthority, wanted: tuple[str, ...], now: float | None
) -> CertificateFiles | None:
    path, key_path = _server_paths(directory)
    if not (path.exists() and key_path.exists()):
        return None
    content = secure_files.read_private(key_path)
    try:
        certificate, key = pem.read_certificate(path), pem.parse_private_key(content, key_path)
    except Rejected:
        return None
    facts = pem.certificate_facts(certificate)
    valid = pem.public_keys_match(certificate, key) and authority.has_signed(certificate)
    if not valid or not _is_usable(facts, wanted, now):
        return None
    return CertificateFiles(certificate=path, key=key_path, facts=facts)


def _is_usable(facts: CertificateFacts, wanted: tuple[str, ...], now: float | None) -> bool:
    is_current = now is None or facts.not_before <= now < facts.not_after - _RENEW_BEFORE_S
    return is_current and set(wanted) <= set(facts.names)


def _renew_server_certificate(
    directory: Path, authority: CertificateAuthority, wanted: tuple[str, ...], now: float
) -> CertificateFiles:
    path, key_path = _server_paths(directory)
    key = new_ec_key()
    certificate = issue_server_certificate(authority, key, wanted, now)
    pem.write_key(key_path, key)
    pem.write_certificate(path, certificate)
    return CertificateFiles(certificate=path, key=key_path, facts=pem.certificate_facts(certificate))


def _server_paths(directory: Path) -> tuple[Path, Path]:
    return directory / "server.pem", directory / "server.key"


_PEM_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_USUAL_BUNDLE_PATHS = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


def write_ca_bundle(directory: Path, system: Iterable[Path] | None = None) -> Path:
    """Write `ca-bundle.pem`, the system's CAs and ours, if it is missing or outdated; return its path."""
    path = directory / "ca-bundle.pem"
    known = _read_system_bundle(_system_bundle_paths() if system is None else system, directory)
    # Each once: an environment variable may name another lab's bundle as the system's, and both would grow.
    certificates = dict.fromkeys(
        _PEM_CERTIFICATE.findall(known + secure_files.read_public(ca_certificate_path(directory)))
    )
    content = b"".join(certificate + b"\n" for certificate in certificates)
    if not path.exists() or secure_files.read_public(path) != content:
        secure_files.write_public(path, content)
    return path


def _system_bundle_paths() -> list[Path]:
    defaults = ssl.get_default_verify_paths()
    return [Path(place) for place in (defaults.cafile, defaults.openssl_cafile, *_USUAL_BUNDLE_PATHS) if place]


def _read_system_bundle(places: Iterable[Path], directory: Path) -> bytes:
    """Return the first bundle that exists; never one of our own, which may contain an old CA of ours."""
    for place in places:
        if place.is_file() and place.resolve().parent != directory.resolve():
            return secure_files.read_public(place)
    return b""
