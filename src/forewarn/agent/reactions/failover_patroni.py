"""Reaction `failover-patroni`: switches a Patroni leader over to a replica the event spares."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, HttpReply, send_call
from forewarn.agent.reactions.options import ReactionKind, SecretUnavailable, read_secret
from forewarn.agent.reactions.step_context import load_undo_notes, reserve_s, save_undo_notes, wait_until
from forewarn.base.tomlfile import BadValue, RawTable, read_flag, read_path, read_text, read_url
from forewarn.client import lists

_LEADER_ROLES = frozenset({"leader", "master", "primary", "standby_leader"})
_RUNNING_STATES = frozenset({"running", "streaming", "in archive recovery"})
_UNKNOWN_LAG = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class _PatroniMember:
    name: str
    role: str  # such as leader, replica or sync_standby
    state: str  # such as running or streaming
    lag: int = 0  # bytes behind the leader; very large if unknown
    may_lead: bool = True  # False: its tags (`nofailover`, `failover_priority` 0) exclude it

    @property
    def is_leader(self) -> bool:
        """True if its role is that of a leader, the leader of a standby cluster included."""
        return self.role in _LEADER_ROLES

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class _PatroniCluster:
    own_name: str  # of the member that answered
    members: tuple[_PatroniMember, ...]  # in Patroni's order
    is_paused: bool = False  # then Patroni requires a candidate

    @property
    def leader(self) -> _PatroniMember | None:
        return next((member for member in self.members if member.is_leader), None)

    @property
    def own_member(self) -> _PatroniMember | None:
        return next((member for member in self.members if member.name == self.own_name), None)

    @property
    def replicas(self) -> tuple[_PatroniMember, ...]:
        """The replicas that can take over, best first: synchronous ones, then those with the least lag."""
        candidates = [
            member for member in self.members if member.is_running and member.may_lead and not member.is_leader
        ]
        return tuple(sorted(candidates, key=lambda member: (member.role != "sync_standby", member.lag)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PatroniApi:
    url: str  # the base URL
    user: str = ""  # "": none
    password_file: Path | None = None  # None: without authentication
    ca_file: Path | None = None  # the CAs to trust for https; None: the system's

    async def cluster(self) -> _PatroniCluster:
        node = await self._get("/patroni")
        cluster = await self._get("/cluster")
        own, members = node.get("patroni"), cluster.get("members")
        if not isinstance(own, dict) or not own.get("name") or not isinstance(members, list):
            raise HttpCallFailed(f"{self.url} is not Patroni's REST API")
        return _PatroniCluster(
            own_name=str(own["name"]),
            members=tuple(_parse_member(each) for each in members if isinstance(each, dict)),
            is_paused=cluster.get("pause") is True,
        )

    async def switch_over(self, leader: str, candidate: str, timeout_s: float) -> HttpReply:
        """Asks Patroni once to switch over from `leader` to `candidate`; does not check who leads then."""
        body = {"leader": leader} | ({"candidate": candidate} if candidate else {})
        secret = self._authorization()
        call = HttpCall(
            url=self._url_of("/switchover"),
            method="POST",
            headers={"Content-Type": "application/json", **secret},
            body=json.dumps(body).encode(),
            ca_file=self.ca_file,
            secrets=tuple(secret.values()),
        )
        return await send_call(call, timeout_s=timeout_s)

    async def _get(self, route: str) -> dict[str, Any]:
        """Reads a route; the status does not matter, because an unhealthy node answers 503 with its data."""
        return (await send_call(HttpCall(url=self._url_of(route), ca_file=self.ca_file))).json

    def _url_of(self, route: str) -> str:
        return self.url.rstrip("/") + route

    def _authorization(self) -> dict[str, str]:
        if self.password_file is None:
            return {}
        pair = f"{self.user}:{read_secret(self.password_file)}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _parse_member(raw: dict[str, Any]) -> _PatroniMember:
    lag, tags = raw.get("lag", 0), raw.get("tags")
    return _PatroniMember(
        name=str(raw.get("name", "")),
        role=str(raw.get("role", "")),
        state=str(raw.get("state", "")),
        lag=lag if isinstance(lag, int) else _UNKNOWN_LAG,
        may_lead=not (isinstance(tags, dict) and (tags.get("nofailover") or tags.get("failover_priority") == 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPatroniOptions:
    api: _PatroniApi  # the REST API of this node's Patroni: `url`, `user`, `password_file` and `ca_file`
    candidate: str = ""  # name of the member to lead; "": a replica that the event does not list, if any, else another
    return_leadership: bool = False  # True: take leadership back when the event is gone


class FailoverPatroniReaction:
    """The reaction `failover-patroni`: hands the leadership of a Patroni cluster over if this node has it."""

    # It first notes that this node leads. Its undo takes leadership back only after such a note, and only if
    # configured.

    def __init__(self, options: FailoverPatroniOptions) -> None:
        self._options = options
        self._api = options.api

    async def do(self, context: StepContext) -> StepOutcome:
        try:
            cluster = await self._api.cluster()
            if not _is_own_node_leader(cluster) and "led" not in load_undo_notes(context):
                return StepOutcome(ok=True, text=f"nothing to hand over: {_leader_name(cluster)} leads")
            if not _is_own_node_leader(cluster):
                return await self._wait_for_new_leader(context)
            ready = await wait_until(context, self._cluster_with_replicas, every_s=0.5)
            if ready is None:
                return StepOutcome(ok=False, text=f"{cluster.own_name} leads, and no running replica can take over")
            save_undo_notes(context, {"led": cluster.own_name})
            return await self._hand_over(context, cluster.own_name, self._candidate(context, ready))
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))

    async def _cluster_with_replicas(self) -> _PatroniCluster | None:
        cluster = await self._api.cluster()
        return cluster if cluster.replicas else None

    def _candidate(self, context: StepContext, cluster: _PatroniCluster) -> str:
        """The candidate: as configured, else a replica the event spares; "" if Patroni may choose."""
        if self._options.candidate:
            return self._options.candidate
        candidates = [member.name for member in cluster.replicas]
        spared = [name for name in candidates if not lists(context.event, name)]
        if cluster.is_paused:
            return (spared or candidates)[0]
        return spared[0] if spared and len(spared) < len(candidates) else ""

    async def _hand_over(self, context: StepContext, leader: str, candidate: str) -> StepOutcome:
        """Asks for the switchover; without a clear reply the cluster's state decides."""
        try:
            reply = await self._api.switch_over(leader, candidate, max(context.left_s() - reserve_s(context), 0.1))
        except HttpCallFailed:
            return await self._wait_for_new_leader(context)
        if not reply.ok and reply.status != 503:
            return StepOutcome(ok=False, text=f"Patroni refuses the switchover: {reply.summary}")
        return await self._wait_for_new_leader(context)

    async def _wait_for_new_leader(self, context: StepContext) -> StepOutcome:
        if not await wait_until(context, self._has_new_leader, every_s=0.5):
            return StepOutcome(
                ok=False, text="at the end of the step's time no other member leads with this one as replica"
            )
        name = _leader_name(await self._api.cluster())
        save_undo_notes(context, {"successor": name})
        return StepOutcome(ok=True, text=f"{name} leads now", notes=load_undo_notes(context))

    async def _has_new_leader(self) -> bool:
        try:
            cluster = await self._api.cluster()
        except HttpCallFailed:
            return False
        leader, own = cluster.leader, cluster.own_member
        return bool(leader and leader.is_running and leader.name != cluster.own_name and own and own.is_running)

    async def undo(self, context: StepContext) -> StepOutcome:
        found = load_undo_notes(context)
        if not self._options.return_leadership or "led" not in found:
            return StepOutcome(ok=True, text="nothing to undo: the current leader stays")
        try:
            return await self._take_leadership_back(context, found)
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))

    async def _take_leadership_back(self, context: StepContext, found: dict[str, str]) -> StepOutcome:
        if not await wait_until(context, self._is_running_member, every_s=0.5):
            return StepOutcome(ok=False, text=f"{found['led']} is not a running member of a cluster with a leader")
        cluster = await self._api.cluster()
        leader = _leader_name(cluster)
        if leader == cluster.own_name:
            return StepOutcome(ok=True, text=f"{leader} leads again")
        if leader != found.get("successor", leader):
            return StepOutcome(ok=True, text=f"{leader} leads, set by someone else, and stays leader")
        reply = await self._api.switch_over(leader, cluster.own_name, max(context.left_s() - reserve_s(context), 0.1))
        if not reply.ok:
            return StepOutcome(ok=False, text=f"Patroni refuses the switchover: {reply.summary}")
        if await wait_until(context, self._is_leader, every_s=0.5):
            return StepOutcome(ok=True, text=f"{cluster.own_name} leads again")
        return StepOutcome(ok=False, text=f"{cluster.own_name} does not lead at the end of the step's time")

    async def _is_running_member(self) -> bool:
        """Whether this node runs in a cluster with a leader; after a reboot that takes a while."""
        try:
            cluster = await self._api.cluster()
        except HttpCallFailed:
            return False
        return bool(
            cluster.leader and cluster.leader.is_running and cluster.own_member and cluster.own_member.is_running
        )

    async def _is_leader(self) -> bool:
        return _is_own_node_leader(await self._api.cluster())

    async def check(self, context: StepContext) -> bool | None:
        try:
            return not _is_own_node_leader(await self._api.cluster()) and await self._has_new_leader()
        except HttpCallFailed:
            return None


def _is_own_node_leader(cluster: _PatroniCluster) -> bool:
    return cluster.leader is not None and cluster.leader.name == cluster.own_name


def _leader_name(cluster: _PatroniCluster) -> str:
    return cluster.leader.name if cluster.leader else "no member"


def _read_options(raw: RawTable) -> FailoverPatroniOptions:
    api = _PatroniApi(
        url=read_url(raw, "url", "http://127.0.0.1:8008"),
        user=read_text(raw, "user"),
        password_file=read_path(raw, "password_file"),
        ca_file=read_path(raw, "ca_file"),
    )
    if bool(api.user) != (api.password_file is not None):
        raise BadValue("user", "user and password_file need each other", "write both, or neither")
    return FailoverPatroniOptions(
        api=api,
        candidate=read_text(raw, "candidate"),
        return_leadership=read_flag(raw, "return_leadership", default=False),
    )


FAILOVER_PATRONI_REACTION = ReactionKind(
    name="failover-patroni",
    summary="switches a Patroni cluster over, if this node leads it",
    options=("url", "user", "password_file", "ca_file", "candidate", "return_leadership"),
    read=_read_options,
    make=FailoverPatroniReaction,
)
