"""Patroni's REST API: what a cluster is like just now, and the switchover."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.agent.reaction.secret import secret_in
from forewarn.agent.reaction.web import Call, Reply, Unreached, send

_LEADING = frozenset({"leader", "master", "primary", "standby_leader"})
_RUNNING = frozenset({"running", "streaming", "in archive recovery"})
_FAR_BEHIND = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    name: str
    role: str
    state: str
    lag: int = 0
    may_lead: bool = True  # not tagged otherwise

    @property
    def leads(self) -> bool:
        return self.role in _LEADING

    @property
    def runs(self) -> bool:
        return self.state in _RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    own: str  # the name of the member that was asked
    members: tuple[Member, ...]
    is_paused: bool = False  # Patroni then wants to be told the successor

    @property
    def leader(self) -> Member | None:
        return next((member for member in self.members if member.leads), None)

    @property
    def me(self) -> Member | None:
        return next((member for member in self.members if member.name == self.own), None)

    @property
    def replicas(self) -> tuple[Member, ...]:
        """Those that could take over: synchronous ones first, then by how far they are behind."""
        able = [member for member in self.members if member.runs and member.may_lead and not member.leads]
        return tuple(sorted(able, key=lambda member: (member.role != "sync_standby", member.lag)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    url: str
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None

    async def cluster(self) -> Cluster:
        """Raises Unreached, also when what answers is no Patroni."""
        node = await self._get("/patroni")
        whole = await self._get("/cluster")
        own, members = node.get("patroni"), whole.get("members")
        if not isinstance(own, dict) or not own.get("name") or not isinstance(members, list):
            raise Unreached(f"{self.url} is not Patroni's REST API")
        return Cluster(
            own=str(own["name"]),
            members=tuple(_member(each) for each in members if isinstance(each, dict)),
            is_paused=whole.get("pause") is True,
        )

    async def switch_over(self, leader: str, candidate: str, within_s: float) -> Reply:
        wish = {"leader": leader} | ({"candidate": candidate} if candidate else {})
        secret = self._authorization()
        call = Call(
            url=self._at("/switchover"),
            method="POST",
            headers={"Content-Type": "application/json", **secret},
            body=json.dumps(wish).encode(),
            ca_file=self.ca_file,
            secrets=tuple(secret.values()),
        )
        return await send(call, within_s=within_s)

    async def _get(self, route: str) -> dict[str, Any]:
        """A node that is not fit to serve says so with 503, and what it is all the same."""
        return (await send(Call(url=self._at(route), ca_file=self.ca_file))).json

    def _at(self, route: str) -> str:
        return self.url.rstrip("/") + route

    def _authorization(self) -> dict[str, str]:
        if self.password_file is None:
            return {}
        pair = f"{self.user}:{secret_in(self.password_file)}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _member(raw: dict[str, Any]) -> Member:
    lag, tags = raw.get("lag", 0), raw.get("tags")
    return Member(
        name=str(raw.get("name", "")),
        role=str(raw.get("role", "")),
        state=str(raw.get("state", "")),
        lag=lag if isinstance(lag, int) else _FAR_BEHIND,
        may_lead=not (isinstance(tags, dict) and (tags.get("nofailover") or tags.get("failover_priority") == 0)),
    )
