"""The CA is shown and exported whether a service runs or not."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from forewarn.auth import ServiceCertificates
from forewarn.base.clock import read_real_time
from forewarn.base.times import parse_time


@pytest.fixture
def made(command: Any) -> ServiceCertificates:
    return ServiceCertificates.load_or_create(command.data / "tls", ("lab.localhost",), read_real_time())


def test_the_ca_is_shown_with_its_fingerprint_and_certificate_names(command: Any, made: ServiceCertificates) -> None:
    shown = command.good("ca")
    assert str(command.data / "tls" / "ca.pem") in shown
    assert made.ca.facts.fingerprint in shown
    assert "localhost, lab.localhost, 127.0.0.1" in shown
    view = command.json("ca")
    assert view["fingerprint"] == made.ca.facts.fingerprint
    assert parse_time(view["not_after"]) == made.ca.facts.not_after


def test_the_ca_is_exported_to_a_file_or_to_standard_output(
    command: Any, made: ServiceCertificates, tmp_path: Path
) -> None:
    pem = made.ca.certificate.read_text()
    assert command.good("ca", "export") == command.good("ca", "export", "-") == pem
    file = tmp_path / "out.pem"
    assert "holds the CA. It is not secret" in command.good("ca", "export", str(file))
    assert file.read_text() == pem
    ssl.create_default_context(cafile=str(file))
    assert command.json("ca", "export")["pem"] == pem
    assert "PRIVATE" not in pem


def test_a_file_that_holds_something_else_is_not_overwritten(
    command: Any, made: ServiceCertificates, tmp_path: Path
) -> None:
    file = tmp_path / "out.pem"
    file.write_text("mine")
    assert command.refused("ca", "export", str(file)) == (
        f"{str(file)!r} exists already and is not overwritten: give another file"
    )
    assert file.read_text() == "mine"
    file.write_text(made.ca.certificate.read_text())
    assert command.good("ca", "export", str(file))
    assert "cannot be written" in command.refused("ca", "export", str(tmp_path / "no" / "such"))


def test_without_a_ca_the_command_says_how_one_is_created(command: Any) -> None:
    for arguments in (["ca"], ["ca", "export"]):
        assert command.refused(*arguments).startswith(f"there is no CA in {command.data}: a service creates one when")


def test_a_broken_ca_is_refused(command: Any, made: ServiceCertificates) -> None:
    made.ca.certificate.write_bytes(b"\xff\xfe")
    assert "cannot be read" in command.refused("ca", "export")
    made.ca.certificate.write_text("junk")
    assert "is not a certificate in PEM" in command.refused("ca")
