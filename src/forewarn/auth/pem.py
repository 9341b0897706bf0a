"""Reads and writes certificates and private keys as PEM files, and extracts facts of certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256

from forewarn.auth import secure_files
from forewarn.auth.certificate_authority import names_in_certificate
from forewarn.errors import Rejected
from forewarn.protocol.dates import iso_date


class CertificateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that people compare and check about a certificate, made by `certificate_facts`."""

    fingerprint: str  # SHA-256, as openssl prints it: pairs of capital hex digits with colons
    names: tuple[str, ...]  # host names in lower case, then addresses
    not_before: float  # the first second of its validity: real time in POSIX seconds
    not_after: float  # its last second, POSIX seconds; `validity_problem` counts it as expired already


class CertificateFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of a certificate and its private key, and the facts of the certificate when it was loaded."""

    certificate: Path  # PEM, perhaps with its chain
    key: Path  # PEM, not encrypted
    facts: CertificateFacts  # of the first certificate in the file
    problem: str = ""  # why clients do not trust it now, and what to do; "": it and its CA are valid


class HasPublicKey(Protocol):
    """A certificate or a private key of `cryptography`: anything that has a public key."""

    def public_key(self) -> PublicKeyTypes:
        """Return the public key of the certificate or of the private key."""


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(secure_files.read_public(path))[0]
    except ValueError as error:
        raise Rejected(
            f"file {str(path)!r} is not a certificate in PEM: give one with a line BEGIN CERTIFICATE"
        ) from error


def parse_private_key(content: bytes, path: Path) -> PrivateKeyTypes:
    """Return the private key in PEM content, of any algorithm; `path` is only named in errors."""
    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise Rejected(f"key {str(path)!r} is protected by a passphrase: give it without one, mode 0600") from None
    except (ValueError, UnsupportedAlgorithm):
        # Not `from` the cause: the parser's error could quote bytes of the key.
        raise Rejected(f"file {str(path)!r} is not a private key in PEM: give the certificate's own key") from None


def write_key(path: Path, key: PrivateKeyTypes) -> None:
    """Write a private key unencrypted (PEM, PKCS 8) to a file with mode 0600, atomically and durably."""
    pkcs8, unencrypted = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secure_files.write_private(path, key.private_bytes(serialization.Encoding.PEM, pkcs8, unencrypted))


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate as PEM to a file with mode 0644, atomically and durably."""
    secure_files.write_public(path, certificate.public_bytes(serialization.Encoding.PEM))


def public_keys_match(one: HasPublicKey, other: HasPublicKey) -> bool:
    """Return whether two certificates or private keys have the same public key."""
    return _public_bytes(one) == _public_bytes(other)


def validity_problem(path: Path, facts: CertificateFacts, now: float, advice: str) -> str:
    """Return why the certificate with these facts is not valid now, with `advice`; "" if it is valid."""
    # This is no error: the clock may be wrong, and VMs must be served all the same.
    if now >= facts.not_after:
        return f"certificate {str(path)!r} expired at {iso_date(facts.not_after)}: {advice}"
    if now < facts.not_before:
        dates = f"before {iso_date(facts.not_before)}, and it is {iso_date(now)}"
        return f"certificate {str(path)!r} is not valid {dates}: set the clock, or {advice}"
    return ""


def certificate_facts(certificate: x509.Certificate) -> CertificateFacts:
    """Return the fingerprint, names and validity of a certificate, as they are compared and shown."""
    return CertificateFacts(
        fingerprint=certificate.fingerprint(SHA256()).hex(":").upper(),
        names=names_in_certificate(certificate),
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def _public_bytes(thing: HasPublicKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return thing.public_key().public_bytes(serialization.Encoding.DER, form)
