"""Reads and writes certificates and private keys as PEM files, and the facts people compare them by."""

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
    """What a person compares a certificate by."""

    fingerprint: str  # SHA-256, as openssl prints it
    names: tuple[str, ...]
    not_before: float
    not_after: float


class CertificateFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and its key, as files that belong together."""

    certificate: Path
    key: Path
    facts: CertificateFacts


class HasPublicKey(Protocol):
    """A certificate, or a private key."""

    def public_key(self) -> PublicKeyTypes: ...


def read_certificate(path: Path) -> x509.Certificate:
    """The first one in the file."""
    try:
        return x509.load_pem_x509_certificates(secure_files.read_public(path))[0]
    except ValueError as error:
        raise Rejected(f"file {str(path)!r} is no certificate in PEM: give one that begins with BEGIN") from error


def parse_private_key(content: bytes, path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise Rejected(f"key {str(path)!r} is protected by a passphrase: give it without one, mode 0600") from None
    except (ValueError, UnsupportedAlgorithm):
        # Not `from` the cause: what a parser says of a key's bytes is nobody's business.
        raise Rejected(f"file {str(path)!r} is no private key in PEM: give the certificate's own key") from None


def write_key(path: Path, key: PrivateKeyTypes) -> None:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secure_files.write_private(path, key.private_bytes(serialization.Encoding.PEM, form, plain))


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    secure_files.write_public(path, certificate.public_bytes(serialization.Encoding.PEM))


def public_keys_match(one: HasPublicKey, other: HasPublicKey) -> bool:
    return _public_bytes(one) == _public_bytes(other)


def require_valid_now(path: Path, facts: CertificateFacts, now: float, advice: str) -> None:
    if now >= facts.not_after:
        raise Rejected(f"certificate {str(path)!r} expired at {iso_date(facts.not_after)}: {advice}")
    if now < facts.not_before:
        raise Rejected(
            f"certificate {str(path)!r} is not valid before {iso_date(facts.not_before)}: set the clock, or {advice}"
        )


def certificate_facts(certificate: x509.Certificate) -> CertificateFacts:
    return CertificateFacts(
        fingerprint=certificate.fingerprint(SHA256()).hex(":").upper(),
        names=names_in_certificate(certificate),
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def _public_bytes(thing: HasPublicKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return thing.public_key().public_bytes(serialization.Encoding.DER, form)
