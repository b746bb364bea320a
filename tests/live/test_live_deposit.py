"""Streams from a token deposit on a real server: even, the same text, and nothing is left."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from even_streams import Chunked
from told_streams import told

pytestmark = pytest.mark.engine

SCHEDULER = ("--scheduler", "tokenflow", "--max-total-tokens", "40000")
SERVERS = {
    "cumulative": SCHEDULER,
    "incremental": (*SCHEDULER, "--incremental-streaming-output", "--stream-interval", "7"),
    "workers": (*SCHEDULER, "--tokenizer-worker-num", "2"),
}
FAR = 30_000
"""Tokens that no test waits for: a client that is late still finds the stream running."""
SLOW = {"tokenflow_deposit": True, "tokenflow_tbt_slo": 120}
"""Of a stream of which one token is delivered, and no other one while a test looks."""
QUICK = {"tokenflow_deposit": True, "tokenflow_tbt_slo": 0.01}
"""Of a stream that is delivered about as fast as it is generated."""
TRIES = 6
"""Of a control: what comes while an event loop stands still is one chunk for its client."""


@pytest.fixture(
    scope="module",
    params=[
        "incremental",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("cumulative", "workers")),
    ],
)
def served(start, request):
    with start(*SERVERS[request.param]) as running:
        running.incremental = request.param == "incremental"
        yield running


@pytest.fixture
def stream(served, prompts):
    """`stream(number of a prompt, custom parameters)`."""

    begun: list[Chunked] = []

    def begin(number: int, custom: Any, **sampling: Any) -> Chunked:
        begun.append(
            Chunked(
                served, prompts[number], incremental=served.incremental, custom=custom, **sampling
            )
        )
        return begun[-1]

    yield begin
    for each in begun:
        if each.is_alive():  # its test has failed: the next one needs an idle server
            each.leave()
            each.ended()


def steps(counts: list[int]) -> list[int]:
    """Tokens of each chunk but the first."""
    return [after - before for before, after in itertools.pairwise(counts)]


def comes_bit_by_bit(read: Callable[[], Chunked]) -> bool:
    """Whether an answer comes in many chunks, unless it is kept together each time."""
    return any(len(set(read().ended().counts)) > 4 for _ in range(TRIES))


def assert_burst(counts: list[int], *, incremental: bool) -> None:
    """Output tokens by each chunk of a whole answer, of which no second token was due.

    An event loop that stands still until the answer is complete delivers the first with the others.
    Where chunks have what is new only, what was held has one of its own, before SGLang's last.
    """
    burst = counts[1:] if counts[0] == 1 else counts
    assert burst[-1] == 64 and len(burst) <= 1 + incremental, counts


def assert_nothing_left(served) -> None:
    served.assert_clean()
    served.wait_until("deposit_tokens", 0.0)


def test_held_tokens_come_when_the_answer_is_complete(served, stream, reference) -> None:
    """One token, and the others in a burst; without a deposit they come one after the other."""
    plain = stream(0, None).ended()
    held = stream(0, SLOW).ended()
    assert plain.ids == held.ids == reference[0]
    assert plain.text == held.text
    assert plain.reason == held.reason == {"type": "length", "length": 64}
    assert_burst(held.counts, incremental=served.incremental)
    assert comes_bit_by_bit(lambda: stream(0, None)), "the control"
    assert [part["meta_info"]["finish_reason"] for part in held.parts[:-1]] == [None] * (
        len(held.parts) - 1
    )
    assert_nothing_left(served)


def test_tokens_come_one_by_one_in_their_order(served, prompts, stream, reference) -> None:
    streams = [stream(number, QUICK) for number in range(len(prompts))]
    assert [each.ended().ids for each in streams] == reference
    for each in streams:
        assert each.counts == sorted(each.counts)
        assert sum(part["meta_info"]["finish_reason"] is not None for part in each.parts) == 1
        texts = [part["text"] for part in each.parts]
        assert served.incremental or all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert_nothing_left(served)


def test_what_comes_together_is_cut_into_single_tokens(served, stream) -> None:
    """In two of the servers SGLang itself may make chunks of one token; in the other, of seven."""
    far = stream(0, QUICK, max_new_tokens=FAR, ignore_eos=True).wait_for(16)
    while steps(far.counts).count(1) <= 7:  # not all are single where the event loop is late
        far.wait_for(far.tokens + 1)
    assert told(served, far.rid, "", "DELETE") == (204, "")
    assert far.ended().reason["type"] == "abort"
    assert_nothing_left(served)


def test_another_rate_moves_the_interval_and_none_stops_it(served, stream, reference) -> None:
    far = stream(1, SLOW, max_new_tokens=FAR, ignore_eos=True).wait_for(1)
    served.wait_for("deposit_tokens", 20.0)
    assert far.tokens == 1
    asked = time.monotonic()
    assert told(served, far.rid, {"rate": 20}) == (204, "")
    far.wait_for(30)
    # The second token is due at once. Any of them may come late, and with others that are due.
    for tokens, came in list(zip(far.counts, far.came, strict=False))[1:]:
        assert tokens <= 2 + 20 * (came - asked), "no burst of what has waited"
    assert told(served, far.rid, {"rate": 0}) == (204, "")
    stood = far.stands()
    assert told(served, far.rid, {"rate": 50}) == (204, "")
    far.wait_for(max(stood + 5, len(reference[1])))
    assert far.ids[:64] == reference[1]
    assert told(served, far.rid, "", "DELETE") == (204, "")
    assert far.ended().reason["type"] == "abort"
    assert_nothing_left(served)


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("how", ["leave", "abort", "delete", "abort all"])
def test_a_stream_that_ends_before_its_deposit_leaves_nothing(served, stream, how, rests) -> None:
    far = stream(2, SLOW, max_new_tokens=FAR, ignore_eos=True).wait_for(1)
    served.wait_for("deposit_tokens", 20.0)
    if rests:
        assert told(served, far.rid, {"rate": 0}) == (204, "")
    if how == "leave":
        far.leave()
    elif how == "delete":
        assert told(served, far.rid, "", "DELETE") == (204, "")
    else:
        body = {"rid": far.rid} if how == "abort" else {"rid": "", "abort_all": True}
        assert served.post("/abort_request", body).status == 200
    far.ended()
    if how != "leave":
        assert far.reason["type"] == "abort"
        assert far.tokens > 20, "what was held is delivered"
        assert far.ids == stream(2, None, max_new_tokens=far.tokens, ignore_eos=True).ended().ids
    assert_nothing_left(served)


@pytest.mark.parametrize("mode", ["retract", "in_place", "abort"])
def test_the_engine_is_paused_while_tokens_are_held(served, stream, reference, mode) -> None:
    far = stream(3, SLOW, max_new_tokens=FAR, ignore_eos=True).wait_for(1)
    served.wait_for("deposit_tokens", 20.0)
    assert served.post("/pause_generation", {"mode": mode}).status == 200
    if mode == "abort":
        assert far.ended().reason["type"] == "abort"
    else:
        assert told(served, far.rid, {"rate": 50}) == (204, "")
        far.wait_for(16)  # what is held is delivered, although nothing is generated
    served.post("/flush_cache", None)
    assert served.post("/continue_generation", {}).status == 200
    if mode != "abort":
        far.wait_for(64)
        assert told(served, far.rid, "", "DELETE") == (204, "")
        far.ended()
    assert far.ids[:64] == reference[3][: len(far.ids)]
    assert_nothing_left(served)


def events_of(served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = served.post(path, {**body, "stream": True})
    assert answer.status == 200, answer
    return answer.body


def said(events: list[dict[str, Any]]) -> dict[int, tuple[str, list[Any], list[Any]]]:
    """Text, tokens with log probabilities, and reasons for the end, of each choice."""
    found: dict[int, tuple[list[str], list[Any], list[Any]]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        texts, tokens, reasons = found.setdefault(choice["index"], ([], [], []))
        texts.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
        logprobs = choice.get("logprobs") or {}
        tokens += logprobs.get("content") or logprobs.get("tokens") or []
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return {index: ("".join(texts), *rest) for index, (texts, *rest) in found.items()}


@pytest.mark.parametrize("custom", [SLOW, QUICK], ids=["slow", "quick"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_openai_clients_get_the_same(served, path, custom) -> None:
    asked: dict[str, Any] = {"model": "default", "max_tokens": 24, "temperature": 0, "n": 2}
    asked["stream_options"] = {"include_usage": True}
    if "chat" in path:
        asked |= {"messages": [{"role": "user", "content": "w1 w2 w3"}]}
        asked |= {"logprobs": True, "top_logprobs": 2}
    else:
        asked |= {"prompt": "w1 w2 w3", "logprobs": 2}
    plain = events_of(served, path, asked)
    even = events_of(served, path, {**asked, "custom_params": custom})
    assert said(even) == said(plain)
    assert sorted(said(even)) == [0, 1] and said(even)[0][0]
    assert [reasons for *_, reasons in said(even).values()] == [["length"], ["length"]]
    usage = [event["usage"] for event in (plain[-1], even[-1])]
    assert usage[0]["completion_tokens"] == usage[1]["completion_tokens"] == 48
    assert_nothing_left(served)


def test_choices_of_generate_have_a_deposit_each(served, prompts, reference) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 64, "n": 3, "custom_params": SLOW}
    body = {"input_ids": prompts[4], "stream": True, "sampling_params": sampling}
    parts = served.post("/generate", body).body
    for index in range(3):
        mine = [part for part in parts if part["index"] == index]
        counts = [part["meta_info"]["completion_tokens"] for part in mine]
        assert_burst(counts, incremental=served.incremental)
        ids = [token for part in mine for token in part["output_ids"]]
        assert (ids if served.incremental else mine[-1]["output_ids"]) == reference[4]
    assert_nothing_left(served)


def test_stop_strings_and_log_probabilities_are_the_same(served, stream) -> None:
    calm = stream(5, None).ended().text
    stop = {"stop": [calm[len(calm) // 2 :][:12]]}
    plain = stream(5, None, **stop).ended()
    for custom in (SLOW, QUICK):
        even = stream(5, custom, **stop).ended()
        assert (even.text, even.ids, even.reason) == (plain.text, plain.ids, plain.reason)
        assert even.tokens == plain.tokens < 64
    assert_nothing_left(served)


def test_what_does_not_stream_has_no_deposit(served, prompts, reference) -> None:
    began = time.monotonic()
    answer = served.generate(prompts[6], custom_params=SLOW)
    assert answer.status == 200 and answer.body["output_ids"] == reference[6]
    assert time.monotonic() - began < 60.0


@pytest.mark.parametrize("value", ["yes", 1, None, [True]])
def test_what_is_no_switch_is_refused(served, prompts, value) -> None:
    custom = {"tokenflow_deposit": value}
    sentence = f"tokenflow_deposit is {value!r}; it must be true or false."
    answer = served.generate(prompts[0], stream=True, custom_params=custom)
    assert answer.status == 400 and sentence in json.dumps(answer.body, ensure_ascii=False)
    chat = {"model": "default", "messages": [{"role": "user", "content": "w1"}], "stream": True}
    answer = served.post("/v1/chat/completions", {**chat, "custom_params": custom})
    assert answer.status == 400 and sentence in json.dumps(answer.body, ensure_ascii=False)


@pytest.mark.slow
def test_a_server_can_have_deposits_for_all(start, prompts, reference) -> None:
    """And pause streams all the time meanwhile: what the engine holds back goes to the deposit."""
    forced = ("--tokenflow-policy", "forced:PreemptEvery", "--hicache-ratio", "4")
    memory = ("--max-total-tokens", "704", "--stream-interval", "5")
    queue = ("--max-queued-requests", "12")
    with start(
        "--scheduler", "tokenflow", *forced, *memory, *queue, "--tokenflow-deposit"
    ) as servers:

        def read(number: int, custom: Any) -> Chunked:
            return Chunked(servers, prompts[number], incremental=False, custom=custom)

        objective = {"tokenflow_tbt_slo": SLOW["tokenflow_tbt_slo"]}
        slow = [read(number, objective) for number in range(len(prompts))]
        assert [each.ended().ids for each in slow] == reference
        for each in slow:
            assert_burst(each.counts, incremental=False)
        assert servers.total("tokenflow:preemptions_total") > 0
        even = [read(number, {"tokenflow_rate": 500}) for number in range(len(prompts))]
        assert [each.ended().ids for each in even] == reference
        without = {"tokenflow_rate": 0.1, "tokenflow_deposit": False}
        assert comes_bit_by_bit(lambda: read(0, without))
        off = read(0, without).ended()
        program = read(0, {"tokenflow_class": "agent"}).ended()
        assert off.ids == program.ids == reference[0]
        # More than the queue takes: some are turned away, and the others are served.
        crowd = [read(number % len(prompts), {"tokenflow_rate": 0.1}) for number in range(40)]
        ends = [each.ended().parts[-1:] for each in crowd]
        served = [last["meta_info"] for (last,) in filter(None, ends) if "meta_info" in last]
        assert {"type": "length", "length": 64} in [each["finish_reason"] for each in served]
        assert_nothing_left(servers)
