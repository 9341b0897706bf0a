"""Authentication: certificates, keys, secrets, tokens, sessions and sign-in at an external issuer.

Real time comes in as an argument (spec §12); random values are made here. Which role allows what is in `core`. It
may import `core`, `protocol` and `base`. Start reading at `token_service`.
"""

from forewarn.auth.certificates import ServiceCertificates, load_user_certificate, write_ca_bundle
from forewarn.auth.claims import Claims, InvalidToken, TokenErrorReason
from forewarn.auth.client_secrets import hash_secret, new_secret, read_secret, secret_matches, write_secret
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.pem import CertificateFacts, CertificateFiles
from forewarn.auth.tokens import IssuedToken, SigningKey, TokenIssuer, TokenSubject

__all__ = [
    "CertificateFacts",
    "CertificateFiles",
    "Claims",
    "ExternalIssuer",
    "InvalidToken",
    "IssuedToken",
    "ServiceCertificates",
    "SigningKey",
    "TokenErrorReason",
    "TokenIssuer",
    "TokenSubject",
    "hash_secret",
    "load_user_certificate",
    "new_secret",
    "read_secret",
    "secret_matches",
    "write_ca_bundle",
    "write_secret",
]
