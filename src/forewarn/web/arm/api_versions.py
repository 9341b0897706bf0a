"""The api-versions that Azure has published per provider, checked only with `strict_api_versions`.

Otherwise every version is accepted. In strict mode a member is rejected in versions that are older than it.
"""

from __future__ import annotations

from typing import Any

from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.update_body import MISSING, MemberPath, is_empty_value

# Newest first: versions that Azure published since 2015 and clients of 2019 and later send.
_COMPUTE_VERSIONS = (
    "2026-04-01", "2026-03-01", "2025-11-01", "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2023-09-01",
    "2023-07-01", "2023-03-01", "2022-11-01", "2022-08-01", "2022-03-01", "2021-11-01", "2021-07-01", "2021-04-01",
    "2021-03-01", "2020-12-01", "2020-06-01", "2019-12-01", "2019-07-01", "2019-03-01", "2018-10-01", "2018-06-01",
    "2018-04-01", "2017-12-01", "2017-03-30", "2016-03-30", "2015-06-15",
)  # fmt: skip
_MAINTENANCE_VERSIONS = (
    "2025-11-01", "2025-10-01-preview", "2023-10-01-preview", "2023-09-01-preview", "2023-04-01", "2022-11-01-preview",
    "2022-07-01-preview", "2021-09-01-preview", "2021-05-01", "2021-04-01-preview", "2020-07-01-preview", "2020-04-01",
    "2018-06-01-preview",
)  # fmt: skip
_RESOURCES_VERSIONS = (
    "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2023-07-01", "2022-12-01", "2022-09-01", "2021-04-01",
    "2021-01-01", "2020-10-01", "2020-06-01", "2020-01-01", "2019-11-01", "2019-10-01", "2019-06-01", "2018-05-01",
    "2018-02-01", "2016-06-01", "2015-11-01", "2015-01-01",
)  # fmt: skip
_VERSIONS_BY_PROVIDER = {"microsoft.compute": _COMPUTE_VERSIONS, "microsoft.maintenance": _MAINTENANCE_VERSIONS}
_LISTED_IN_ERRORS = 5
_MEMBER_SINCE = {
    "scheduledEventsProfile": ("2019-03-01", "VirtualMachineProfile"),
    "scheduledEventsPolicy": ("2024-03-01", "VirtualMachineProperties"),
}


def require_known_version(version: str, path: str) -> None:
    """Raise ArmError 400 unless Azure published this api-version for the provider of a request's path.

    Call it only if the service has `strict_api_versions` on; otherwise every version is accepted.
    """
    provider = path.casefold().rpartition("/providers/")[2].partition("/")[0]
    known = _VERSIONS_BY_PROVIDER.get(provider, _RESOURCES_VERSIONS)
    examples = (
        f"{', '.join(known[:_LISTED_IN_ERRORS])} or one of {len(known) - _LISTED_IN_ERRORS} before"
        if len(known) > _LISTED_IN_ERRORS
        else ", ".join(known)
    )
    if not version:
        message = f"the query has no api-version, and this service requires one: give {examples}"
        raise ArmError(400, "MissingApiVersionParameter", message)
    if version.casefold() not in known:
        message = f"api-version {version[:40]!r} is not known for {path[:200]!r}: give {examples}"
        raise ArmError(400, "InvalidApiVersionParameter", message)


def require_member_supported(version: str, path: MemberPath, sent: Any) -> None:
    """Raise ArmError 400, as Azure does, for a member of a body that is newer than the call's api-version."""
    since, owner = _MEMBER_SINCE[path[-1]]
    if sent is MISSING or is_empty_value(sent) or version >= since:
        return
    message = f"Could not find member '{path[-1]}' on object of type '{owner}': it exists since api-version {since}"
    raise ArmError(400, "BadRequest", message, target=".".join(path))
