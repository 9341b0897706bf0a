"""The CA bundle: a shell that trusts our CA still trusts the system's CAs."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from forewarn.auth.certificates import ServiceCertificates, write_ca_bundle
from forewarn.errors import NotFound

NOW = 1_790_000_000.0


def a_ca(directory: Path) -> Path:
    return ServiceCertificates.load_or_create(directory, [], NOW).ca.certificate


def trusted_by(path: Path) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    return context.get_ca_certs(binary_form=True)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_the_bundle_has_the_certificates_of_the_system_and_ours(tmp_path: Path) -> None:
    ours, system = a_ca(tmp_path / "tls"), a_ca(tmp_path / "system")
    made = write_ca_bundle(tmp_path / "tls", [tmp_path / "missing.pem", system, ours])
    assert made == tmp_path / "tls" / "ca-bundle.pem"
    assert sorted(trusted_by(made)) == sorted([der(system), der(ours)])
    assert made.stat().st_mode & 0o777 == 0o644


def test_a_machine_without_certificates_gets_a_bundle_with_only_ours(tmp_path: Path) -> None:
    ours = a_ca(tmp_path)
    assert trusted_by(write_ca_bundle(tmp_path, [])) == [der(ours)]


def test_the_bundle_of_this_machine_can_be_loaded(tmp_path: Path) -> None:
    ours = a_ca(tmp_path)
    assert der(ours) in trusted_by(write_ca_bundle(tmp_path))


def test_the_bundle_is_rewritten_only_if_it_is_outdated(tmp_path: Path) -> None:
    a_ca(tmp_path / "tls")
    system = a_ca(tmp_path / "system")
    first = write_ca_bundle(tmp_path / "tls", [system]).stat()
    again = write_ca_bundle(tmp_path / "tls", [system]).stat()
    assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)
    other = a_ca(tmp_path / "other")
    assert der(other) in trusted_by(write_ca_bundle(tmp_path / "tls", [other]))


def test_a_bundle_used_as_the_systems_bundle_keeps_no_old_ca(tmp_path: Path) -> None:
    old = der(a_ca(tmp_path / "tls"))
    system = a_ca(tmp_path / "system")
    made = write_ca_bundle(tmp_path / "tls", [system])
    for name in ("ca.pem", "ca.key"):
        (tmp_path / "tls" / name).unlink()
    ours = a_ca(tmp_path / "tls")
    assert sorted(trusted_by(write_ca_bundle(tmp_path / "tls", [made, system]))) == sorted([der(system), der(ours)])
    assert old not in trusted_by(made)


def test_the_bundles_of_two_labs_that_use_each_other_do_not_grow(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    a_ca(one)
    a_ca(other)
    write_ca_bundle(one, [])
    for _ in range(3):
        write_ca_bundle(other, [one / "ca-bundle.pem"])
        write_ca_bundle(one, [other / "ca-bundle.pem"])
    assert len(trusted_by(one / "ca-bundle.pem")) == 2
    assert (one / "ca-bundle.pem").read_bytes().count(b"BEGIN") == 2


def test_a_bundle_needs_a_ca(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file '.*ca.pem'"):
        write_ca_bundle(tmp_path)
