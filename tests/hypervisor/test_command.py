"""The command hypervisor: the operator's own commands, their limits and their words, and what a crash leaves."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from forewarn.conformance.hypervisor import HypervisorConformance
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable
from forewarn.hypervisor.command import CommandHypervisor, CommandSpec
from forewarn.hypervisor.command_run import CommandRunJournal
from forewarn.hypervisor.interface import ActDone, ActUnderWay
from tests.support.service_process import eventually

NOW = 1_700_000_000.0
COMMANDER = Path(__file__).with_name("perform_command.py")


def an_act(verb: Verb = Verb.REBOOT, **facts: Any) -> Act:
    given = {"id": "E1:vm-1", "vm": "s/g/vm-1", "name": "vm-1", "event_id": "E1", "from_host": "host-1", **facts}
    return Act(verb=verb, **given)


def shell(script: str, **facts: Any) -> CommandSpec:
    return CommandSpec(run=("sh", "-c", script), **facts)


def told(coroutine: Coroutine[Any, Any, ActDone]) -> ActDone:
    return asyncio.run(coroutine)


async def carried_out(folder: Path, commands: dict[str, CommandSpec], act: Act, patience_s: float = 1.0) -> ActDone:
    command = CommandHypervisor(commands, folder, patience_s=patience_s)
    try:
        while isinstance(answer := await command.perform(act, NOW), ActUnderWay):
            assert answer.at > NOW
        return answer
    finally:
        await command.close()


def test_a_command_is_told_what_to_do_in_its_environment_and_on_its_input(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spec = shell(f'cat > {seen}; env | grep "^FOREWARN_" | sort >> {seen}')
    act = an_act(Verb.MIGRATE, to_host="host-2", duration_s=5)
    assert told(carried_out(tmp_path, {"migrate": spec}, act)) == ActDone(ok=True, note="'sh' ended with code 0")
    first, *lines = seen.read_text().splitlines()
    facts = {
        "act": "E1:vm-1",
        "vm": "vm-1",
        "key": act.vm,
        "verb": "migrate",
        "kind": "Freeze",
        "event": "E1",
        "host": "host-1",
        "to_host": "host-2",
        "duration": "5",
    }
    assert json.loads(first) == facts
    assert {f"FOREWARN_{name.upper()}={text}" for name, text in facts.items()} <= set(lines)


def test_the_command_of_a_verb_goes_before_the_one_for_all(tmp_path: Path) -> None:
    commands = {"*": shell("echo any"), "reboot": shell("echo its own")}
    assert told(carried_out(tmp_path, commands, an_act())).note == "'sh' ended with code 0: its own"
    other = an_act(Verb.START, id="E2:vm-1")
    assert told(carried_out(tmp_path, commands, other)).note == "'sh' ended with code 0: any"


def test_a_verb_without_a_command_fails_and_says_which_setting_to_add(tmp_path: Path) -> None:
    done = told(carried_out(tmp_path, {"start": shell("true")}, an_act()))
    note = "there is no command for reboot: add [commands.reboot] with run = […] to the settings"
    assert done == ActDone(ok=False, note=note)


def test_a_failed_command_is_quoted_with_the_end_of_what_it_wrote(tmp_path: Path) -> None:
    spec = shell("head -c 100000 /dev/zero | tr '\\0' x; echo; echo no such domain >&2; exit 3")
    done = told(carried_out(tmp_path, {"reboot": spec}, an_act()))
    assert not done.ok
    assert done.note.startswith("'sh' ended with code 3: xxx")
    assert done.note.endswith("no such domain")
    assert len(done.note) < 4200


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    done = told(carried_out(tmp_path, {"*": CommandSpec(run=("/no/such/program",))}, an_act()))
    assert done == ActDone(ok=False, note="command '/no/such/program' cannot be started: No such file or directory")


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    spec = shell(f"sleep 600 & echo $! > {pids}; echo begun; wait", timeout_s=0.3)
    done = told(carried_out(tmp_path, {"reboot": spec}, an_act()))
    assert done == ActDone(ok=False, note="'sh' took longer than 0.3 s and was ended: begun")
    eventually(lambda: _is_gone(int(pids.read_text())))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_command_that_takes_its_time_is_asked_after_and_not_run_again(tmp_path: Path) -> None:
    effects, go = tmp_path / "effects", tmp_path / "go"
    spec = shell(f"echo x >> {effects}; while [ ! -e {go} ]; do sleep 0.01; done")

    async def story() -> None:
        command = CommandHypervisor({"reboot": spec}, tmp_path, patience_s=0.01)
        for _ in range(3):
            assert await command.perform(an_act(), NOW) == ActUnderWay(at=NOW + 1)
        go.touch()
        while isinstance(answer := await command.perform(an_act(), NOW), ActUnderWay):
            pass
        assert answer.ok
        await command.close()

    asyncio.run(story())
    assert effects.read_text() == "x\n"


CHECK = ("sh", "-c", 'grep -qx "$FOREWARN_ACT" "$0"')


def interrupted(folder: Path) -> tuple[Path, str]:
    """A service that was killed while its command ran; the command itself goes on and ends well."""
    effects, go = folder / "effects", folder / "go"
    script = f'echo "$FOREWARN_ACT" >> {effects}; while [ ! -e {go} ]; do sleep 0.01; done'
    line = [sys.executable, str(COMMANDER), str(folder), "E1:vm-1", "sh", "-c", script]
    with subprocess.Popen(line) as service:
        eventually(lambda: effects.exists() and effects.read_text())
        service.kill()
    assert service.returncode == -signal.SIGKILL
    go.touch()
    return effects, script


def test_after_a_crash_the_check_keeps_an_act_from_being_done_twice(tmp_path: Path) -> None:
    effects, script = interrupted(tmp_path)
    spec = shell(script, check=(*CHECK, str(effects)))
    done = told(carried_out(tmp_path, {"reboot": spec}, an_act()))
    assert done == ActDone(ok=True, note="reboot was done already, says 'sh'")
    assert effects.read_text() == "E1:vm-1\n"


def test_after_a_crash_and_without_a_check_an_act_is_done_again_and_that_is_said(tmp_path: Path) -> None:
    effects, script = interrupted(tmp_path)
    done = told(carried_out(tmp_path, {"reboot": shell(script)}, an_act()))
    again = "it had begun before the service was interrupted, and was run again for want of a check"
    assert done == ActDone(ok=True, note=f"'sh' ended with code 0; {again}")
    assert effects.read_text() == "E1:vm-1\nE1:vm-1\n"


def begun(folder: Path) -> None:
    """A service that was killed after it had written down that it begins, and before it began."""
    attempts = CommandRunJournal(folder / "attempts.db")
    attempts.begin("E1:vm-1", NOW)
    attempts.close()


def test_what_was_only_about_to_begin_is_done_once(tmp_path: Path) -> None:
    begun(tmp_path)
    effects = tmp_path / "effects"
    spec = shell(f"echo x >> {effects}", check=("false",))
    assert told(carried_out(tmp_path, {"reboot": spec}, an_act())).ok
    assert effects.read_text() == "x\n"


def test_a_check_that_cannot_tell_leaves_the_act_for_later(tmp_path: Path) -> None:
    begun(tmp_path)
    spec = shell(f"touch {tmp_path}/effect", check=("sh", "-c", "echo no route to the host; exit 7"))
    sentence = "whether reboot of VM 'vm-1' was done is not known: 'sh' ended with code 7: no route to the host"
    with pytest.raises(Unavailable, match=re.escape(sentence)):
        told(carried_out(tmp_path, {"reboot": spec}, an_act()))
    assert not (tmp_path / "effect").exists()


@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ({"rebot": shell("true")}, "there is no verb 'rebot'; choose from freeze,"),
        ({"reboot": CommandSpec(run=())}, "'commands.reboot.run' is empty"),
        ({"*": shell("true", timeout_s=0)}, "'commands.*.timeout_s' is 0: give more than 0 seconds"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tmp_path: Path, commands: dict[str, CommandSpec], sentence: str
) -> None:
    with pytest.raises(Rejected, match=re.escape(sentence)):
        CommandHypervisor(commands, tmp_path)


class TestCommand(HypervisorConformance):
    """With a check, as any other hypervisor."""

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.file = tmp_path / "effects"

    async def open(self) -> CommandHypervisor:
        run = ("sh", "-c", 'echo "$FOREWARN_ACT" >> "$0"', str(self.file))
        return CommandHypervisor({"*": CommandSpec(run=run, check=(*CHECK, str(self.file)))}, self.folder)

    def effects(self, act: Act) -> int:
        return self.file.read_text().splitlines().count(act.id) if self.file.exists() else 0
