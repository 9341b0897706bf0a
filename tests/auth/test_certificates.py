"""The local CA is created once and kept; the server certificate is renewed when needed."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from forewarn.auth import secure_files
from forewarn.auth.certificates import ServiceCertificates
from forewarn.errors import Rejected, Unavailable

NOW = 1_790_000_000.0
DAY = 86400.0
Spoiling = Callable[[Path], object]
PRIVATE = ("ca.key", "server.key")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def the_certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_first_start_creates_a_ca_and_a_server_certificate(tmp_path: Path) -> None:
    made = ServiceCertificates.load_or_create(tmp_path / "tls", ["VMHost.example.org"], NOW)
    assert modes(tmp_path / "tls") == {"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600}
    assert made.server.facts.names == ("localhost", "vmhost.example.org", "127.0.0.1", "::1")
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def test_a_ca_is_valid_for_ten_years_and_a_server_certificate_as_long_as_clients_accept(tmp_path: Path) -> None:
    made = ServiceCertificates.load_or_create(tmp_path, [], NOW)
    assert made.ca.facts.not_after - NOW > 3650 * DAY
    assert made.server.facts.not_after - made.server.facts.not_before < 397 * DAY
    assert made.server.facts.not_before < NOW - 600  # for clients whose clock is behind


def test_a_second_start_keeps_the_certificates(tmp_path: Path) -> None:
    first = ServiceCertificates.load_or_create(tmp_path, ["a.example"], NOW)
    before = contents(tmp_path)
    assert ServiceCertificates.load_or_create(tmp_path, ["A.example"], NOW + 300 * DAY) == first
    assert ServiceCertificates.load_or_create(tmp_path, [], NOW + 300 * DAY) == first  # fewer names are covered too
    assert contents(tmp_path) == before


def test_the_fingerprint_is_the_one_that_openssl_prints(tmp_path: Path) -> None:
    made = ServiceCertificates.load_or_create(tmp_path, [], NOW)
    shown = made.ca.facts.fingerprint
    assert len(shown) == 95
    assert shown == shown.upper()
    der = ssl.PEM_cert_to_DER_cert(made.ca.certificate.read_text())
    assert bytes.fromhex(shown.replace(":", "")) == hashlib.sha256(der).digest()


@pytest.mark.parametrize(
    ("names", "later"),
    [([], 380 * DAY), (["new.example"], 0.0), (["10.1.2.3"], 0.0), ([], -2 * 3600.0)],
    ids=["ends soon", "a name more", "an address more", "begins in the future"],
)
def test_an_unusable_server_certificate_is_renewed(tmp_path: Path, names: list[str], later: float) -> None:
    first = ServiceCertificates.load_or_create(tmp_path, ["a.example"], NOW - 3 * DAY)
    ServiceCertificates.load_or_create(tmp_path, ["a.example", "b.example"], NOW)
    before = contents(tmp_path)
    made = ServiceCertificates.load_or_create(tmp_path, names, NOW + later)
    after = contents(tmp_path)
    assert (after["ca.pem"], after["ca.key"]) == (before["ca.pem"], before["ca.key"])
    assert after["server.pem"] != before["server.pem"]
    assert after["server.key"] != before["server.key"]
    assert made.ca == first.ca
    assert set(names) <= set(made.server.facts.names)
    assert made.server.facts.not_before <= NOW + later < made.server.facts.not_after


def test_a_server_certificate_of_another_ca_is_renewed(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ServiceCertificates.load_or_create(ours, [], NOW)
    ServiceCertificates.load_or_create(theirs, [], NOW)
    for name in ("server.pem", "server.key"):
        (ours / name).write_bytes((theirs / name).read_bytes())
    made = ServiceCertificates.load_or_create(ours, [], NOW)
    the_certificate(made.server.certificate).verify_directly_issued_by(the_certificate(made.ca.certificate))


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "server.key"])
def test_a_missing_certificate_file_is_created_again(tmp_path: Path, name: str) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    before = contents(tmp_path)
    (tmp_path / name).unlink()
    made = ServiceCertificates.load_or_create(tmp_path, [], NOW)
    the_certificate(made.server.certificate).verify_directly_issued_by(the_certificate(made.ca.certificate))
    assert (tmp_path / "ca.key").read_bytes() == before["ca.key"]
    assert sorted(contents(tmp_path)) == sorted(before)


@pytest.mark.parametrize("survivors", range(5))
def test_a_crash_after_any_file_of_the_first_start_is_repaired(tmp_path: Path, survivors: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ServiceCertificates.load_or_create(whole, [], NOW)
    broken.mkdir()
    for name in ("ca.key", "ca.pem", "server.key", "server.pem")[:survivors]:  # the order in which they are written
        secure_files.write_private(broken / name, (whole / name).read_bytes())
    made = ServiceCertificates.load_or_create(broken, [], NOW)
    assert sorted(contents(broken)) == sorted(contents(whole))
    the_certificate(made.server.certificate).verify_directly_issued_by(the_certificate(made.ca.certificate))


def test_a_crash_in_the_middle_of_a_renewal_is_repaired(tmp_path: Path) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    old = (tmp_path / "server.pem").read_bytes()
    ServiceCertificates.load_or_create(tmp_path, ["127.0.0.2"], NOW)
    (tmp_path / "server.pem").write_bytes(old)  # the new key was written, the new certificate was not
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    assert (tmp_path / "server.pem").read_bytes() != old


@pytest.mark.parametrize("name", ["server.pem", "server.key"])
def test_invalid_server_certificate_files_are_replaced(tmp_path: Path, name: str) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    (tmp_path / name).write_bytes(b"garbage")
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    assert (tmp_path / name).read_bytes().startswith(b"-----BEGIN")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda tls: (tls / "ca.pem").write_bytes(b"garbage"), "ca.pem' is not a certificate in PEM"),
        (lambda tls: (tls / "ca.key").write_bytes(b"garbage"), "ca.key' is not a private key in PEM"),
        (lambda tls: (tls / "ca.key").unlink(), "there is no file"),
        (lambda tls: (tls / "ca.key").chmod(0o640), "others may read it (mode 0640): run chmod 600"),
        (lambda tls: (tls / "ca.key").write_bytes((tls / "server.key").read_bytes()), "does not belong to the key"),
    ],
    ids=["garbage", "garbage for a key", "no key", "a key others may read", "another key"],
)  # fmt: skip
def test_an_unusable_ca_is_never_replaced(tmp_path: Path, spoil: Spoiling, sentence: str) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    spoil(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(Rejected) as refusal:
        ServiceCertificates.load_or_create(tmp_path, [], NOW)
    assert sentence in str(refusal.value)
    assert "move 'ca.pem' and 'ca.key' away to get a new CA" in str(refusal.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (NOW + 3660 * DAY, r"ca.pem' expired at 2036-.*: move 'ca.pem' and 'ca.key' away"),
        (NOW - DAY, r"ca.pem' is not valid before .*, and it is .*: set the clock, or move"),
    ],
    ids=["expired", "not yet"],
)
def test_a_ca_that_is_not_valid_now_keeps_its_server_certificate_and_says_why(
    tmp_path: Path, now: float, problem: str
) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    before = contents(tmp_path)
    found = ServiceCertificates.load_or_create(tmp_path, [], now)
    assert re.search(problem, found.server.problem)
    assert found.ca.problem == found.server.problem
    assert contents(tmp_path) == before
    assert ServiceCertificates.load_or_create(tmp_path, [], NOW).server.problem == ""


@pytest.mark.parametrize("now", [NOW + 3660 * DAY, NOW - 3660 * DAY], ids=["expired", "not yet"])
def test_a_ca_that_is_not_valid_now_still_issues_a_missing_server_certificate(tmp_path: Path, now: float) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    (tmp_path / "server.pem").unlink()
    found = ServiceCertificates.load_or_create(tmp_path, [], now)
    assert found.ca.facts.not_before <= found.server.facts.not_before < found.server.facts.not_after
    assert found.server.facts.not_after <= found.ca.facts.not_after
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(found.server.certificate, found.server.key)


def test_a_server_certificate_never_outlives_its_ca(tmp_path: Path) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], NOW)
    made = ServiceCertificates.load_or_create(tmp_path, [], NOW + 3600 * DAY)
    assert made.server.facts.not_after == made.ca.facts.not_after


def test_a_ca_for_loopback_names_signs_no_other_names(tmp_path: Path) -> None:
    ServiceCertificates.load_or_create(tmp_path, ["lab.localhost", "127.0.0.9"], NOW)
    with pytest.raises(Rejected, match="loopback names only, not 'vmhost': leave that name out, or move"):
        ServiceCertificates.load_or_create(tmp_path, ["vmhost"], NOW)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a..b", "höst", "*", "a.*.b", "a" * 64, "https://a", "1.2.3.4:5"])
def test_an_invalid_name_is_rejected_before_any_file_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejected, match="is neither a host name nor an address"):
        ServiceCertificates.load_or_create(tmp_path / "tls", [name], NOW)
    assert not (tmp_path / "tls").exists()


def test_private_files_are_private_from_the_first_moment(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ServiceCertificates.load_or_create(tmp_path, [], NOW)
    finally:
        os.umask(before)
    assert {name: modes(tmp_path)[name] for name in PRIVATE} == dict.fromkeys(PRIVATE, 0o600)


def test_a_failed_write_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "server.key").mkdir()  # nothing can be renamed onto a directory
    with pytest.raises(Unavailable, match=r"server.key' cannot be written now"):
        ServiceCertificates.load_or_create(tmp_path, [], NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem", "server.key"]
