"""A VM leaves a pool by calls to an HTTP API, and rejoins it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forewarn.agent.model import StepOutcome
from tests.support.reaction_harness import SAMPLE_EVENT, ReactionHarness
from tests.support.scripted_server import ScriptedServer, json_reply
from tests.support.webhook_receiver import ReceiverAnswer, WebhookReceiver


def make_reaction(tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness("leave-pool", options, tmp_path / "case")


def pool_of(receiver: WebhookReceiver, path: str = "") -> str:
    return receiver.url.removesuffix("/hook") + path


def answering(bodies: list[str]) -> Callable[[str, bytes], ReceiverAnswer]:
    """Answers GET requests with these bodies in order, the last one for ever, and all others with 200."""

    def decide(method: str, body: bytes) -> ReceiverAnswer:
        if method != "GET":
            return ReceiverAnswer()
        return ReceiverAnswer(body=(bodies.pop(0) if len(bodies) > 1 else bodies[0]).encode())

    return decide


def test_a_vm_leaves_and_rejoins_the_pool(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        url = pool_of(receiver, "/pool/$vm?event=$event_id")
        pool = make_reaction(tmp_path, leave={"method": "DELETE", "url": url}, back={"method": "PUT", "url": url})
        assert asyncio.run(pool.do()) == StepOutcome(ok=True, text="left the pool")
        assert asyncio.run(pool.undo()) == StepOutcome(ok=True, text="back in the pool")
    target = f"/pool/web-0?event={SAMPLE_EVENT.id}"
    assert [(each.method, each.target) for each in receiver.received] == [("DELETE", target), ("PUT", target)]


def test_placeholder_values_are_escaped(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        body = {"vm": "$vm", "why": ["$kind of $vm", "$$5"], "weight": 0}
        pool = make_reaction(tmp_path, leave={"url": pool_of(receiver, "/p/$vm/x"), "body": body})
        asyncio.run(pool.do(vm='a"/../b', kind='"}'))
    sent = receiver.received[0]
    assert sent.target == "/p/a%22%2F..%2Fb/x"
    assert json.loads(sent.body) == {"vm": 'a"/../b', "why": ['"} of a"/../b', "$5"], "weight": 0}
    assert sent.headers["content-type"] == "application/json"


def test_a_string_body_is_sent_unchanged(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        asyncio.run(make_reaction(tmp_path, leave={"url": receiver.url, "body": "vm=$vm&phase=$phase"}).do())
    assert receiver.received[0].body == b"vm=web-0&phase=do"


def test_headers_with_secrets_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer hush\n")
    with WebhookReceiver() as receiver:
        files = {"Authorization": str(tmp_path / "token")}
        leave = {"url": receiver.url, "headers": {"X-Team": "web"}, "header_files": files}
        assert asyncio.run(make_reaction(tmp_path, leave=leave).do()).ok
    assert receiver.received[0].headers["authorization"] == "Bearer hush"
    assert receiver.received[0].headers["x-team"] == "web"
    assert not any(b"hush" in file.read_bytes() for file in (tmp_path / "case").iterdir())


def test_a_secret_in_an_answer_is_removed_from_the_outcome(tmp_path: Path) -> None:
    """The outcome is in the journal, in the log and on the agent's pages."""
    (tmp_path / "token").write_text("Bearer hush-hush\n")
    with ScriptedServer(json_reply({"refused": "hush-hush"}, status=403)) as server:
        leave = {"url": server.url, "header_files": {"Authorization": str(tmp_path / "token")}}
        outcome = asyncio.run(make_reaction(tmp_path, leave=leave).do())
    assert outcome.text == 'the answer to POST was 403 ({"refused": "…"})'


def test_a_missing_secret_is_reported(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    leave = {"url": "http://127.0.0.1:9/", "header_files": {"Authorization": str(tmp_path / "token")}}
    outcome = asyncio.run(make_reaction(tmp_path, leave=leave).do())
    assert outcome.text == f"{tmp_path}/token is empty: put the secret into its first line"


def test_a_busy_api_is_retried(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        receiver.answer(503, 429)
        assert asyncio.run(make_reaction(tmp_path, leave={"url": receiver.url}).do()).ok
    assert [each.status for each in receiver.received] == [503, 429, 200]


def test_an_api_that_stays_busy_is_reported_in_time(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        receiver.answer(*[503] * 50)
        outcome = asyncio.run(make_reaction(tmp_path, leave={"url": receiver.url}).do(within_s=1.2))
    assert outcome == StepOutcome(ok=False, text="the answer to POST was 503")


def test_a_rejection_is_reported_at_once(tmp_path: Path) -> None:
    with WebhookReceiver(lambda method, body: ReceiverAnswer(status=403, body=b"no  such\nrole")) as receiver:
        outcome = asyncio.run(make_reaction(tmp_path, leave={"url": receiver.url}).do())
    assert outcome == StepOutcome(ok=False, text="the answer to POST was 403 (no such role)")
    assert len(receiver.received) == 1


def test_the_expected_statuses_can_be_configured(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        receiver.answer(404)
        assert asyncio.run(make_reaction(tmp_path, leave={"url": receiver.url, "expect": [200, 404]}).do()).ok


def test_an_api_that_hangs_does_not_exceed_the_steps_time(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        receiver.stop_answering()
        outcome = asyncio.run(make_reaction(tmp_path, leave={"url": receiver.url}).do(within_s=0.5))
    assert not outcome.ok
    assert "gave no answer within" in outcome.text


def test_the_wait_request_is_repeated_until_its_condition_is_met(tmp_path: Path) -> None:
    with WebhookReceiver(answering(['{"state": "draining"}', '{"state": "draining"}', '{"state": "out"}'])) as receiver:
        wait = {"url": receiver.url, "contains": '"out"', "lacks": "draining", "every": "100ms"}
        pool = make_reaction(tmp_path, leave={"url": receiver.url}, wait=wait)
        assert asyncio.run(pool.do()).ok
        assert asyncio.run(pool.check()) is True
    assert [each.method for each in receiver.received] == ["POST", "GET", "GET", "GET", "GET"]


def test_a_condition_that_is_never_met_is_reported(tmp_path: Path) -> None:
    with WebhookReceiver(answering(["draining"])) as receiver:
        wait = {"url": receiver.url, "lacks": "draining", "every": "100ms"}
        pool = make_reaction(tmp_path, leave={"url": receiver.url}, wait=wait)
        outcome = asyncio.run(pool.do(within_s=0.5))
        assert asyncio.run(pool.check()) is False
    assert outcome.text == "left the pool, but the condition of wait is not met at the end of the step's time"
    assert not outcome.ok


def test_without_a_wait_the_check_cannot_tell(tmp_path: Path) -> None:
    assert asyncio.run(make_reaction(tmp_path, leave={"url": "http://127.0.0.1:9/"}).check()) is None


def test_a_vm_that_never_left_does_not_rejoin(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        pool = make_reaction(tmp_path, leave={"url": receiver.url}, back={"url": receiver.url})
        assert asyncio.run(pool.undo()) == StepOutcome(ok=True, text="nothing to undo")
    assert receiver.received == []


def test_a_vm_rejoins_also_if_the_result_of_leaving_is_unknown(tmp_path: Path) -> None:
    """The agent was interrupted during the call."""

    async def scenario(pool: ReactionHarness) -> StepOutcome:
        doing = asyncio.create_task(pool.do())
        await asyncio.to_thread(receiver.wait_for_requests, 1)
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return await pool.undo()

    with WebhookReceiver() as receiver, WebhookReceiver() as other:
        receiver.stop_answering()
        outcome = asyncio.run(scenario(make_reaction(tmp_path, leave={"url": receiver.url}, back={"url": other.url})))
    assert outcome.text == "back in the pool"
    assert len(other.received) == 1
