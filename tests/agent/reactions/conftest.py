"""Certificates for servers on loopback."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from forewarn.auth.certificates import ServiceCertificates


class Tls(NamedTuple):
    """A CA's file, and the TLS context of a server that it has certified."""

    server: ssl.SSLContext
    ca_file: Path


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    made = ServiceCertificates.load_or_create(tmp_path_factory.mktemp("tls") / "tls", (), time.time())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server.certificate, made.server.key)
    return Tls(context, made.ca.certificate)
