"""A user's own certificate is used unchanged, or rejected with one sentence that says what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256

from forewarn.auth import pem, secure_files
from forewarn.auth.certificates import ServiceCertificates, load_user_certificate
from forewarn.errors import NotFound, Rejected

NOW = 1_790_000_000.0


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A directory with `server.pem` and `server.key`."""
    ServiceCertificates.load_or_create(tmp_path / "mine", ["vmhost.example.org"], NOW)
    return tmp_path / "mine"


def refusal(certificate: Path, key: Path, now: float = NOW) -> str:
    with pytest.raises(Rejected) as refused:
        load_user_certificate(certificate, key, now=now)
    return str(refused.value)


def test_a_user_certificate_with_its_chain_is_used_unchanged(mine: Path) -> None:
    chain = mine / "fullchain.pem"
    chain.write_bytes((mine / "server.pem").read_bytes() + (mine / "ca.pem").read_bytes())
    pair = load_user_certificate(chain, mine / "server.key", now=NOW)
    assert (pair.certificate, pair.key) == (chain, mine / "server.key")
    assert "vmhost.example.org" in pair.facts.names


def test_a_chain_in_the_wrong_order_is_rejected_with_the_right_order(mine: Path) -> None:
    chain = mine / "chain.pem"
    chain.write_bytes((mine / "ca.pem").read_bytes() + (mine / "server.pem").read_bytes())
    assert "put the server's certificate before its chain" in refusal(chain, mine / "server.key")


def test_the_key_of_another_certificate_is_rejected(mine: Path) -> None:
    assert "ca.key' does not belong to the first certificate" in refusal(mine / "server.pem", mine / "ca.key")


def test_an_expired_user_certificate_is_used_with_a_warning_that_names_its_end(mine: Path) -> None:
    found = load_user_certificate(mine / "server.pem", mine / "server.key", now=NOW + 400 * 86400)
    assert "server.pem' expired at 2027-10-" in found.problem
    assert found.problem.endswith(": give one that is valid now")


def test_a_user_certificate_that_is_not_valid_yet_is_used_with_a_warning(mine: Path) -> None:
    found = load_user_certificate(mine / "server.pem", mine / "server.key", now=NOW - 86400)
    assert "is not valid before 2026-" in found.problem
    assert load_user_certificate(mine / "server.pem", mine / "server.key", now=NOW).problem == ""


def test_a_key_with_a_passphrase_is_rejected_without_a_prompt(mine: Path) -> None:
    key = pem.parse_private_key((mine / "server.key").read_bytes(), mine / "server.key")
    locked = serialization.BestAvailableEncryption(b"open sesame")
    form = serialization.PrivateFormat.PKCS8
    secure_files.write_private(mine / "locked.key", key.private_bytes(serialization.Encoding.PEM, form, locked))
    assert "locked.key' is protected by a passphrase" in refusal(mine / "server.pem", mine / "locked.key")


def test_exchanged_certificate_and_key_files_are_rejected(mine: Path) -> None:
    assert "server.key' is not a certificate in PEM" in refusal(mine / "server.key", mine / "server.pem")
    assert "server.pem' is not a private key in PEM" in refusal(mine / "server.pem", mine / "server.pem")


def test_the_message_about_an_invalid_key_does_not_contain_its_bytes(mine: Path) -> None:
    text = (mine / "server.key").read_text()
    (mine / "cut.key").write_text(text[: len(text) // 2])
    with pytest.raises(Rejected) as refused:
        load_user_certificate(mine / "server.pem", mine / "cut.key", now=NOW)
    assert refused.value.__suppress_context__
    assert text.splitlines()[1][:20] not in str(refused.value)


def test_a_missing_file_and_a_directory_are_named_in_the_message(mine: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file '.*/none.pem'"):
        load_user_certificate(mine / "none.pem", mine / "server.key", now=NOW)
    assert "is not a regular file: name one" in refusal(mine / "server.pem", mine)


def test_a_weak_user_certificate_is_rejected(tmp_path: Path) -> None:

    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weak")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2040, 1, 1, tzinfo=UTC)
    )
    pem.write_certificate(tmp_path / "weak.pem", builder.sign(key, SHA256()))
    pem.write_key(tmp_path / "weak.key", key)
    assert "weak.pem' cannot be served" in refusal(tmp_path / "weak.pem", tmp_path / "weak.key")
