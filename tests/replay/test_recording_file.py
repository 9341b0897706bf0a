"""The recording file: it is read as written, and an error names the line that cannot be read."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.client.recording import (
    BadRecording,
    EndpointRecording,
    RecordedResponse,
    RecordingEnd,
    RecordingHeader,
    decode_recording,
    encode_line,
    encode_recording,
)

SECONDS = st.floats(min_value=0, max_value=1e9, allow_nan=False)
STATUSES = st.integers(min_value=200, max_value=599)
DATES = st.none() | SECONDS


@st.composite
def recordings(draw: st.DrawFn) -> EndpointRecording:
    offsets = sorted(draw(st.lists(SECONDS, min_size=1, max_size=6)))
    answers = []
    for at_s in offsets:
        if draw(st.booleans()):
            answers.append(RecordedResponse(at_s=at_s, status=None, date=None, broke=draw(st.text())))
            continue
        answers.append(
            RecordedResponse(
                at_s=at_s,
                status=draw(STATUSES),
                date=draw(DATES),
                content_type=draw(st.text()),
                retry_after=draw(st.text()),
                body=draw(st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace"))),
            )
        )
    end = draw(st.none() | st.builds(RecordingEnd, at_s=st.just(offsets[-1]), date=DATES, polls=st.integers(0, 10**9)))
    beginning = draw(st.builds(RecordingHeader, vm=st.text(), api_version=st.text(), started_at=SECONDS))
    return EndpointRecording(header=beginning, answers=tuple(answers), end=end)


@given(recordings())
@settings(max_examples=150, deadline=None)
def test_any_recording_is_read_as_it_was_written(recording: EndpointRecording) -> None:
    assert decode_recording(encode_recording(recording), "f") == recording


@given(recordings(), st.integers(min_value=0, max_value=10_000))
@settings(max_examples=100, deadline=None)
def test_a_file_cut_off_anywhere_gives_its_first_answers_or_a_sentence(recording: EndpointRecording, at: int) -> None:
    raw = encode_recording(recording)[:at]
    try:
        read = decode_recording(raw, "f")
    except BadRecording:
        assert raw.count(b"\n") <= 1
    else:
        assert read.answers == recording.answers[: len(read.answers)]


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_other_file_is_rejected_with_a_sentence(raw: bytes) -> None:
    with pytest.raises(BadRecording):
        decode_recording(raw, "f")


BEGIN = encode_line(RecordingHeader(vm="a", api_version="2020-07-01", started_at=1.0)).decode()
GOOD = '{"at_s":1,"status":200,"body":""}\n'
BAD = {
    "empty": ("", "f:1: the file is empty"),
    "no mark": ("{}\n", "f:1: the file does not begin like a recording; use a file made with `forewarn record`"),
    "newer": ('{"forewarn-recording":2}\n', "f:1: the recording has format 2 and this forewarn reads 1; use a newer"),
    "no answers": (BEGIN, "f: the recording contains no answer"),
    "not JSON": (BEGIN + "{\n" + GOOD, "f:2: this line is not JSON"),
    "no object": (BEGIN + "[]\n", "f:2: this line is not a JSON object"),
    "no offset": (BEGIN + '{"status":200}\n', "f:2: 'at_s' is None, not a number of seconds"),
    "an odd offset": (BEGIN + '{"at_s":true,"status":200}\n', "f:2: 'at_s' is True"),
    "infinite": (BEGIN + '{"at_s":Infinity,"status":200}\n', "f:2: this line is not JSON (Infinity is not a number)"),
    "no status": (BEGIN + '{"at_s":1}\n', "f:2: 'status' is missing"),
    "an odd status": (BEGIN + '{"at_s":1,"status":7}\n', "f:2: 'status' is 7, not an HTTP status"),
    "an odd date": (BEGIN + '{"at_s":1,"date":"x","status":200}\n', "f:2: 'date' is 'x'"),
    "an odd body": (BEGIN + '{"at_s":1,"status":200,"body":5}\n', "f:2: 'body' is 5, not a string"),
    "odd base64": (BEGIN + '{"at_s":1,"status":200,"body_base64":"?"}\n', "f:2: the body is neither text nor base64"),
    "backwards": (BEGIN + GOOD + '{"at_s":0.5,"status":500}\n', "f:3: 'at_s' is 0.5, before the line above"),
    "after the end": (BEGIN + '{"at_s":1,"ended":true}\n' + GOOD, "f:2: the recording ends here, but more lines"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_file_is_rejected_with_the_line_and_a_remedy(text: str, sentence: str) -> None:
    with pytest.raises(BadRecording) as refusal:
        decode_recording(text.encode(), "f")
    assert str(refusal.value).startswith(sentence)
    assert ";" in str(refusal.value)


def test_a_line_of_a_recording_is_plain_json() -> None:
    line = encode_line(RecordedResponse(at_s=1.5, date=7.0, status=200, content_type="text/plain", body=b"caf\xc3\xa9"))
    assert json.loads(line) == {"at_s": 1.5, "date": 7.0, "status": 200, "content_type": "text/plain", "body": "café"}
    assert line.endswith(b"\n")
