"""Discovery for Azure clients: endpoints, OpenID configuration and signing keys; no authentication.

Every address is built from the one that the client called.
"""

from __future__ import annotations

import re
from typing import Any

from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import MANAGEMENT_AUDIENCES
from forewarn.errors import Refused
from forewarn.web.arm.routing import ArmCall, ArmResponse, ArmRoute
from forewarn.web.dependencies import Dependencies

_TENANT_SUFFIX = re.compile(r"/[^/]+/v2\.0/?$")  # clients add it to the login endpoint themselves


def require_sign_in(dependencies: Dependencies) -> TokenService:
    """Return the token service, which issues tokens to clients of this service."""
    if dependencies.sign_in is None:
        raise Refused("this service has no sign-in: give it an address with the setting 'api'")
    return dependencies.sign_in


async def show_endpoints(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    """Show the metadata of this cloud: its addresses, all as the client called us, and how to sign in."""
    return ArmResponse(body=_cloud_metadata(require_sign_in(dependencies), call.base_url))


async def list_endpoints(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    """Show this cloud's addresses and how to sign in, as the array that ARM_CLOUD_METADATA_URL requires."""
    return ArmResponse(body=[_cloud_metadata(require_sign_in(dependencies), call.base_url)])


async def show_adfs_configuration(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    """Show the OpenID configuration of our own token issuer, with the token endpoint `/adfs/oauth2/token`."""
    return ArmResponse(body=_openid_configuration(require_sign_in(dependencies), call.base_url, "adfs/oauth2/token"))


async def show_tenant_configuration(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    """Show the OpenID configuration of our own token issuer, with the token endpoint of the path's tenant."""
    path = f"{call.path_params['tenant']}/oauth2/v2.0/token"
    return ArmResponse(body=_openid_configuration(require_sign_in(dependencies), call.base_url, path))


async def show_signing_keys(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    """Show the public keys that verify this service's tokens, as a JSON Web Key Set."""
    return ArmResponse(body=require_sign_in(dependencies).issuer.jwks())


def _cloud_metadata(sign_in: TokenService, base: str) -> dict[str, Any]:
    # Clients of each fail if one of theirs is missing.
    return {
        "name": "forewarn",
        "resourceManager": base,
        "authentication": _external_authentication(sign_in.external)
        if sign_in.external
        else _local_authentication(sign_in, base),
        "suffixes": {},
        "portal": f"{base}/",
        "graph": f"{base}/",
        "graphAudience": f"{base}/",
        "gallery": f"{base}/",
        "portalEndpoint": f"{base}/",
        "graphEndpoint": f"{base}/",
        "galleryEndpoint": f"{base}/",
    }


def _local_authentication(sign_in: TokenService, base: str) -> dict[str, Any]:
    audiences = [audience for audience in (base, *MANAGEMENT_AUDIENCES) if sign_in.issuer.accepts(audience)]
    return {
        # With `/adfs` at its end, clients do not ask the vendor about an unknown host.
        "loginEndpoint": f"{base}/adfs",
        "audiences": [f"{audience}/" for audience in audiences],
        "tenant": sign_in.tenant_id,
        "identityProvider": "ADFS",
    }


def _external_authentication(external: ExternalIssuer) -> dict[str, Any]:
    login = _TENANT_SUFFIX.sub("", external.url)
    return {
        "loginEndpoint": login,
        "audiences": sorted(external.audiences),
        "tenant": "common",
        "identityProvider": "AAD",
    }


def _openid_configuration(sign_in: TokenService, base: str, token_path: str) -> dict[str, Any]:
    return {
        "issuer": sign_in.issuer.url,
        "token_endpoint": f"{base}/{token_path}",
        "authorization_endpoint": f"{base}/adfs/oauth2/authorize",  # not served, but clients require it
        "jwks_uri": f"{base}/adfs/discovery/keys",
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        "response_types_supported": ["token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["RS256"],
    }


_OPENID_PATH = "v2.0/.well-known/openid-configuration"

ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", "/metadata/endpoints", show_endpoints, None, summary="shows this cloud's addresses"),
    ArmRoute(
        "GET", "/metadata/endpoints-list", list_endpoints, None, summary="shows this cloud's addresses, in a list"
    ),
    ArmRoute(
        "GET", "/adfs/.well-known/openid-configuration", show_adfs_configuration, None, summary="says where to sign in"
    ),
    ArmRoute(
        "GET",
        f"/{{tenant}}/{_OPENID_PATH}",
        show_tenant_configuration,
        None,
        summary="says where to sign in, by tenant",
    ),
    # az asks this one.
    ArmRoute(
        "GET",
        f"/adfs/{{tenant}}/{_OPENID_PATH}",
        show_adfs_configuration,
        None,
        summary="resolves the name of a tenant",
    ),
    ArmRoute("GET", "/adfs/discovery/keys", show_signing_keys, None, summary="shows the keys that sign tokens"),
)
