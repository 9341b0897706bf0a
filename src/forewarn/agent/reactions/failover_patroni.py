"""Reaction `failover-patroni`: switches a Patroni leader over to a replica the event spares."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, HttpReply, send_call
from forewarn.agent.reactions.options import (
    BadOption,
    RawOptions,
    ReactionKind,
    SecretUnavailable,
    read_flag,
    read_path,
    read_secret,
    read_text,
    read_url,
)
from forewarn.agent.reactions.step_context import load_undo_notes, reserve_s, save_undo_notes, wait_until
from forewarn.client import lists

_LEADER_ROLES = frozenset({"leader", "master", "primary", "standby_leader"})
_RUNNING_STATES = frozenset({"running", "streaming", "in archive recovery"})
_UNKNOWN_LAG = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class PatroniMember:
    name: str
    role: str
    state: str
    lag: int = 0
    may_lead: bool = True  # not tagged otherwise

    @property
    def is_leader(self) -> bool:
        return self.role in _LEADER_ROLES

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class PatroniCluster:
    own_name: str  # the name of the member that was asked
    members: tuple[PatroniMember, ...]
    is_paused: bool = False  # Patroni then wants to be told the successor

    @property
    def leader(self) -> PatroniMember | None:
        return next((member for member in self.members if member.is_leader), None)

    @property
    def own_member(self) -> PatroniMember | None:
        return next((member for member in self.members if member.name == self.own_name), None)

    @property
    def replicas(self) -> tuple[PatroniMember, ...]:
        """Those that could take over: synchronous ones first, then by how far they are behind."""
        able = [member for member in self.members if member.is_running and member.may_lead and not member.is_leader]
        return tuple(sorted(able, key=lambda member: (member.role != "sync_standby", member.lag)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PatroniApi:
    url: str
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None

    async def cluster(self) -> PatroniCluster:
        """Raises Unreached, also when what answers is no Patroni."""
        node = await self._get("/patroni")
        whole = await self._get("/cluster")
        own, members = node.get("patroni"), whole.get("members")
        if not isinstance(own, dict) or not own.get("name") or not isinstance(members, list):
            raise HttpCallFailed(f"{self.url} is not Patroni's REST API")
        return PatroniCluster(
            own_name=str(own["name"]),
            members=tuple(_parse_member(each) for each in members if isinstance(each, dict)),
            is_paused=whole.get("pause") is True,
        )

    async def switch_over(self, leader: str, candidate: str, within_s: float) -> HttpReply:
        wish = {"leader": leader} | ({"candidate": candidate} if candidate else {})
        secret = self._authorization()
        call = HttpCall(
            url=self._url_of("/switchover"),
            method="POST",
            headers={"Content-Type": "application/json", **secret},
            body=json.dumps(wish).encode(),
            ca_file=self.ca_file,
            secrets=tuple(secret.values()),
        )
        return await send_call(call, within_s=within_s)

    async def _get(self, route: str) -> dict[str, Any]:
        """A node that is not fit to serve says so with 503, and what it is all the same."""
        return (await send_call(HttpCall(url=self._url_of(route), ca_file=self.ca_file))).json

    def _url_of(self, route: str) -> str:
        return self.url.rstrip("/") + route

    def _authorization(self) -> dict[str, str]:
        if self.password_file is None:
            return {}
        pair = f"{self.user}:{read_secret(self.password_file)}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _parse_member(raw: dict[str, Any]) -> PatroniMember:
    lag, tags = raw.get("lag", 0), raw.get("tags")
    return PatroniMember(
        name=str(raw.get("name", "")),
        role=str(raw.get("role", "")),
        state=str(raw.get("state", "")),
        lag=lag if isinstance(lag, int) else _UNKNOWN_LAG,
        may_lead=not (isinstance(tags, dict) and (tags.get("nofailover") or tags.get("failover_priority") == 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPatroniOptions:
    api: PatroniApi
    candidate: str = ""  # "": whom Patroni thinks best
    return_leadership: bool = False


class FailoverPatroniReaction:
    """That the leadership was ours is remembered before it is given away; only then is it ever taken back."""

    def __init__(self, options: FailoverPatroniOptions) -> None:
        self._options = options
        self._api = options.api

    async def do(self, case: StepContext) -> StepOutcome:
        try:
            cluster = await self._api.cluster()
            if not _is_own_node_leader(cluster) and "led" not in load_undo_notes(case):
                return StepOutcome(ok=True, text=f"nothing to hand over: {_leader_name(cluster)} leads")
            if not _is_own_node_leader(cluster):
                return await self._wait_for_new_leader(case)
            ready = await wait_until(case, self._cluster_with_replicas, every_s=0.5)
            if ready is None:
                return StepOutcome(ok=False, text=f"{cluster.own_name} leads, and no replica runs that could take over")
            save_undo_notes(case, {"led": cluster.own_name})
            return await self._hand_over(case, cluster.own_name, self._candidate(case, ready))
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))

    async def _cluster_with_replicas(self) -> PatroniCluster | None:
        """A replica that is just starting is waited for."""
        cluster = await self._api.cluster()
        return cluster if cluster.replicas else None

    def _candidate(self, case: StepContext, cluster: PatroniCluster) -> str:
        """Whom the event hits as well would have to hand over again: somebody else is named, if there is anybody."""
        if self._options.candidate:
            return self._options.candidate
        able = [member.name for member in cluster.replicas]
        spared = [name for name in able if not lists(case.event, name)]
        if cluster.is_paused:
            return (spared or able)[0]
        return spared[0] if spared and len(spared) < len(able) else ""

    async def _hand_over(self, case: StepContext, leader: str, candidate: str) -> StepOutcome:
        """Patroni answers when it is over, or with a refusal, or not at all: then the cluster is looked at."""
        try:
            reply = await self._api.switch_over(leader, candidate, max(case.left_s() - reserve_s(case), 0.1))
        except HttpCallFailed:
            return await self._wait_for_new_leader(case)
        if not reply.ok and reply.status != 503:
            return StepOutcome(ok=False, text=f"Patroni refuses the switchover: {reply.summary}")
        return await self._wait_for_new_leader(case)

    async def _wait_for_new_leader(self, case: StepContext) -> StepOutcome:
        """Until somebody else leads, and this one follows."""
        if not await wait_until(case, self._has_new_leader, every_s=0.5):
            return StepOutcome(ok=False, text="no other leader runs with this one as its replica when the time is over")
        name = _leader_name(await self._api.cluster())
        save_undo_notes(case, {"successor": name})
        return StepOutcome(ok=True, text=f"{name} leads now", notes=load_undo_notes(case))

    async def _has_new_leader(self) -> bool:
        try:
            cluster = await self._api.cluster()
        except HttpCallFailed:
            return False
        leader, me = cluster.leader, cluster.own_member
        return bool(leader and leader.is_running and leader.name != cluster.own_name and me and me.is_running)

    async def undo(self, case: StepContext) -> StepOutcome:
        found = load_undo_notes(case)
        if not self._options.return_leadership or "led" not in found:
            return StepOutcome(ok=True, text="nothing to undo: whoever leads may go on")
        try:
            return await self._take_leadership_back(case, found)
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))

    async def _take_leadership_back(self, case: StepContext, found: dict[str, str]) -> StepOutcome:
        if not await wait_until(case, self._is_running_member, every_s=0.5):
            return StepOutcome(ok=False, text=f"{found['led']} is no running member of a cluster with a leader")
        cluster = await self._api.cluster()
        leader = _leader_name(cluster)
        if leader == cluster.own_name:
            return StepOutcome(ok=True, text=f"{leader} leads again")
        if leader != found.get("successor", leader):
            return StepOutcome(ok=True, text=f"{leader} leads, which is somebody else's doing")
        reply = await self._api.switch_over(leader, cluster.own_name, max(case.left_s() - reserve_s(case), 0.1))
        if not reply.ok:
            return StepOutcome(ok=False, text=f"Patroni refuses the switchover: {reply.summary}")
        if await wait_until(case, self._is_leader, every_s=0.5):
            return StepOutcome(ok=True, text=f"{cluster.own_name} leads again")
        return StepOutcome(ok=False, text=f"{cluster.own_name} does not lead when the time is over")

    async def _is_running_member(self) -> bool:
        """After a reboot it takes a while until Patroni and PostgreSQL are there."""
        try:
            cluster = await self._api.cluster()
        except HttpCallFailed:
            return False
        return bool(
            cluster.leader and cluster.leader.is_running and cluster.own_member and cluster.own_member.is_running
        )

    async def _is_leader(self) -> bool:
        return _is_own_node_leader(await self._api.cluster())

    async def check(self, case: StepContext) -> bool | None:
        try:
            return not _is_own_node_leader(await self._api.cluster()) and await self._has_new_leader()
        except HttpCallFailed:
            return None


def _is_own_node_leader(cluster: PatroniCluster) -> bool:
    return cluster.leader is not None and cluster.leader.name == cluster.own_name


def _leader_name(cluster: PatroniCluster) -> str:
    return cluster.leader.name if cluster.leader else "nobody"


def read_options(raw: RawOptions) -> FailoverPatroniOptions:
    api = PatroniApi(
        url=read_url(raw, "url", "http://127.0.0.1:8008"),
        user=read_text(raw, "user"),
        password_file=read_path(raw, "password_file"),
        ca_file=read_path(raw, "ca_file"),
    )
    if bool(api.user) != (api.password_file is not None):
        raise BadOption("user", "user and password_file go together", "write both, or neither")
    return FailoverPatroniOptions(
        api=api,
        candidate=read_text(raw, "candidate"),
        return_leadership=read_flag(raw, "return_leadership", default=False),
    )


FAILOVER_PATRONI_REACTION = ReactionKind(
    name="failover-patroni",
    summary="hands the leadership of a Patroni cluster over, if it is here",
    options=("url", "user", "password_file", "ca_file", "candidate", "return_leadership"),
    read=read_options,
    make=FailoverPatroniReaction,
)
