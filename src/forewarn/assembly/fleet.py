"""The first fleet: a fleet file is a proposal, and only an empty store takes it up by itself."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from forewarn.assembly.settings import Settings
from forewarn.control.control import Control
from forewarn.control.fleets import FleetChange
from forewarn.core.proposal import read_fleet
from forewarn.errors import Rejected


def sample_fleet() -> str:
    return resources.files("forewarn.assembly").joinpath("sample-fleet.toml").read_text(encoding="utf-8")


async def apply_first_fleet(control: Control, settings: Settings) -> None:
    if control.store.scope_ids() or control.store.hosts():
        return
    if settings.fleet:
        text, source = _read(Path(settings.fleet)), settings.fleet
    elif settings.lab:
        text, source = sample_fleet(), "the sample fleet"
    else:
        return
    proposal = read_fleet(text, source=source)
    change = FleetChange(hosts=proposal.hosts, vms=proposal.vms, text=f"fleet set up from {source}")
    await control.fleets.change(change, who="forewarn")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Rejected(
            f"fleet file {str(path)!r} cannot be read: {error.strerror}; name another with --fleet"
        ) from error
    except UnicodeDecodeError as error:
        raise Rejected(f"fleet file {str(path)!r} is not UTF-8 text: save it as such") from error
