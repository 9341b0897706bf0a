"""Which api-versions Azure's API is asked with. Any will do, unless the service is told to be strict.

Then a version must be one that the vendor has published for the provider, and a member is refused in versions that are
older than it.
"""

from __future__ import annotations

from typing import Any

from forewarn.console.arm.member import MISSING, Path, says_nothing
from forewarn.console.arm.refusal import Coded

# Newest first. Those that clients of 2019 and later were seen to send or have been published for them.
_COMPUTE = (
    "2026-04-01", "2026-03-01", "2025-11-01", "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2023-09-01",
    "2023-07-01", "2023-03-01", "2022-11-01", "2022-08-01", "2022-03-01", "2021-11-01", "2021-07-01", "2021-04-01",
    "2021-03-01", "2020-12-01", "2020-06-01", "2019-12-01", "2019-07-01", "2019-03-01", "2018-10-01", "2018-06-01",
    "2018-04-01", "2017-12-01", "2017-03-30", "2016-03-30", "2015-06-15",
)  # fmt: skip
_MAINTENANCE = ("2025-11-01", "2025-10-01-preview", "2023-10-01-preview")
_RESOURCES = (
    "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2023-07-01", "2022-12-01", "2022-09-01", "2021-04-01",
    "2021-01-01", "2020-10-01", "2020-06-01", "2020-01-01", "2019-11-01", "2019-10-01", "2019-06-01", "2018-05-01",
    "2018-02-01", "2016-06-01", "2015-11-01", "2015-01-01",
)  # fmt: skip
_OF_PROVIDER = {"microsoft.compute": _COMPUTE, "microsoft.maintenance": _MAINTENANCE}
_SHOWN = 5
_SINCE = {
    "scheduledEventsProfile": ("2019-03-01", "VirtualMachineProfile"),
    "scheduledEventsPolicy": ("2024-03-01", "VirtualMachineProperties"),
}


def must_be_known(version: str, path: str) -> None:
    provider = path.casefold().rpartition("/providers/")[2].partition("/")[0]
    known = _OF_PROVIDER.get(provider, _RESOURCES)
    some = (
        f"{', '.join(known[:_SHOWN])} or one of {len(known) - _SHOWN} before"
        if len(known) > _SHOWN
        else ", ".join(known)
    )
    if not version:
        message = f"the query has no api-version, and this service wants one: give {some}"
        raise Coded(400, "MissingApiVersionParameter", message)
    if version.casefold() not in known:
        message = f"api-version {version[:40]!r} is not known for {path[:200]!r}: give {some}"
        raise Coded(400, "InvalidApiVersionParameter", message)


def must_know(version: str, path: Path, sent: Any) -> None:
    """Refuses a member in a version that has none such, as Azure does."""
    since, owner = _SINCE[path[-1]]
    if sent is MISSING or says_nothing(sent) or version >= since:
        return
    message = f"Could not find member '{path[-1]}' on object of type '{owner}': it is there from api-version {since} on"
    raise Coded(400, "BadRequest", message, target=".".join(path))
