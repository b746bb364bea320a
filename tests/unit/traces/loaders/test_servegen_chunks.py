"""ServeGen's folders as published: two files for each client."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace

WINDOWS = "0,0.05,1.0,Gamma,1.0,20.0\n600,0,0,,0,0\n21600,0.1,2.0,Weibull,0.5,3.0\n"
LENGTHS = {
    "0": {"input_tokens": "{224: 0.25, 225: 0.75}", "output_tokens": "{10: 0.5, 20: 0.5}"},
    "21600": {"input_tokens": "{}", "output_tokens": "{}"},
}


@pytest.fixture
def folder(tmp_path):
    """Writes a client's files and returns what names the folder."""

    def make(client: int = 0, windows: str = WINDOWS, lengths: object = LENGTHS) -> str:
        (tmp_path / f"chunk-{client}-trace.csv").write_text(windows)
        text = lengths if isinstance(lengths, str) else json.dumps(lengths)
        (tmp_path / f"chunk-{client}-dataset.json").write_text(text)
        return f"servegen:{tmp_path}?start=0&duration=43200"

    return make


def test_each_window_has_its_number_of_requests_and_the_latest_lengths(folder) -> None:
    trace = open_trace(folder())
    assert len(trace.requests) == 30 + 60
    assert {each.prompt_tokens for each in trace.requests} == {224, 225}
    assert {each.output_tokens for each in trace.requests} == {10, 20}
    late = [each.arrival_s for each in trace.requests[30:]]
    assert 21600 <= late[0] <= late[-1] < 22200


def test_clients_are_independent_and_merged_by_time(folder) -> None:
    folder(1)
    alone = {
        "0": {"input_tokens": "{9: 1}", "output_tokens": "{3: 1.0}", "reason_ratio": "{0.5: 1}"}
    }
    trace = open_trace(folder(12, "\ufeff0,0.1,1,Gamma,2,1\r\n", alone))
    times = [each.arrival_s for each in trace.requests]
    assert times == sorted(times)
    thinks = [each for each in trace.requests if each.reasoning_tokens]
    assert len(thinks) == 60
    assert {each.reasoning_tokens for each in thinks} == {2}


def media(**changes: str) -> dict:
    """Lengths of a client whose prompts have two images of 100 tokens."""
    none = {"audio_count": "{0: 1}", "audio_tokens": "{0: 1}", "video_count": "{}"}
    fields = {
        **{"text_tokens": "{5: 1.0}", "output_tokens": "{3: 1}", "video_tokens": "{}"},
        **{"image_count": "{2: 1}", "image_tokens": "{100: 1}", **none, **changes},
    }
    return {"0": fields}


def test_prompts_have_the_tokens_of_their_images(folder) -> None:
    trace = open_trace(folder(lengths=media()))
    assert {each.prompt_tokens for each in trace.requests} == {205}
    trace = open_trace(folder(lengths=media(image_count="{0: 0.5, 1: 0.5}")))
    assert {each.prompt_tokens for each in trace.requests} == {5, 105}
    trace = open_trace(folder(lengths=media(image_tokens="{2147483647: 1}")))
    assert {each.prompt_tokens for each in trace.requests} == {5 + (2**31 - 1) // 2}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"image_count": "{9999999: 1}"}, "more than 20000000 images, sounds or videos"),
        ({"image_count": "{-1: 1}"}, "column image_count of window 0: is '-1: 1'; allowed"),
        ({"video_tokens": "secret"}, "column video_tokens of window 0: is a text of 6 characters"),
    ],
)
def test_what_is_wrong_with_images_is_said(folder, changes, problem) -> None:
    with pytest.raises(TraceError) as caught:
        open_trace(folder(lengths=media(**changes)))
    assert problem in str(caught.value)


def test_a_client_without_lengths_before_is_dropped(folder) -> None:
    folder(1)
    late = {"21600": LENGTHS["0"]}
    trace = open_trace(folder(0, lengths=late))
    assert sum(trace.accounting.dropped.values()) == 30


def lengths(text: str) -> dict:
    return {"0": {"input_tokens": text, "output_tokens": "{1: 1}"}}


@pytest.mark.parametrize(
    ("windows", "data", "problem"),
    [
        ("0,1,1,Gamma,1\n", LENGTHS, "line 1: has 5 values; allowed are 6: window start, rate"),
        ("0,nan,1,Gamma,1,1\n", LENGTHS, "line 1, column rate: is 'nan'; allowed is a number"),
        ("0,-1,1,Gamma,1,1\n", LENGTHS, "column rate: is '-1'"),
        ("0,1e999,1,Gamma,1,1\n", LENGTHS, "column rate: is '1e999'"),
        ("0,1,1,Normal,1,1\n", LENGTHS, "column family: is a text of 6 characters; allowed is"),
        ("0,1,1,,1,1\n", LENGTHS, "column family"),
        ("0,1,1,Gamma,0,1\n", LENGTHS, "column shape: is '0'; allowed is a number above 0"),
        (
            "0,1,1,Gamma,1,1\n" * 2,
            LENGTHS,
            "line 2, column window start: this window is there twice",
        ),
        ("0,0,0,,0,0\n", LENGTHS, "has no window with requests"),
        ("", LENGTHS, "chunk-0-trace.csv: is empty"),
        ("0,1e9,1,Gamma,1,1\n", LENGTHS, "requests lie in the windows"),
        (WINDOWS, "{", "chunk-0-dataset.json: is not JSON that can be used"),
        (WINDOWS, "[" * 100_000, "is not JSON that can be used"),
        (WINDOWS, "[]", "is no object of windows"),
        (WINDOWS, {"x": {}}, "has a window that does not start at a whole number"),
        (WINDOWS, {"0": 5}, "window 0 is no object of distributions"),
        (WINDOWS, {"0": {}}, "column input_tokens of window 0: is missing or no text"),
        (WINDOWS, lengths("{1: 0.5}"), "is 0.5; allowed is probabilities that add up to 1"),
        (WINDOWS, lengths("{1: 2}"), "values with their probabilities from 0 to 1"),
        (WINDOWS, lengths("{-1: 1}"), "values with their probabilities from 0 to 1"),
        (WINDOWS, lengths("{99999999999: 1}"), "values with their probabilities from 0 to 1"),
        (WINDOWS, lengths("{1.5: 1}"), "values with their probabilities from 0 to 1"),
        (WINDOWS, lengths("__import__('os')"), "is a text of 16 characters; allowed is a diction"),
        (WINDOWS, lengths("{exit(): 1}"), "is a text of 9 characters"),
    ],
)
def test_what_is_wrong_is_said(folder, windows, data, problem) -> None:
    with pytest.raises(TraceError) as caught:
        open_trace(folder(windows=windows, lengths=data))
    assert problem in str(caught.value)


def test_a_folder_without_clients_or_with_half_of_one(tmp_path) -> None:
    spec = f"servegen:{tmp_path}?start=0&duration=600"
    with pytest.raises(TraceError, match=r"has no chunk-N-trace.csv; allowed is a folder"):
        open_trace(spec)
    (tmp_path / "chunk-3-trace.csv").write_text(WINDOWS)
    with pytest.raises(TraceError, match=r"chunk-3-dataset.json: cannot be read: No such file"):
        open_trace(spec)
