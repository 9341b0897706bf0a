"""What the agent knows: asked of the running one over its pages, or read from its journal."""

from __future__ import annotations

import http.client
import json
from dataclasses import asdict
from pathlib import Path

from forewarn.agent.config import Config
from forewarn.agent.face import LISTEN, read_address
from forewarn.agent.journal import Journal
from forewarn.agent.ledger import is_held
from forewarn.agent.move import Situation
from forewarn.agent.record import Record
from forewarn.agent.story import story_of
from forewarn.agent.view import state_view
from forewarn.cli.connection import View
from forewarn.client.cursor import read_boot_id
from forewarn.clock import read_real_time
from forewarn.errors import NotFound, Rejected, Unavailable

_PATIENCE_S = 10.0
_SHORTEST_PREFIX = 4


def state_of(config: Config | None, at: str | None) -> View:
    """How things stand; without an agent that answers, as far as the journal tells."""
    where = at or (config.listen if config else "")
    state = _asked(where) if where else None
    if state is not None:
        return {"running": True, "unheard": False, **state}
    if config is None:
        raise Unavailable(f"no agent answers at {where}: start it with `forewarn agent run`, or name its file")
    return {"running": is_held(config.journal), "unheard": True, **_read(config)}


def _asked(where: str) -> View | None:
    """What the agent says at this address; None if nobody listens there."""
    host, port = _address(where)
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE_S)  # which asks no proxy
    try:
        connection.request("GET", "/state")
        answer = connection.getresponse()
        state = json.loads(answer.read())
    except (ConnectionError, TimeoutError):
        return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Rejected(f"what listens at {where} is no agent ({error}): see its `listen`") from error
    finally:
        connection.close()
    if answer.status != 200 or not isinstance(state, dict) or "in_maintenance" not in state:
        raise Rejected(f"what listens at {where} is no agent: see its `listen`")
    return state


def _address(where: str) -> tuple[str, int]:
    try:
        return read_address(where)
    except Rejected:
        raise Rejected(f"{where!r} is no address: give it as {LISTEN}") from None


def _read(config: Config) -> View:
    journal = Journal(config.journal, readonly=True)
    try:
        return state_view(
            Situation(
                book=journal.book,
                rules={rule.name: rule for rule in config.rules},
                steps=config.steps,
                vm=config.vm,
                now=read_real_time(),
                boot_id=read_boot_id(),
            )
        )
    finally:
        journal.close()


def stories_of(config: Config, given: str) -> list[View]:
    """The stories of the event that this begins: several, if it was gone and came again."""
    rules = {rule.name: rule for rule in config.rules}
    return [asdict(story_of(record, rules)) for record in _records(config.journal, given)]


def _records(path: Path, given: str) -> tuple[Record, ...]:
    if len(given) < _SHORTEST_PREFIX:
        raise Rejected(f"{given!r} is too short for an event's id: give at least {_SHORTEST_PREFIX} characters")
    journal = Journal(path, readonly=True)
    try:
        found = journal.find(given)
        ids = list(dict.fromkeys(record.key.partition("#")[0] for record in found))
        latest = [record.key for record in journal.records(3)]
    finally:
        journal.close()
    if not found:
        seen = f"the latest are {', '.join(latest)}" if latest else "the agent has seen none yet"
        raise NotFound(f"no event of the journal begins with {given!r}: {seen}")
    if len(ids) > 1:
        raise Rejected(f"{given!r} begins {len(ids)} events, {', '.join(ids)}: give more of it")
    return found
