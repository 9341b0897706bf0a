"""A local certificate authority and the server certificates it issues. No files.

If all names are loopback names, the CA is constrained to them: trusting it carries little risk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from forewarn.errors import Rejected

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")  # in every server certificate

_CA_LIFETIME = timedelta(days=3652)
_SERVER_LIFETIME = timedelta(days=397)  # clients accept no more
_CLOCK_SKEW = timedelta(hours=1)  # clocks of VMs may be behind ours
_HOST_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?{_HOST_LABEL}(\.{_HOST_LABEL})*", re.ASCII)
_LOOPBACK_CONSTRAINTS = (
    x509.DNSName("localhost"),
    x509.IPAddress(IPv4Network("127.0.0.0/8")),
    x509.IPAddress(IPv6Network("::1/128")),
)


class CertificateAuthority(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate of a local CA and its private key, in memory; it issues server certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def may_sign(self, name: str) -> bool:
        """Return whether the CA's constraints allow a certificate for this host name or address."""
        return _is_loopback_name(name) or not _has_name_constraints(self.certificate)

    def has_signed(self, certificate: x509.Certificate) -> bool:
        """Return whether this CA issued the certificate, by issuer name and signature."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def new_ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def new_certificate_authority(
    key: ec.EllipticCurvePrivateKey, names: Iterable[str], now: float
) -> CertificateAuthority:
    """Return a new self-signed CA with this key, valid for ten years from an hour before `now`.

    If all `names` are loopback names it can sign only loopback names, so trusting it carries little risk.
    """
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = _x509_name(f"forewarn local CA {identifier.digest.hex()[:8]}")  # unique, for bundles with several CAs
    begins = _to_datetime(now) - _CLOCK_SKEW
    builder = _start_builder(subject, subject, key.public_key(), begins, begins + _CA_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    if all(map(_is_loopback_name, names)):
        limits = x509.NameConstraints(permitted_subtrees=_LOOPBACK_CONSTRAINTS, excluded_subtrees=None)
        builder = builder.add_extension(limits, critical=True)
    return CertificateAuthority(certificate=builder.sign(key, SHA256()), key=key)


def issue_server_certificate(
    authority: CertificateAuthority, key: ec.EllipticCurvePrivateKey, names: Iterable[str], now: float
) -> x509.Certificate:
    """Return a server certificate for 397 days, within the validity of the CA. Does not check `may_sign`."""
    issuer = authority.certificate
    begins = max(_to_datetime(now) - _CLOCK_SKEW, issuer.not_valid_before_utc)
    begins = min(begins, issuer.not_valid_after_utc - _CLOCK_SKEW)
    ends = min(
        begins + _SERVER_LIFETIME - timedelta(seconds=1), issuer.not_valid_after_utc
    )  # `not_valid_after` is inclusive
    builder = _start_builder(_x509_name("forewarn server"), issuer.subject, key.public_key(), begins, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), critical=False)
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    pointer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    return builder.add_extension(pointer, critical=False).sign(authority.key, SHA256())


def certificate_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names for a server certificate: LOOPBACK_NAMES, then `names` normalized, each once."""
    return tuple(dict.fromkeys((*LOOPBACK_NAMES, *map(_normalize_name, names))))


def names_in_certificate(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the subject alternative names: host names in lower case, then addresses; () if it has none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    return (*hosts, *map(str, names.get_values_for_type(x509.IPAddress)))


def _is_loopback_name(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _normalize_name(name: str) -> str:
    try:
        return str(ip_address(name))
    except ValueError:
        pass
    if len(name) > 253 or not _HOST_NAME.fullmatch(name.lower()):
        raise Rejected(f"{name!r} is neither a host name nor an address: give one such as 'vmhost.example.org'")
    return name.lower()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _x509_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _to_datetime(now: float) -> datetime:
    return datetime.fromtimestamp(int(now), UTC)


def _start_builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _has_name_constraints(certificate: x509.Certificate) -> bool:
    try:
        certificate.extensions.get_extension_for_class(x509.NameConstraints)
    except x509.ExtensionNotFound:
        return False
    return True
