from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.runs import Run, RunError, read_run, record, write_run


def test_rows_and_tokens_may_be_in_any_order(pair):
    run = pair[0]
    rng = np.random.default_rng(1)
    owners = run.tokens["request"].to_numpy()
    blocks = [np.flatnonzero(owners == one) for one in rng.permutation(np.unique(owners))]
    tokens = run.tokens.take(np.concatenate(blocks))
    shuffled = Run(run.info, run.requests.take(rng.permutation(run.requests.num_rows)), tokens)
    one, two = record(run), record(shuffled)
    np.testing.assert_array_equal(one.index, two.index)
    np.testing.assert_array_equal(one.times, two.times)
    np.testing.assert_array_equal(one.bounds, two.bounds)


def test_warm_up_takes_its_tokens_along(synthetic):
    row, times = synthetic.request_row, [[1.0, 2.0], [3.0], [4.0, 5.0]]
    rows = [row(n, part, warm_up=n == 1) for n, part in enumerate(times)]
    recording = record(synthetic.run_of(rows, times))
    assert recording.index.tolist() == [0, 2]
    assert recording.times.tolist() == [1.0, 2.0, 4.0, 5.0]
    assert recording.tokens(1).tolist() == [4.0, 5.0]
    assert (recording.first.tolist(), recording.last.tolist()) == ([1.0, 4.0], [2.0, 5.0])
    assert recording.warm_up == 1


def test_a_run_from_before_reasoning_was_told_apart_is_read(pair, tmp_path):
    write_run(tmp_path, pair[0])
    path = tmp_path / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns("reasoning_tokens"), path)
    old = record(read_run(tmp_path))
    assert (old.reasoning_tokens == 0).all()
    assert (old.visible_counts == old.counts).all()


OLD = (
    "In 3 of 3 answers the server did not say how many tokens a chunk brings: each chunk with text "
    "was counted as one."
)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "though it may have several: rates"),
        (
            " At their ends it reported 480 tokens; 120 were counted.",
            "the server reported 480, not",
        ),
        (" At their ends it reported 120 tokens; 120 were counted.", None),
    ],
)
def test_a_run_from_before_tokens_were_shared_among_chunks_is_invalid(pair, tmp_path, more, said):
    info = pair[0].info
    noted = dataclasses.replace(info, target={**info.target, "notes": [OLD + more]})
    write_run(tmp_path, dataclasses.replace(pair[0], info=noted))
    found = figures(read_run(tmp_path))
    assert [said in reason for reason in found.info.invalid] == ([] if said is None else [True])
    assert bool(found.warnings) == (said is not None)


def test_through_the_files_and_back(pair, tmp_path):
    write_run(tmp_path, pair[0])
    there, back = figures(pair[0]), figures(read_run(tmp_path))
    assert back.latency == there.latency
    assert back.readers == there.readers


@pytest.mark.parametrize("text", ["[" * 5000, "[]", "{}", "what?"], ids=range(4))
def test_what_is_no_run_is_told_in_a_sentence(pair, tmp_path, text):
    write_run(tmp_path, pair[0])
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"not a complete run|of the type NoneType, this reads"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"output_tokens": 3}, "request 0 has not as many tokens in tokens.parquet as its output"),
        ({"scheduled_s": 1.5}, "request 0 has a token before it was due"),
        ({"scheduled_s": float("nan")}, "request 0 has a scheduled_s that is not a finite number"),
        ({"rate": 0.0}, "request 0 has a rate that is not a finite number > 0"),
        ({"ended_s": 1.5}, "request 0 has a token after its end"),
        ({"ttft_slo_s": 0.0}, "request 0 has an objective that is not > 0 s"),
    ],
)
def test_contradictions_are_refused(one_request, columns, message):
    with pytest.raises(RunError, match=f"run run: {message}"):
        figures(one_request([1.0, 2.0], **columns))


def test_unsorted_tokens_are_refused(one_request):
    with pytest.raises(RunError, match="tokens of request 0 are not sorted by time"):
        figures(one_request([2.0, 1.0], ended_s=2.0))


def test_one_token_in_all_after_requests_without_any_is_read(synthetic):
    row, times = synthetic.request_row, [[], [1.0]]
    rows = [row(0, [], error="HTTP 503"), row(1, times[1])]
    assert record(synthetic.run_of(rows, times)).counts.tolist() == [0, 1]


def test_unsorted_tokens_after_requests_without_any_are_refused(synthetic):
    row, times = synthetic.request_row, [[], [2.0, 1.0]]
    rows = [row(0, [], error="HTTP 503"), row(1, times[1], ended_s=2.0)]
    with pytest.raises(RunError, match="tokens of request 1 are not sorted by time"):
        figures(synthetic.run_of(rows, times))


def test_tokens_after_the_recording_are_refused(one_request):
    with pytest.raises(RunError, match="after the end of the recording"):
        figures(one_request([1.0, 2.0], info={"duration_s": 1.5}))


def test_endless_times_are_refused(one_request):
    with pytest.raises(RunError, match="time_s is not a finite number"):
        figures(one_request([1.0, float("inf")], ended_s=None))


def test_tokens_of_no_stream_are_refused(synthetic):
    run = synthetic.run_of([synthetic.request_row(0, [1.0])], [[1.0]])
    other = synthetic.run_of([synthetic.request_row(7, [1.0])], [[1.0]])
    with pytest.raises(RunError, match="tokens of request 7, which is not in requests"):
        record(Run(run.info, run.requests, other.tokens))


def test_an_index_twice_is_refused(synthetic):
    rows = [synthetic.request_row(0, []), synthetic.request_row(0, [])]
    with pytest.raises(RunError, match="has an index twice"):
        record(synthetic.run_of(rows, [[], []]))


def test_rounding_of_the_clock_is_forgiven(one_request):
    assert figures(one_request([1.0], scheduled_s=1.0 + 1e-9)).latency.ttft.mean == 0


@pytest.mark.parametrize(
    "text",
    ['{"format": "Wittgenstein"}', '["Wittgenstein"]', "Wittgenstein", '{"Wittgenstein": 1}'],
)
def test_an_error_of_a_run_has_no_words_of_it(tmp_path, text) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError) as caught:
        read_run(tmp_path)
    assert "Wittgenstein" not in str(caught.value)
