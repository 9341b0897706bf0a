"""Where Azure's clients begin: which addresses this cloud has, where to sign in, and by which keys tokens are signed.

Open to anybody, and the same for everybody. Every address is built from the one that the client called.
"""

from __future__ import annotations

import re
from typing import Any

from forewarn.access.issuer import ExternalIssuer
from forewarn.access.sign_in import SignIn
from forewarn.access.token import MANAGEMENT
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute
from forewarn.console.house import House
from forewarn.errors import Refused

_TENANT_PATH = re.compile(r"/[^/]+/v2\.0/?$")  # clients add it themselves to where they sign in


def who_signs_in(house: House) -> SignIn:
    if house.sign_in is None:
        raise Refused("nobody can sign in to this service: give it an address with the setting 'console'")
    return house.sign_in


async def show_endpoints(house: House, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=_cloud(who_signs_in(house), call.base))


async def list_endpoints(house: House, call: ArmCall) -> ArmAnswer:
    """As an array, which `ARM_CLOUD_METADATA_URL` wants."""
    return ArmAnswer(body=[_cloud(who_signs_in(house), call.base)])


async def show_adfs(house: House, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=_configuration(who_signs_in(house), call.base, "adfs/oauth2/token"))


async def show_tenant(house: House, call: ArmCall) -> ArmAnswer:
    """There is one tenant, by whatever name it is called."""
    path = f"{call.names['tenant']}/oauth2/v2.0/token"
    return ArmAnswer(body=_configuration(who_signs_in(house), call.base, path))


async def show_keys(house: House, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=who_signs_in(house).issuer.jwks())


def _cloud(sign_in: SignIn, base: str) -> dict[str, Any]:
    """The names that clients of 2022 and of 2015 look for, in one object. Both fail where one of theirs is missing."""
    return {
        "name": "forewarn",
        "resourceManager": base,
        "authentication": _external(sign_in.external) if sign_in.external else _own(sign_in, base),
        "suffixes": {},
        "portal": f"{base}/",
        "graph": f"{base}/",
        "graphAudience": f"{base}/",
        "gallery": f"{base}/",
        "portalEndpoint": f"{base}/",
        "graphEndpoint": f"{base}/",
        "galleryEndpoint": f"{base}/",
    }


def _own(sign_in: SignIn, base: str) -> dict[str, Any]:
    ours = [audience for audience in (base, *MANAGEMENT) if sign_in.issuer.accepts(audience)]
    return {
        # The end is what keeps clients from asking the vendor about an unknown host.
        "loginEndpoint": f"{base}/adfs",
        "audiences": [f"{audience}/" for audience in ours],
        "tenant": sign_in.tenant_id,
        "identityProvider": "ADFS",
    }


def _external(external: ExternalIssuer) -> dict[str, Any]:
    login = _TENANT_PATH.sub("", external.url)
    return {
        "loginEndpoint": login,
        "audiences": sorted(external.audiences),
        "tenant": "common",
        "identityProvider": "AAD",
    }


def _configuration(sign_in: SignIn, base: str, token_path: str) -> dict[str, Any]:
    return {
        "issuer": sign_in.issuer.url,
        "token_endpoint": f"{base}/{token_path}",
        "authorization_endpoint": f"{base}/adfs/oauth2/authorize",  # not served, but clients insist on it
        "jwks_uri": f"{base}/adfs/discovery/keys",
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        "response_types_supported": ["token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["RS256"],
    }


_OPENID = "v2.0/.well-known/openid-configuration"

ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", "/metadata/endpoints", show_endpoints, None, summary="this cloud's addresses"),
    ArmRoute("GET", "/metadata/endpoints-list", list_endpoints, None, summary="this cloud's addresses, in a list"),
    ArmRoute("GET", "/adfs/.well-known/openid-configuration", show_adfs, None, summary="where to sign in"),
    ArmRoute("GET", f"/{{tenant}}/{_OPENID}", show_tenant, None, summary="where to sign in, by tenant"),
    ArmRoute("GET", f"/adfs/{{tenant}}/{_OPENID}", show_adfs, None, summary="which tenant a name stands for"),  # of az
    ArmRoute("GET", "/adfs/discovery/keys", show_keys, None, summary="the keys that tokens are signed with"),
)
