"""Performs one health check: asks Prometheus or an HTTP server, or runs a command (spec §13.4).

A probe never raises because of what it meets: it says good, bad, unclear or error, with a text for people. It follows
no redirects, reads a bounded part of a response, and ends within twice the check's timeout.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from forewarn.base.http_client import ClientResponse, HttpClient, HttpLimits, HttpRequestFailed
from forewarn.control import check_command
from forewarn.core.health import (
    CheckKind,
    CheckOutcome,
    CheckResult,
    HealthCheck,
    judge_values,
    make_check,
    require_distinct_checks,
)
from forewarn.errors import Refused, Rejected
from forewarn.machines.command_run import CommandResult, CommandRun

_MAX_BODY_BYTES = 256 * 1024
_MAX_ANSWER_BYTES = 2 * 1024 * 1024  # of Prometheus
_MAX_ERROR_TEXT = 200
_TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h: the command could not find out
_REAP_S = 5.0  # until a killed command must have ended
_MAX_SAMPLES = 10_000


class HealthProber:
    """Performs health checks of the kinds Prometheus, HTTP and command; commands only if `allow_commands`."""

    def __init__(self, client: HttpClient, *, allow_commands: bool = False) -> None:
        self._client = client
        self.allow_commands = allow_commands

    def require_usable(self, checks: Sequence[HealthCheck]) -> tuple[HealthCheck, ...]:
        """Return these checks of one rollout if they can be used; performs none of them."""
        # Host names pass, because only a probe resolves them: if their addresses are not allowed, each probe is an
        # error.
        try:
            usable = tuple(map(make_check, checks))
            require_distinct_checks(usable)
        except ValueError as error:
            raise Rejected(str(error)) from error
        for check in usable:
            if check.kind is CheckKind.COMMAND and not self.allow_commands:
                raise Refused(
                    f"check {check.name!r} is a command, which this service does not run: set 'allow_command_checks' "
                    "in its settings, or use another kind of check"
                )
            if check.url:
                self._client.require_allowed(check.url)
        return usable

    async def probe(self, check: HealthCheck) -> CheckResult:
        """Query Prometheus or an HTTP server, or run a command, once for a check; return what it found.

        A command that does not end within the timeout of the check is killed; a response must begin within it, and its
        body may take as long again. Failures are in the result, not raised: its outcome is good, bad, unclear or error.
        An unexpected HTTP status is bad, even a redirect, which is not followed. The outcome is an error without a
        response, after a timeout or a refused query, and for a command that a signal ended, that cannot be started or
        that is not allowed. It is unclear without samples, if a body to be searched broke off, or after an unexpected
        exit status 75. A command gets only PATH and FOREWARN_CHECK (the check's name) as environment. Raises ValueError
        for a figure, which only the service itself knows. Whenever a command ends, and if the task is cancelled, every
        process that the command has started is killed.
        """
        match check.kind:
            case CheckKind.PROMETHEUS:
                return await self._ask_prometheus(check)
            case CheckKind.HTTP:
                return await self._call(check)
            case CheckKind.COMMAND:
                return await self._run(check)
            case CheckKind.FIGURE:
                raise ValueError(f"check {check.name!r} measures a figure of the service, which needs no probe")

    async def _ask_prometheus(self, check: HealthCheck) -> CheckResult:
        query = urlencode({"query": check.query, "timeout": f"{math.ceil(check.timeout_s)}s"})
        url = f"{check.url.rstrip('/')}/api/v1/query?{query}"
        try:
            response = await self._send(check, url, _MAX_ANSWER_BYTES)
        except HttpRequestFailed as error:
            return CheckResult(CheckOutcome.ERROR, f"Prometheus: {error}")
        return _judge_prometheus(check.condition, response)

    async def _call(self, check: HealthCheck) -> CheckResult:
        try:
            response = await self._send(check, check.url, _MAX_BODY_BYTES)
        except HttpRequestFailed as error:
            return CheckResult(CheckOutcome.ERROR, str(error))
        value = float(response.status)
        if response.status != check.status:
            redirect = ", and redirects are not followed" if 300 <= response.status < 400 else ""
            return CheckResult(CheckOutcome.BAD, f"it answered {response.status}, not {check.status}{redirect}", value)
        if check.body and check.body.encode() not in response.body:
            if not response.is_complete:
                return CheckResult(CheckOutcome.UNCLEAR, "its body broke off or is too long to search", value)
            return CheckResult(CheckOutcome.BAD, f"its body does not contain {check.body!r}", value)
        return CheckResult(CheckOutcome.GOOD, f"it answered {response.status}", value)

    async def _send(self, check: HealthCheck, url: str, max_bytes: int) -> ClientResponse:
        limits = HttpLimits(timeout_s=check.timeout_s, body_timeout_s=check.timeout_s, max_body_bytes=max_bytes)
        # The client does not decompress what it reads.
        return await self._client.send("GET", url, headers={"Accept-Encoding": "identity"}, limits=limits)

    async def _run(self, check: HealthCheck) -> CheckResult:
        if not self.allow_commands:
            return CheckResult(CheckOutcome.ERROR, "this service runs no commands: set 'allow_command_checks'")
        with tempfile.TemporaryDirectory(prefix="forewarn-check-", ignore_cleanup_errors=True) as folder:
            environment = {"PATH": os.environ.get("PATH", os.defpath), "FOREWARN_CHECK": check.name}
            output, status = Path(folder) / "output", Path(folder) / "status"
            argv = (sys.executable, "-I", "-S", check_command.__file__, str(status), *check.command)
            try:
                run = CommandRun.start(argv, environment=environment, stdin=b"", output=output)
            except (OSError, ValueError) as error:
                return _not_started(check, error.strerror or "" if isinstance(error, OSError) else str(error))
            is_late = False
            try:
                async with asyncio.timeout(check.timeout_s):
                    ended = await run.wait(within_s=math.inf)
            except TimeoutError:
                is_late, ended = True, await _end_early(run)
            except asyncio.CancelledError:
                await _end_early(run)
                raise
            found = status.read_text() if status.exists() else ""
        last_line = ended.output.splitlines()[-1] if ended.output else ""
        said = f": {last_line}" if last_line else ""
        if is_late:
            return CheckResult(CheckOutcome.ERROR, f"it did not end within {check.timeout_s:g} s{said}")
        try:
            code = int(found)
        except ValueError:
            return _not_started(check, found or last_line)
        if code < 0:
            return CheckResult(CheckOutcome.ERROR, f"signal {-code} ended it{said}")
        text = f"it ended with {code}{said}"
        if code == check.exit_status:
            return CheckResult(CheckOutcome.GOOD, text, code)
        if code == _TEMPORARY_FAILURE:
            return CheckResult(CheckOutcome.UNCLEAR, text, code)
        return CheckResult(CheckOutcome.BAD, f"{text}, not {check.exit_status}", code)


async def _end_early(run: CommandRun) -> CommandResult:
    with suppress(ProcessLookupError):
        os.kill(run.pid, signal.SIGTERM)  # `check_command` kills all that it has started
    return await run.wait(within_s=_REAP_S)


def _not_started(check: HealthCheck, reason: str) -> CheckResult:
    return CheckResult(CheckOutcome.ERROR, f"{check.command[0]} cannot be started: {reason}")


class _PrometheusData(msgspec.Struct, frozen=True):
    result_type: str = msgspec.field(name="resultType")
    result: Any


class _PrometheusAnswer(msgspec.Struct, frozen=True):
    status: str
    data: _PrometheusData | None = None
    error: str = ""


def _judge_prometheus(condition: str, response: ClientResponse) -> CheckResult:
    try:
        answer = msgspec.json.decode(response.body, type=_PrometheusAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the last if it is nested too deeply
        return CheckResult(CheckOutcome.ERROR, f"Prometheus answered {response.status} without a result")
    if answer.status != "success" or answer.data is None:
        reason = answer.error[:_MAX_ERROR_TEXT] or f"it answered {response.status}"
        return CheckResult(CheckOutcome.ERROR, f"Prometheus refused the query: {reason}")
    try:
        return judge_values(condition, _samples(answer.data))
    except (ValueError, KeyError, TypeError, IndexError):
        return CheckResult(CheckOutcome.ERROR, f"a query with a {answer.data.result_type!r} result cannot be compared")


def _samples(data: _PrometheusData) -> list[tuple[str, float]]:
    if data.result_type == "scalar":
        return [("", float(data.result[1]))]
    if data.result_type != "vector" or len(data.result) > _MAX_SAMPLES:
        raise ValueError("not a vector")
    return [(_labels_text(sample["metric"]), float(sample["value"][1])) for sample in data.result]


def _labels_text(metric: dict[str, str]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in sorted(metric.items()) if name != "__name__")
    return metric.get("__name__", "") + (f"{{{labels}}}" if labels else "")
