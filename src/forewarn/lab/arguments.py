"""The fleet of a lab: a fleet file, its text, or names of VMs, for which the text is written here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from forewarn.core.proposal import Proposal, read_fleet
from forewarn.errors import Rejected

LONGEST_DOMAINS = 20  # of an availability set
_TERMINATE_MIN = 5


def proposal_from_file(path: str | Path) -> Proposal:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Rejected(f"fleet file {str(path)!r} cannot be read ({error.strerror}): name another") from error
    except UnicodeDecodeError as error:
        raise Rejected(f"fleet file {str(path)!r} is not UTF-8 text: save it as such") from error
    return read_fleet(text, source=str(path))


def fleet_text(vms: Sequence[str], *, spot: Sequence[str] = (), availability_set: str = "") -> str:
    """A fleet file: each VM on a host of its own, and one host to spare, so that work on a host hits one VM."""
    names = (*_listed("vms", vms), *_listed("spot", spot))
    if not names:
        raise Rejected("a lab needs at least one VM: name it, as in Lab(vms=['web-0'])")
    return "\n".join(_tables(names, set(spot), availability_set, len(vms)))


def _listed(parameter: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise Rejected(f"{parameter} is the text {names!r}: give a list of names, as in {parameter}=[{names!r}]")
    return tuple(names)


def _tables(names: Sequence[str], spot: set[str], availability_set: str, together: int) -> Iterator[str]:
    yield f'[[hosts]]\nname = "host-{{n}}"\ncount = {len(names) + 1}\n'
    if availability_set:
        domains = max(1, min(together, LONGEST_DOMAINS))
        yield f"[[availability_sets]]\nname = {_quoted(availability_set)}\nupdate_domains = {domains}\n"
    for number, name in enumerate(names):
        yield f'[[vms]]\nname = {_quoted(name)}\nhost = "host-{number}"'
        if name in spot:
            yield 'priority = "Spot"\n'
            continue
        if availability_set:
            yield f"availability_set = {_quoted(availability_set)}"
        # Else a deletion would be carried out at once, and there would be nothing to rehearse.
        yield f"terminate_notification = {_TERMINATE_MIN}\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
