"""The command hypervisor: the operator's commands, their limits, and recovery after a crash."""

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
from forewarn.machines import command_run
from forewarn.machines.command import CommandHypervisor, CommandSpec
from forewarn.machines.command_run import CommandRunJournal
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay, VerbSupport
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport
from tests.support.service_process import eventually

NOW = 1_700_000_000.0
COMMANDER = Path(__file__).with_name("perform_command.py")


def an_act(verb: Verb = Verb.REBOOT, **facts: Any) -> Act:
    values = {"id": "E1:vm-1", "vm": "s/g/vm-1", "name": "vm-1", "event_id": "E1", "from_host": "host-1", **facts}
    return Act(verb=verb, **values)


def shell(script: str, **facts: Any) -> CommandSpec:
    return CommandSpec(run=("sh", "-c", script), **facts)


def run(coroutine: Coroutine[Any, Any, ActDone]) -> ActDone:
    return asyncio.run(coroutine)


async def perform_until_done(
    folder: Path, commands: dict[str, CommandSpec], act: Act, perform_wait_s: float = 1.0
) -> ActDone:
    command = CommandHypervisor(commands, folder, perform_wait_s=perform_wait_s)
    try:
        while isinstance(answer := await command.perform(act, NOW), ActUnderWay):
            assert answer.at > NOW
        return answer
    finally:
        await command.close()


def test_a_command_gets_the_act_in_its_environment_and_on_stdin(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spec = shell(f'cat > {seen}; env | grep "^FOREWARN_" | sort >> {seen}')
    act = an_act(Verb.MIGRATE, to_host="host-2", duration_s=5)
    assert run(perform_until_done(tmp_path, {"migrate": spec}, act)) == ActDone(ok=True, note="'sh' ended with code 0")
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
        "step": "",
    }
    assert json.loads(first) == facts
    assert {f"FOREWARN_{name.upper()}={text}" for name, text in facts.items()} <= set(lines)


def test_the_output_of_a_running_command_stays_short(tmp_path: Path) -> None:
    written, go = tmp_path / "written", tmp_path / "go"
    fill = f'head -c 3000000 /dev/zero | tr "\\0" x; touch {written}'
    script = f"{fill}; while ! test -e {go}; do sleep 0.01; done; echo the end"

    async def scenario() -> ActDone:
        command = CommandHypervisor({"reboot": shell(script)}, tmp_path, perform_wait_s=0.01)
        try:
            while isinstance(answer := await command.perform(an_act(), NOW), ActUnderWay):
                # It may be shortened while the command still writes; then more than the end is left.
                if written.exists() and all(file.stat().st_size <= 2**20 for file in tmp_path.glob("*.run")):
                    go.touch()
            return answer
        finally:
            await command.close()

    answer = run(scenario())
    assert answer.ok
    assert answer.note.endswith("xthe end")
    assert not list(tmp_path.glob("*.run"))


def test_the_command_of_a_verb_takes_precedence_over_the_general_one(tmp_path: Path) -> None:
    commands = {"*": shell("echo any"), "reboot": shell("echo its own")}
    assert run(perform_until_done(tmp_path, commands, an_act())).note == "'sh' ended with code 0: its own"
    other = an_act(Verb.START, id="E2:vm-1")
    assert run(perform_until_done(tmp_path, commands, other)).note == "'sh' ended with code 0: any"


def test_the_command_hypervisor_supports_the_verbs_that_have_a_command(tmp_path: Path) -> None:
    async def support_of(commands: dict[str, CommandSpec]) -> VerbSupport:
        hypervisor = CommandHypervisor(commands, tmp_path)
        await hypervisor.close()
        return VerbSupport.of(hypervisor)

    some = asyncio.run(support_of({"reboot": shell("true"), "power-off": shell("true")}))
    assert some == VerbSupport(verbs=frozenset({Verb.REBOOT, Verb.POWER_OFF}), setting="[commands.{verb}]")
    assert asyncio.run(support_of({"reboot": shell("true"), "*": shell("true")})).verbs == frozenset(Verb)


def test_a_verb_without_a_command_fails_and_says_which_setting_to_add(tmp_path: Path) -> None:
    done = run(perform_until_done(tmp_path, {"start": shell("true")}, an_act()))
    note = "no command is set for reboot: add [commands.reboot] with run = […] to the settings"
    assert done == ActDone(ok=False, note=note)


def test_an_act_that_failed_without_a_command_stays_failed_when_a_command_is_set(tmp_path: Path) -> None:
    """The store may not have its outcome yet, so the act is performed again after a restart."""
    done = run(perform_until_done(tmp_path, {"start": shell("true")}, an_act()))
    assert run(perform_until_done(tmp_path, {"reboot": shell("true")}, an_act())) == done
    other = an_act(id="E2:vm-1")
    assert run(perform_until_done(tmp_path, {"reboot": shell("true")}, other)).ok


def test_the_note_of_a_failed_command_has_the_end_of_its_output(tmp_path: Path) -> None:
    spec = shell("head -c 100000 /dev/zero | tr '\\0' x; echo; echo no such domain >&2; exit 3")
    done = run(perform_until_done(tmp_path, {"reboot": spec}, an_act()))
    assert not done.ok
    assert done.note.startswith("'sh' ended with code 3: xxx")
    assert done.note.endswith("no such domain")
    assert len(done.note) < 4200


def test_the_note_names_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    done = run(perform_until_done(tmp_path, {"*": CommandSpec(run=("/no/such/program",))}, an_act()))
    assert done == ActDone(ok=False, note="command '/no/such/program' cannot be started: No such file or directory")


def test_a_command_is_killed_with_its_children_after_its_timeout(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    spec = shell(f"sleep 600 & echo $! > {pids}; echo begun; wait", timeout_s=0.3)
    done = run(perform_until_done(tmp_path, {"reboot": spec}, an_act()))
    assert done == ActDone(ok=False, note="'sh' took longer than 0.3 s and was ended: begun")
    eventually(lambda: _is_gone(int(pids.read_text())))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_slow_command_is_waited_for_and_not_run_again(tmp_path: Path) -> None:
    effects, go = tmp_path / "effects", tmp_path / "go"
    spec = shell(f"echo x >> {effects}; while [ ! -e {go} ]; do sleep 0.01; done")

    async def scenario() -> None:
        command = CommandHypervisor({"reboot": spec}, tmp_path, perform_wait_s=0.01)
        for _ in range(3):
            assert await command.perform(an_act(), NOW) == ActUnderWay(at=NOW + 1)
        go.touch()
        while isinstance(answer := await command.perform(an_act(), NOW), ActUnderWay):
            pass
        assert answer.ok
        await command.close()

    asyncio.run(scenario())
    assert effects.read_text() == "x\n"


CHECK = ("sh", "-c", 'grep -qx "$FOREWARN_ACT" "$0"')


def interrupt_service(folder: Path) -> tuple[Path, str]:
    """Kill a service while its command runs; the command continues and succeeds."""
    effects, go = folder / "effects", folder / "go"
    script = f'echo "$FOREWARN_ACT" >> {effects}; while [ ! -e {go} ]; do sleep 0.01; done'
    line = [sys.executable, str(COMMANDER), str(folder), "E1:vm-1", "sh", "-c", script]
    with subprocess.Popen(line) as service:
        eventually(lambda: effects.exists() and effects.read_text())
        service.kill()
    assert service.returncode == -signal.SIGKILL
    go.touch()
    return effects, script


def test_after_a_crash_the_check_prevents_a_second_run(tmp_path: Path) -> None:
    effects, script = interrupt_service(tmp_path)
    spec = shell(script, check=(*CHECK, str(effects)))
    done = run(perform_until_done(tmp_path, {"reboot": spec}, an_act()))
    assert done == ActDone(ok=True, note="reboot was done already, according to 'sh'")
    assert effects.read_text() == "E1:vm-1\n"


def test_after_a_crash_a_command_without_a_check_runs_again_and_its_note_says_so(tmp_path: Path) -> None:
    effects, script = interrupt_service(tmp_path)
    done = run(perform_until_done(tmp_path, {"reboot": shell(script)}, an_act()))
    repeated_note = "it had started before the service was interrupted, and ran again because it has no check"
    assert done == ActDone(ok=True, note=f"'sh' ended with code 0; {repeated_note}")
    assert effects.read_text() == "E1:vm-1\nE1:vm-1\n"


def begin_without_start(folder: Path) -> None:
    """Record that a command is about to start, as a service that is killed right then."""
    attempts = CommandRunJournal(folder / "attempts.db")
    attempts.begin("E1:vm-1", NOW)
    attempts.close()


def test_a_command_that_was_recorded_but_not_started_runs_once(tmp_path: Path) -> None:
    begin_without_start(tmp_path)
    effects = tmp_path / "effects"
    spec = shell(f"echo x >> {effects}", check=("false",))
    assert run(perform_until_done(tmp_path, {"reboot": spec}, an_act())).ok
    assert effects.read_text() == "x\n"


def test_a_check_with_an_unknown_exit_code_makes_the_act_unavailable(tmp_path: Path) -> None:
    begin_without_start(tmp_path)
    spec = shell(f"touch {tmp_path}/effect", check=("sh", "-c", "echo no route to the host; exit 7"))
    sentence = "it is unknown whether reboot of VM 'vm-1' was done: 'sh' ended with code 7: no route to the host"
    with pytest.raises(Unavailable, match=re.escape(sentence)):
        run(perform_until_done(tmp_path, {"reboot": spec}, an_act()))
    assert not (tmp_path / "effect").exists()


def fail_first_calls(monkeypatch: pytest.MonkeyPatch, method: str, times: int) -> None:
    """Let the journal fail, as on a full disk, in its first calls of a method."""
    real, failures = getattr(CommandRunJournal, method), iter(range(times))

    def failing(journal: CommandRunJournal, *args: Any, **options: Any) -> None:
        for _ in failures:
            raise ActNotTried("the disk is full")
        real(journal, *args, **options)

    monkeypatch.setattr(CommandRunJournal, method, failing)


def test_an_outcome_that_cannot_be_recorded_is_kept_and_the_command_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = tmp_path / "effects"
    fail_first_calls(monkeypatch, "end", 2)

    async def scenario() -> ActDone | ActUnderWay:
        command = CommandHypervisor({"reboot": shell(f"echo x >> {effects}")}, tmp_path)
        with pytest.raises(ActNotTried):
            await command.perform(an_act(), NOW)
        answer = await command.perform(an_act(), NOW)
        await command.close()
        return answer

    assert asyncio.run(scenario()) == ActDone(ok=True, note="'sh' ended with code 0")
    assert run(perform_until_done(tmp_path, {}, an_act())) == ActDone(ok=True, note="'sh' ended with code 0")
    assert effects.read_text() == "x\n"


def test_a_command_whose_process_cannot_be_recorded_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = tmp_path / "effects"
    fail_first_calls(monkeypatch, "record_process", 1)
    done = run(perform_until_done(tmp_path, {"reboot": shell(f"echo x >> {effects}")}, an_act()))
    assert done.ok
    assert effects.read_text() == "x\n"


def test_after_a_crash_a_command_whose_process_is_not_known_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that dies right after it started the command has not recorded the process."""
    begun, effects, go = tmp_path / "begun", tmp_path / "effects", tmp_path / "go"
    script = f'echo x >> {begun}; while [ ! -e {go} ]; do sleep 0.01; done; echo "$FOREWARN_ACT" >> {effects}'
    spec = shell(script, check=(*CHECK, str(effects)))
    fail_first_calls(monkeypatch, "record_process", 1)

    async def scenario() -> ActDone:
        first = CommandHypervisor({"reboot": spec}, tmp_path, perform_wait_s=0.01)
        assert isinstance(await first.perform(an_act(), NOW), ActUnderWay)
        await first.close()
        second = CommandHypervisor({"reboot": spec}, tmp_path, perform_wait_s=0.2)
        assert isinstance(await second.perform(an_act(), NOW), ActUnderWay)
        go.touch()
        while isinstance(answer := await second.perform(an_act(), NOW), ActUnderWay):
            pass
        await second.close()
        return answer

    assert asyncio.run(scenario()) == ActDone(ok=True, note="reboot was done already, according to 'sh'")
    assert begun.read_text() == "x\n"
    assert effects.read_text() == "E1:vm-1\n"
    assert list(tmp_path.glob("*.run")) == []


def test_a_command_of_an_earlier_service_that_does_not_end_makes_the_act_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for a broken disk cannot be killed."""
    effects, go = tmp_path / "effects", tmp_path / "go"
    spec = shell(f"echo x >> {effects}; while [ ! -e {go} ]; do sleep 0.01; done", timeout_s=0.05)
    monkeypatch.setattr(command_run, "kill_process_group", lambda pid: None)
    monkeypatch.setattr(command_run, "_KILL_WAIT_S", 0.01)

    async def scenario() -> None:
        first = CommandHypervisor({"reboot": spec}, tmp_path, perform_wait_s=0.01)
        await first.perform(an_act(), NOW)
        eventually(lambda: effects.exists() and effects.read_text())
        await first.close()
        second = CommandHypervisor({"reboot": spec}, tmp_path)
        with pytest.raises(Unavailable, match="that an earlier service started does not end"):
            await second.perform(an_act(), NOW)
        await second.close()

    asyncio.run(scenario())
    go.touch()
    assert effects.read_text() == "x\n"


def test_the_outcome_of_a_command_counts_although_its_output_is_lost(tmp_path: Path) -> None:
    spec = shell(f"rm {tmp_path}/*.run; exit 0")
    done = run(perform_until_done(tmp_path, {"reboot": spec}, an_act()))
    assert done == ActDone(ok=True, note="'sh' ended with code 0: its output cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ({"rebot": shell("true")}, "verb 'rebot' does not exist; choose from freeze,"),
        ({"reboot": CommandSpec(run=())}, "'commands.reboot.run' is empty"),
        ({"*": shell("true", timeout_s=0)}, "'commands.*.timeout_s' is 0: give more than 0 seconds"),
    ],
)
def test_wrong_command_settings_are_rejected(tmp_path: Path, commands: dict[str, CommandSpec], sentence: str) -> None:
    with pytest.raises(Rejected, match=re.escape(sentence)):
        CommandHypervisor(commands, tmp_path)


class TestCommand(HypervisorConformance):
    """With a check, it passes the suite for every hypervisor."""

    @pytest.fixture(autouse=True)
    def _use_own_directory(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.file = tmp_path / "effects"

    async def open(self) -> CommandHypervisor:
        run = ("sh", "-c", 'echo "$FOREWARN_ACT" >> "$0"', str(self.file))
        return CommandHypervisor({"*": CommandSpec(run=run, check=(*CHECK, str(self.file)))}, self.folder)

    def effects(self, act: Act) -> int:
        return self.file.read_text().splitlines().count(act.id) if self.file.exists() else 0


MOVE = Act(id="a", vm="k", name="web", verb=Verb.REDEPLOY, event_id="E", from_host="h1", to_host="h2")
NOT_BACK = (
    "no command has taken web back, and it may be on h2: bring it back to h1, or start it there once it certainly does "
    "not run on h2"
)


async def step_done(hypervisor: CommandHypervisor, step: MoveStep) -> StepReport:
    """Order a step until it is over."""
    for _ in range(60):
        report = await hypervisor.perform_step(MOVE, step, MoveHandover(), 0.0)
        if report.done is not None:
            return report
    raise AssertionError(f"{step} does not end")


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_release_that_was_not_given_is_withdrawn_as_often_as_it_is_asked(tmp_path: Path, has_failed: bool) -> None:
    async def run() -> None:
        hypervisor = CommandHypervisor({"*": CommandSpec(run=("false",))}, tmp_path)
        if has_failed:
            assert (await step_done(hypervisor, MoveStep.RELEASE)).handover.release is None
        for _ in range(2):
            assert await step_done(hypervisor, MoveStep.WITHDRAW) == StepReport.of(ActDone(True))
        released = await step_done(hypervisor, MoveStep.RELEASE)
        assert released.done is not None
        assert not released.done.ok
        await hypervisor.close()

    asyncio.run(run())


def test_a_vm_that_no_command_takes_back_is_not_said_to_be_back(tmp_path: Path) -> None:
    async def run() -> None:
        hypervisor = CommandHypervisor({"*": CommandSpec(run=("true",))}, tmp_path)
        assert (await step_done(hypervisor, MoveStep.RELEASE)).handover.release is MoveRelease.STOPPED
        for _ in range(2):
            assert (await step_done(hypervisor, MoveStep.RETURN)).done == ActDone(False, NOT_BACK)
        # It is not released again, and the reason stays known.
        assert await step_done(hypervisor, MoveStep.WITHDRAW) == StepReport.of(ActDone(True, NOT_BACK))
        assert await step_done(hypervisor, MoveStep.RELEASE) == StepReport.of(ActDone(False, NOT_BACK))
        await hypervisor.close()

    asyncio.run(run())


def test_a_command_with_the_step_return_takes_the_vm_back_once(tmp_path: Path) -> None:
    async def run() -> None:
        run_command = ("sh", "-c", f'echo "$FOREWARN_STEP on $FOREWARN_HOST" >> {tmp_path}/log')
        spec = CommandSpec(run=run_command, steps=(MoveStep.RELEASE, MoveStep.RETURN))
        hypervisor = CommandHypervisor({"*": spec}, tmp_path / "journal")
        for step in (MoveStep.RELEASE, MoveStep.RETURN, MoveStep.RETURN):
            report = await step_done(hypervisor, step)
            assert report.done is not None
            assert report.done.ok
        assert await step_done(hypervisor, MoveStep.WITHDRAW) == StepReport.of(ActDone(True, "web was taken back"))
        assert (tmp_path / "log").read_text().splitlines() == ["release on h1", "return on h1"]
        await hypervisor.close()

    asyncio.run(run())
