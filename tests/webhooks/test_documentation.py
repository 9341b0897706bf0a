"""The signature check of docs/how-to/webhooks.md works on real messages."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.request import RequestedOperation
from tests.support.webhook_receiver import WebhookReceiver

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md"


@pytest.fixture
def is_from_forewarn() -> Any:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102 (our own page)
    return names["is_from_forewarn"]


def test_the_signature_check_of_the_page_accepts_our_messages_only(
    delivery: Any, receiver: WebhookReceiver, is_from_forewarn: Any
) -> None:
    delivery.real_now = time.time()
    webhook = delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    (received,) = delivery.deliver(receiver, 1)
    headers = {name.title(): value for name, value in received.headers.items()}
    assert is_from_forewarn(headers, received.body, webhook.secret)
    assert not is_from_forewarn(headers, received.body, "another secret, as long as it may be")
    assert not is_from_forewarn(headers, received.body + b" ", webhook.secret)
    assert not is_from_forewarn({}, received.body, webhook.secret)
    later = {**headers, "X-Forewarn-Timestamp": str(int(delivery.real_now) + 1)}
    assert not is_from_forewarn(later, received.body, webhook.secret)


def test_the_signature_check_of_the_page_rejects_old_messages(
    delivery: Any, receiver: WebhookReceiver, is_from_forewarn: Any
) -> None:
    delivery.real_now = time.time() - 400
    webhook = delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    (received,) = delivery.deliver(receiver, 1)
    headers = {name.title(): value for name, value in received.headers.items()}
    assert not is_from_forewarn(headers, received.body, webhook.secret)
