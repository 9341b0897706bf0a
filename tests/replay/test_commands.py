"""The commands `forewarn record`, `replay` and `replays`, and the examples of docs/how-to/record-replay.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.client.recording import decode_recording
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply
from tests.support.service_process import ServiceProcess, eventually, run_forewarn

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "record-replay.md").read_text(encoding="utf-8")
NAME = ScriptedReply(body=b"web-0")
EMPTY = json_reply({"DocumentIncarnation": 1, "Events": []}, headers=(("Date", "Mon, 19 Sep 2016 18:14:47 GMT"),))
EVENT = {"EventId": "X", "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["web-0"]}
BUSY = json_reply({"DocumentIncarnation": 2, "Events": [EVENT]})
NORMALIZATIONS = [
    (r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b", "ID"),
    (r"(\b\d{4}-\d{2}-\d{2} |\b)\d{2}:\d{2}:\d{2} (UTC[+-]\d+|[A-Z]{3,5})\b", "TIME"),
    (r"\((in )?\d+m? ?\d*s?( ago)?\)", "WHEN"),
    (r"\d+ polls? in \d+s", "POLLS"),
    (r" +", " "),
]


def run(data: Path, *words: str, code: int = 0) -> str:
    """Run the command; return its stdout, or its stderr if `code` says that it fails."""
    ran = run_forewarn(data, *words)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout if code == 0 else ran.stderr.strip()


def test_record_prints_each_different_answer_and_writes_it_to_the_file(tmp_path: Path) -> None:
    """Spec §11."""
    path = tmp_path / "r.jsonl"
    script = (NAME, EMPTY, EMPTY, ScriptedReply(status=429), ScriptedReply(), ScriptedReply(resets=True), BUSY)
    with ScriptedServer(*script) as server:
        printed = run(
            tmp_path, "record", "--endpoint", server.url, "--out", str(path), "--every", "0.01s", "--for", "2s"
        )
    lines = [line.strip().split("  ", 1)[1] for line in printed.splitlines()[:5]]
    assert lines[:3] == ["incarnation 1: no events", "status 429", "the response has an empty body, not a document"]
    assert lines[3].startswith("no answer: http://127.0.0.1:")
    assert lines[4] == "incarnation 2: Freeze of web-0 scheduled"
    assert f"{path} holds 5 different answers to " in printed
    recording = decode_recording(path.read_bytes(), "r")
    assert recording.header.vm == "web-0"
    assert [answer.status for answer in recording.answers] == [200, 429, 200, None, 200]
    assert recording.end is not None
    assert recording.end.polls == len(server.requests) - 1


def test_record_asks_only_for_the_name_of_the_vm(tmp_path: Path) -> None:
    with ScriptedServer(NAME, EMPTY) as server:
        run(tmp_path, "record", "--endpoint", server.url, "--out", str(tmp_path / "r"), "--for", "0.1s")
    targets = {request.target.partition("?")[0] for request in server.requests}
    assert targets == {"/metadata/instance/compute/name", "/metadata/scheduledevents"}


def test_record_prints_its_summary_as_json(tmp_path: Path) -> None:
    with ScriptedServer(NAME, EMPTY) as server:
        words = ("--endpoint", server.url, "--out", str(tmp_path / "r"), "--for", "0.1s", "--json")
        view = json.loads(run(tmp_path, "record", *words))
    assert (view["file"], view["vm"], view["answers"]) == (str(tmp_path / "r"), "web-0", 1)


def test_an_interrupt_ends_a_recording_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ScriptedServer(NAME, EMPTY) as server:
        line = [sys.executable, "-m", "forewarn", "record", "--endpoint", server.url, "--out", str(path)]
        child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            eventually(lambda: path.exists() and path.read_bytes().count(b"\n") == 2)
            os.kill(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()
            child.wait()
    assert (child.returncode, err) == (0, "")
    assert f"{path} holds 1 different answer to " in out
    assert decode_recording(path.read_bytes(), "r").end is not None


def test_record_neither_overwrites_nor_removes_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("precious")
    with ScriptedServer(NAME, EMPTY) as server:
        printed = run(tmp_path, "record", "--endpoint", server.url, "--out", str(path), code=2)
    assert printed == f"{str(path)!r} exists already and is not overwritten: give another --out"
    assert path.read_text() == "precious"


def test_record_leaves_no_file_if_nothing_answers_at_the_endpoint(tmp_path: Path) -> None:
    with ScriptedServer(EMPTY) as server:
        pass
    printed = run(tmp_path, "record", "--endpoint", server.url, "--out", str(tmp_path / "r"), code=3)
    assert printed.startswith(f"nothing answers at {server.url} (")
    assert not (tmp_path / "r").exists()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path_factory.mktemp("d") / "d") as running:
        yield running


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """The path of a recording with one event, which lasts 900 s."""
    lines = [
        {"forewarn-recording": 1, "vm": "theirs", "api_version": "2020-07-01", "started_at": 1},
        {"at_s": 0, "status": 200, "body": json.dumps({"DocumentIncarnation": 1, "Events": [EVENT]})},
        {"at_s": 900, "ended": True},
    ]
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_replay_prints_each_step_until_the_replay_is_finished(service: ServiceProcess, recording: str) -> None:
    printed = run(
        service.data, "replay", recording, "--vm", "db-1", "--speed", "3000", "--map", "web-0=db-2"
    ).splitlines()
    assert [line.split("  ", 2)[-1].strip() for line in printed[1:-2]] == ["db-1 is shown Freeze of db-2 scheduled"]
    assert printed[-2].endswith(" finished")
    assert re.fullmatch(r"Replay \S+ to db-1 is finished\.", printed[-1])


def test_replays_can_stop_a_replay_and_says_so(service: ServiceProcess, recording: str) -> None:
    started = json.loads(run(service.data, "replay", recording, "--vm", "web-1", "--no-wait", "--json"))
    assert (started["step"], started["steps"], started["outcome"]) == (1, 2, None)
    assert started["id"] in run(service.data, "replays")
    printed = run(service.data, "replays", "--stop", started["id"][:13])
    assert re.fullmatch(rf"Replay {started['id']} to web-1 is stopped: stopped by local user \w+\.\n", printed)
    assert run(service.data, "replays", "--stop", started["id"], code=2).endswith("there is nothing to stop")


def test_replay_rejects_bad_input_with_a_sentence(service: ServiceProcess, recording: str, tmp_path: Path) -> None:
    def refused(*words: str) -> Any:
        return run(service.data, "replay", *words, code=2)

    bad = tmp_path / "bad.jsonl"
    bad.write_text(Path(recording).read_text().replace('"at_s": 0', '"at_s": -1'))
    assert refused(str(bad), "--vm", "web-0").startswith(f"{bad}:2: 'at_s' is -1, not a number of seconds; ")
    assert refused(str(tmp_path), "--vm", "web-0").endswith("(Is a directory): give a recording's file")
    assert "'nobody'" in refused(recording, "--vm", "nobody")
    assert refused(recording, "--vm", "web-0", "--map", "x") == (
        "--map 'x' has no OLD=NEW form: write it like web-0=web-7"
    )
    assert "no recorded event names VM 'x'" in refused(recording, "--vm", "web-0", "--map", "x=y")
    assert "speed 0 is out of range" in refused(recording, "--vm", "web-0", "--speed", "0")


def console_examples() -> list[tuple[str, str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def normalized(text: str) -> list[str]:
    for pattern, name in NORMALIZATIONS:
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_examples_of_the_docs_page_run_as_written(tmp_path: Path) -> None:
    assert len(console_examples()) == 7
    with ServiceProcess(data=tmp_path / "d") as service:
        here = {"FOREWARN_DATA": str(service.data), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environ = {**os.environ, **here, "NO_COLOR": "1", "COLUMNS": "120", "TZ": "UTC"}
        service.api("POST", "/clock/speed", {"speed": 0})
        for command, expected in console_examples():
            typed = command.replace(":8254", f":{service.port}")
            ran = subprocess.run(
                ["bash", "-c", typed], capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=60
            )
            assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"
            assert normalized(ran.stdout) == normalized(expected), f"$ {command}\n{ran.stdout}"


def test_the_file_on_the_docs_page_is_a_recording() -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    recording = decode_recording(example.encode(), "page")
    assert [answer.status for answer in recording.answers] == [200, 429, None]
