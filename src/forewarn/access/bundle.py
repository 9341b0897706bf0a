"""A bundle for shells that are told to trust our CA: the system's certificates and ours, so that they still reach the
internet."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from pathlib import Path

from forewarn.access import file
from forewarn.access.certificate import ca_file

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_USUAL = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora and kin
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


def bundle(directory: Path, system: Iterable[Path] | None = None) -> Path:
    """`ca-bundle.pem` beside our CA, written anew where it is missing or stale. `system`: where to look instead."""
    path = directory / "ca-bundle.pem"
    known = _first(_places() if system is None else system, directory)
    # Each once: a shell may name another lab's bundle as the system's, and the two must not grow in turn.
    certificates = dict.fromkeys(_CERTIFICATE.findall(known + file.read_public(ca_file(directory))))
    content = b"".join(certificate + b"\n" for certificate in certificates)
    if not path.exists() or file.read_public(path) != content:
        file.write_public(path, content)
    return path


def _places() -> list[Path]:
    defaults = ssl.get_default_verify_paths()
    return [Path(place) for place in (defaults.cafile, defaults.openssl_cafile, *_USUAL) if place]


def _first(places: Iterable[Path], directory: Path) -> bytes:
    """What the first of these holds that exists; never a bundle of our own, which would outlive our CA."""
    for place in places:
        if place.is_file() and place.resolve().parent != directory.resolve():
            return file.read_public(place)
    return b""
