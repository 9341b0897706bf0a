"""Commands for a service in the background: `down`, `reset`, `status`, and what `up --detach` does.

A detached service writes its messages to `service.log` in its data directory. Its start options are in
`detached.json`, with which `reset` starts it again. Commands that start one lock `service.log`, so that of several at
once only one starts a service, and the others find it.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from forewarn.base.duration import exact_duration_text
from forewarn.cli.api_client import ApiClient, JsonObject, ServiceFailure, ServiceNotRunning
from forewarn.cli.invocation import Invocation, duration, local_command, require_server_extra, service_command
from forewarn.cli.output import count_noun
from forewarn.cli.service_banner import print_running_supervisors, print_service, print_status
from forewarn.cli.transport import LocalTransport
from forewarn.errors import ForewarnError, Refused, Rejected, Unavailable

_LOG_FILE = "service.log"
_DETACHED_FILE = "detached.json"
_LOG_LINES_SHOWN = 10
_START_TIMEOUT_S = 120.0
_POLL_INTERVAL_S = 0.05
_NOT_FOR_THE_CHILD = frozenset({"detach", "wait_ready"})


@dataclass(frozen=True, slots=True)
class _DetachedService:
    pid: int
    arguments: tuple[str, ...]  # options of `forewarn up`, without --data
    directory: str  # the working directory, to which paths in the options are relative

    @classmethod
    def load(cls, data: Path) -> _DetachedService | None:
        try:
            found = json.loads((data / _DETACHED_FILE).read_text(encoding="utf-8"))
            return cls(int(found["pid"]), tuple(found["arguments"]), str(found["directory"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, data: Path) -> None:
        (data / _DETACHED_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def child_arguments(ctx: click.Context) -> tuple[str, ...]:
    """Return the options of `up` that the user typed, with their values, as arguments for another process."""
    arguments: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        typed = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if not typed or name not in ctx.params or name in _NOT_FOR_THE_CHILD:
            continue
        value, flag = ctx.params[name], option.opts[0]
        if isinstance(value, bool):
            arguments.append(flag)
        else:
            for each in value if isinstance(value, tuple) else (value,):
                arguments += [flag, str(each)]
    return tuple(arguments)


def start_detached(call: Invocation, data: Path, arguments: tuple[str, ...], *, wait_ready: bool) -> None:
    """Start a lab in the background, and print its process id or, with `wait_ready`, its addresses.

    Returns once the lab has locked the directory or, with `wait_ready`, once it serves. If a lab already runs or starts
    there, it waits until that lab answers.
    """
    with _sole_starter(call, data):
        pid = running_pid(data)
        child = _start(data, arguments, Path.cwd(), reads_answer=wait_ready) if pid is None else None
        if child is not None and child.poll() is not None and (pid := running_pid(data)) is None:
            raise _start_failure(data, child)
    if child is None or pid is not None:
        assert pid is not None
        _print_running(call, data, pid)
        return
    log = data / _LOG_FILE
    if wait_ready:
        print_service(call.output, _wait_until_ready(call, data, child))
        return
    if call.output.as_json:
        call.output.print_json({"pid": child.pid, "log": str(log), "data": str(data)})
    else:
        call.output.print_line(f"The lab is starting in the background (process {child.pid}).")
        call.output.print_facts([("data", str(data)), ("log", str(log))])
        call.output.print_hints([("forewarn status", "whether it is up"), ("forewarn down", "stop it")])


def _print_running(call: Invocation, data: Path, pid: int) -> None:
    api = ApiClient(LocalTransport(data))
    with call.output.stderr.status("waiting for the lab that is starting …"):
        if not _wait_until(lambda: _answers(api) or running_pid(data) != pid, _START_TIMEOUT_S):
            raise _still_starting(pid, _START_TIMEOUT_S)
    try:
        info = api.get("service")
    except ServiceNotRunning:
        raise _between_states(data, pid) from None
    if not info["lab"]:
        raise Refused(f"the service in {data} (process {pid}) is not a lab: give the lab another directory with --data")
    call.output.print_note(f"a lab runs in {data} already (process {pid}); it was not started again")
    print_service(call.output, info)


def _answers(api: ApiClient) -> bool:
    try:
        api.get("service")
    except ServiceNotRunning:
        return False
    return True


def _between_states(data: Path, pid: int) -> Unavailable:
    return Unavailable(f"the service in {data} (process {pid}) is starting or stopping: try again in a moment")


def _still_starting(pid: int, timeout_s: float) -> Unavailable:
    return Unavailable(
        f"the lab (process {pid}) is still starting after {exact_duration_text(timeout_s)}: "
        "`forewarn status` says when it is up, `forewarn down` stops it"
    )


@contextmanager
def _sole_starter(call: Invocation, data: Path) -> Iterator[None]:
    """Let no other command start a background service in this data directory; creates it if needed."""
    # The lock ends with this process; it is on a descriptor that the service does not inherit.
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(data / _LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Rejected(
            f"data directory {str(data)!r} cannot be used ({error.strerror}): name another with --data"
        ) from error
    try:
        with call.output.stderr.status("starting the lab …"):
            if not _wait_until(lambda: _is_locked_now(lock), _START_TIMEOUT_S):
                raise Unavailable(f"another command is starting a lab in {data}: try again when it has ended")
        yield
    finally:
        os.close(lock)


def _is_locked_now(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(data: Path, arguments: tuple[str, ...], directory: Path, *, reads_answer: bool) -> subprocess.Popen[str]:
    """Start a service, and return once it has locked its data directory or has ended."""
    # `detached.json` is written only if it has the lock, so that the file never names a process that another service
    # kept from starting.
    log = os.open(data / _LOG_FILE, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    # -P: modules in the current directory must not replace ours.
    command = [sys.executable, "-P", "-m", "forewarn.cli", "up", "--json", "--data", str(data), *arguments]
    try:
        child = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if reads_answer else subprocess.DEVNULL,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        if not _wait_until(lambda: child.poll() is not None or running_pid(data) == child.pid, _START_TIMEOUT_S):
            raise _still_starting(child.pid, _START_TIMEOUT_S)
        if child.poll() is None:
            _DetachedService(child.pid, arguments, str(directory)).save(data)
    except BaseException:
        child.terminate()
        raise
    return child


def _wait_until_ready(call: Invocation, data: Path, child: subprocess.Popen[str]) -> JsonObject:
    assert child.stdout is not None
    with call.output.stderr.status("starting the lab …"):
        line = _read_line(child, _START_TIMEOUT_S)
    if not line:
        child.wait()
        raise _start_failure(data, child)
    answer: JsonObject = json.loads(line)
    return answer


def _start_failure(data: Path, child: subprocess.Popen[str]) -> ServiceFailure:
    log = (data / _LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    lines = log[-_LOG_LINES_SHOWN:] or [f"it ended with status {child.returncode}"]
    return ServiceFailure("\n".join(["the lab did not start:", *(_message(line) for line in lines)]))


def _message(line: str) -> str:
    """The message of a line of the log, which is an error document if the service has --json."""
    try:
        return str(json.loads(line)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return line


def _read_line(child: subprocess.Popen[str], timeout_s: float) -> str:
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            raise _still_starting(child.pid, timeout_s)
    return child.stdout.readline()


@click.command()
@click.option("--timeout", "timeout_s", type=duration, default="60s", show_default=True, help="Wait at most this long.")
@local_command
def down(call: Invocation, timeout_s: float) -> None:
    """Stop the service on this machine; all data is kept.

    \b
    forewarn down
    forewarn down --data /tmp/lab
    """
    pid = running_pid(call.data)
    pending = stop_service(call, pid, timeout_s) if pid is not None else None
    if call.output.as_json:
        call.output.print_json({"stopped": pid is not None, "pid": pid, "data": str(call.data), "pending": pending})
        return
    if pid is None:
        call.output.print_line(f"No service runs in {call.data}.")
        return
    left = "" if pending is None else f", {count_noun(pending, 'event')} pending"
    call.output.print_line(f"Stopped (process {pid}); all data is kept{left}.")
    print_running_supervisors(call.output, _supervisor_pids(call.data))


@click.command()
@click.option("--yes", is_flag=True, help="Reset without asking.")
@local_command
def reset(call: Invocation, yes: bool) -> None:
    """Set a lab back to its first fleet, without its events and history.

    Certificates and the administrator's secret stay. A lab in the background is started again.

    \b
    forewarn reset --yes
    """
    with require_server_extra("reset"):
        from forewarn.service.data_directory import DataDirectory, require_lab, wipe_lab

    require_lab(call.data)  # first: nobody should stop a production service only to be refused
    detached, pid = _DetachedService.load(call.data), running_pid(call.data)
    if pid is not None and (detached is None or detached.pid != pid):
        raise Refused(
            f"the service in {call.data} runs in a terminal or under a supervisor (process {pid}): stop it there, "
            "then run `forewarn reset` again"
        )
    if not yes and not _confirmed(call.data):
        return
    with _sole_starter(call, call.data):
        if pid is not None:
            stop_service(call, pid, _START_TIMEOUT_S)
        _end_supervisors(call.data)
        directory = DataDirectory.acquire(call.data)
        try:
            wipe_lab(directory)
        finally:
            directory.close()
        if pid is None or detached is None:
            _print_reset(call, None)
            return
        child = _start(call.data, detached.arguments, Path(detached.directory), reads_answer=True)
    _print_reset(call, _wait_until_ready(call, call.data, child))


def _print_reset(call: Invocation, info: JsonObject | None) -> None:
    if call.output.as_json:
        call.output.print_json({"reset": True, "data": str(call.data), "service": info})
    elif info is None:
        call.output.print_line(f"The lab in {call.data} is reset: `forewarn up` starts it with its first fleet.")
    else:
        call.output.print_line("The lab is reset to its first fleet.")
        print_service(call.output, info)


def _confirmed(data: Path) -> bool:
    try:
        return click.confirm(f"Remove the fleet, all events and the history of the lab in {data}?", err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        raise Rejected("nothing was removed, because there is no terminal to confirm it: use --yes to reset") from error


@click.command()
@service_command
def status(call: Invocation) -> None:
    """Show whether the service is up, its addresses and its fleet.

    \b
    forewarn status
    forewarn status --json
    """
    try:
        info = call.api.get("service")
    except ServiceNotRunning:
        if not call.remote_selection and (pid := running_pid(call.data)) is not None:
            raise _between_states(call.data, pid) from None
        raise
    print_status(call.output, info)


def running_pid(data: Path) -> int | None:
    """Return the process id of the service that has locked this data directory; None if none has."""
    with require_server_extra("up"):
        from forewarn.service.data_directory import running_service_pid
    return running_service_pid(data)


def stop_service(call: Invocation, pid: int, timeout_s: float) -> int | None:
    """Stop the service of `call.data` with SIGTERM, wait for its end, and return its pending events."""
    try:
        pending: int | None = call.api.get("service")["counts"]["events"]
    except ForewarnError:
        pending = None  # it is starting or hangs; stop it anyway
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return pending
    except PermissionError as error:
        raise Refused(
            f"the service in {call.data} (process {pid}) belongs to another user: stop it as that user"
        ) from error
    if not _wait_until(lambda: running_pid(call.data) != pid, timeout_s):
        raise Unavailable(
            f"the service in {call.data} (process {pid}) has not ended after {exact_duration_text(timeout_s)}: "
            f"run `forewarn down` again, or end it with `kill -9 {pid}`; every confirmed change is kept"
        )
    return pending


def _supervisor_pids(data: Path) -> list[int]:
    from forewarn.service.data_directory import live_supervisor_pids

    return live_supervisor_pids(data)


def _end_supervisors(data: Path) -> None:
    for pid in _supervisor_pids(data):
        os.kill(pid, signal.SIGTERM)
    if not _wait_until(lambda: not _supervisor_pids(data), _START_TIMEOUT_S):
        pids = " ".join(map(str, _supervisor_pids(data)))
        raise Unavailable(f"some programs in VMs do not end: end them with `kill -9 {pids}`, then reset again")


def _wait_until(condition: Callable[[], Any], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True
