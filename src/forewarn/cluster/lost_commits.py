"""How control nodes say that their record has lost commits that were acknowledged.

That happens if a standby of PostgreSQL was promoted without the last commits, or a backup was restored.
`service/control_node` says what follows from it.
"""

from __future__ import annotations

_BEGINNING = "PostgreSQL has lost commits: "


def describe_loss(by: str, *, known: int, found: int) -> str:
    """Return the clause about a loss: `by` knew group `known` of a record whose last group is `found`."""
    place = f"the record ended at group {found}" if found < known else "the record has a different one"
    return f"{_BEGINNING}{by} had group {known}, but {place}"


def lost_commits_problem(lost: str) -> str:
    """Return what a control node shows as its problem after a loss."""
    return (
        f"{lost}; VMs may have seen events that it lacks, so every scope gets a new epoch: find out why "
        "synchronous_standby_names did not prevent it"
    )


def tells_of_lost_commits(text: str) -> bool:
    """Return whether a control node's `NodeRow.status` reports lost commits, which do not keep it from taking over."""
    return text.startswith(_BEGINNING)
