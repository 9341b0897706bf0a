"""What a handler claims to do, so that nothing else is demanded of it; and the profiles."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from forewarn.base.tomlfile import RawTable, parse_toml, read_choice, read_flag, read_seconds, read_text_file


class HandlerProfile(StrEnum):
    """What a handler is for."""

    SPOT = "spot"  # saves work before a Spot VM is evicted
    MAINTENANCE = "maintenance"  # prepares one VM for freezes, reboots and redeploys, and recovers
    CLUSTER = "cluster"  # several VMs of a scope, each with a copy of the handler
    OBSERVER = "observer"  # only reports events


class Approves(StrEnum):
    """Whose events a handler approves."""

    NONE = "none"  # it never approves, which is allowed
    OWN = "own"  # events of its own VM, once that is prepared
    SCOPE = "scope"  # events of all VMs of its scope: the vendor's leader pattern


class HandlerClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler says it does; the crash test demands nothing else of it."""

    approves: Approves = Approves.NONE  # whose events it approves
    prepares: bool = False  # it does something before NotBefore; a probe tells whether it has
    recovers: bool = False  # it restores the application after an event
    survives_restart: bool = False  # it continues correctly after it was killed, or after a reboot
    one_shot: bool = False  # it exits after an event, or after one poll, and something starts it again
    polls_every_s: float = 5.0  # the longest time between two polls at rest, in seconds


DEFAULT_CLAIMS: dict[HandlerProfile, HandlerClaims] = {
    HandlerProfile.SPOT: HandlerClaims(prepares=True),
    HandlerProfile.MAINTENANCE: HandlerClaims(
        approves=Approves.OWN, prepares=True, recovers=True, survives_restart=True
    ),
    HandlerProfile.CLUSTER: HandlerClaims(approves=Approves.SCOPE, prepares=True, recovers=True, survives_restart=True),
    HandlerProfile.OBSERVER: HandlerClaims(),
}


def load_claims(path: Path, profile: HandlerProfile) -> HandlerClaims:
    """Read a claims file (TOML) and return its claims; missing claims get the defaults of the profile."""
    return parse_claims(read_text_file(path, "the claims file", "check its path"), profile, source=str(path))


def parse_claims(text: str, profile: HandlerProfile, *, source: str) -> HandlerClaims:
    """Return the claims of a TOML text, with the keys of `load_claims`; `source` names it in messages."""
    table, defaults = parse_toml(text, source), DEFAULT_CLAIMS[profile]
    claims = HandlerClaims(
        approves=Approves(table.read(read_choice, "approves", tuple(Approves), defaults.approves)),
        prepares=table.read(read_flag, "prepares", default=defaults.prepares),
        recovers=table.read(read_flag, "recovers", default=defaults.recovers),
        survives_restart=table.read(read_flag, "survives-restart", default=defaults.survives_restart),
        one_shot=table.read(read_flag, "one-shot", default=defaults.one_shot),
        polls_every_s=table.read(read_poll_interval, "polls-every", defaults.polls_every_s),
    )
    table.reject_unknown_keys()
    table.raise_problems(source)
    return claims


def claims_template(profile: HandlerProfile) -> str:
    """Return the text of a claims file with the defaults of the profile and a comment for each claim."""
    return claims_text(DEFAULT_CLAIMS[profile], f"These are the defaults of profile {profile}.")


def claims_text(claims: HandlerClaims, origin: str) -> str:
    """Return the text of a claims file with these claims, for `load_claims`."""
    return f'''# What this handler does. Nothing else is demanded of it. {origin}
approves = "{claims.approves}"  # none, own (its own VM), or scope (all VMs that share its document)
prepares = {_toml(claims.prepares)}  # it does something before an event starts; --prepared COMMAND shows whether it has
recovers = {_toml(claims.recovers)}  # it restores the application afterwards; --recovered COMMAND shows whether it has
survives-restart = {_toml(claims.survives_restart)}  # it continues correctly after kill -9 or a reboot
one-shot = {_toml(claims.one_shot)}  # it exits after an event or after one poll, and is started again
polls-every = "{claims.polls_every_s:g}s"  # the longest time between two polls when nothing happens
'''


def describe_claims(claims: HandlerClaims) -> str:
    """Return the claims as one phrase, such as `approves its own events, prepares; polls every 5 s`."""
    approves = {
        Approves.NONE: "approves nothing",
        Approves.OWN: "approves its own events",
        Approves.SCOPE: "approves events of its scope",
    }
    others = (
        (claims.prepares, "prepares"),
        (claims.recovers, "recovers"),
        (claims.survives_restart, "survives restarts"),
        (claims.one_shot, "is started again for each event"),
    )
    parts = [approves[claims.approves], *(text for is_claimed, text in others if is_claimed)]
    return f"{', '.join(parts)}; polls every {claims.polls_every_s:g} s"


def read_poll_interval(raw: RawTable, key: str, default: float = 5.0) -> float:
    """Return the seconds of a poll interval, given as a number of seconds or as text such as `5s`."""
    return read_seconds(raw, key, default, least=0.1, most=3600.0)


def _toml(value: bool) -> str:
    return "true" if value else "false"
