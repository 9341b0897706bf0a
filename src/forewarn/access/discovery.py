"""What an issuer of OpenID Connect says of itself: where its keys are, and where people and codes are sent."""

from __future__ import annotations

import msgspec

from forewarn.access.claims import shown
from forewarn.access.fetch import fetch
from forewarn.errors import Unavailable

_BASIC, _POST = "client_secret_basic", "client_secret_post"


class Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)

    @property
    def takes_secret_in_form(self) -> bool:
        """Rather than in a header, which is the usual way."""
        known = self.token_endpoint_auth_methods_supported
        return _BASIC not in known and _POST in known


def discovered(issuer_url: str) -> Discovery:
    """Blocks: call it in a thread. Raises Unavailable."""
    try:
        content = fetch(f"{issuer_url.rstrip('/')}/.well-known/openid-configuration")
        found = msgspec.json.decode(content, type=Discovery)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"its openid-configuration cannot be read ({error})") from None
    if found.issuer.rstrip("/") != issuer_url.rstrip("/"):
        raise Unavailable(f"its openid-configuration is that of {shown(found.issuer)}")
    return found
