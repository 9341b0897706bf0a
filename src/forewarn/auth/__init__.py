"""WHO MAY. Keys, certificates, secrets and tokens: proof of who is asking, and of who answers.

Real time comes in as an argument (spec §12); randomness is drawn here. Never here: which role allows what (that is
`core.access`), the store, HTTP of ours.
"""

from forewarn.access.bundle import bundle
from forewarn.access.certificate import Certificates, own
from forewarn.access.claims import BadToken, Claims, Reason
from forewarn.access.issuer import ExternalIssuer
from forewarn.access.pem import Facts, Pair
from forewarn.access.secret import fits, hashed, keep_secret, new_secret, read_secret
from forewarn.access.signing import SigningKey
from forewarn.access.token import Issued, Issuer, Subject

__all__ = [
    "BadToken",
    "Certificates",
    "Claims",
    "ExternalIssuer",
    "Facts",
    "Issued",
    "Issuer",
    "Pair",
    "Reason",
    "SigningKey",
    "Subject",
    "bundle",
    "fits",
    "hashed",
    "keep_secret",
    "new_secret",
    "own",
    "read_secret",
]
