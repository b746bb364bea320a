"""Under forced preemption every few steps, every token is the one that stock SGLang gives."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client

import pytest
from servers.fixtures import BROKEN, COLD
from servers.tuned import CHECK_RANKS, tuned

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
PAGES = (1, 16)
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies land as late as SGLang and we let them."""
CELLS = [
    ("overlap", "hicache"),
    *(
        pytest.param(*cell, marks=pytest.mark.slow)
        for cell in (
            ("no-overlap", "hicache"),
            ("overlap", "no-hicache"),
            ("no-overlap", "no-hicache"),
        )
    ),
]


def flags(overlap: str, page: int, hicache: str) -> list[str]:
    given = [*FORCED, "--page-size", str(page), "--chunked-prefill-size", "32"]
    if overlap == "no-overlap":
        given.append("--disable-overlap-schedule")
    if hicache == "hicache":
        # Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
        return [*given, "--max-total-tokens", "704", "--hicache-ratio", "4"]
    return [*given, "--max-total-tokens", "4000", "--tokenflow-hicache", "off"]


@pytest.mark.parametrize(("overlap", "hicache"), CELLS)
def test_tokens_are_those_of_the_undisturbed_run(
    start, prompts, reference, overlap, hicache
) -> None:
    def cell(page: int) -> None:
        with start(*flags(overlap, page, hicache), env=LATE) as served:
            for stream in (False, True):
                assert served.outputs(prompts, stream=stream) == reference
            check(served, page, hicache, 4 * len(prompts))

    # Both at once: a server's start keeps one core busy.
    with concurrent.futures.ThreadPoolExecutor(len(PAGES)) as pool:
        list(pool.map(cell, PAGES))


def check(served, page: int, hicache: str, least: int) -> None:
    """The run was disturbed, and what switches cost keeps its bounds."""
    samples = served.metrics()

    def total(name: str) -> float:
        return served.total(f"tokenflow:{name}")

    def within(name: str) -> float:
        """Observations of up to a page and a token."""
        return samples[(f"tokenflow:{name}_bucket", (("le", f"{page + 1}.0"),))]

    preempted, resumes = total("preemptions_total"), total("resumes_total")
    loaded, written = total("loaded_ahead_tokens_total"), total("written_ahead_tokens_total")
    print(
        f"page {page} {hicache}: {preempted:.0f} preemptions, {resumes:.0f} resumes, "
        f"{total('resume_recomputed_tokens_sum'):.0f} tokens recomputed, "
        f"{loaded:.0f} prefetched, {written:.0f} proactively written"
    )
    assert preempted >= least, "the test must disturb"
    assert resumes >= least
    assert within("resume_recomputed_tokens") == resumes
    assert (loaded > 0) == (written > 0) == (hicache == "hicache")
    if written:
        tails = total("preemption_tail_tokens_count")
        assert within("preemption_tail_tokens") == tails == preempted
    served.assert_clean()


@pytest.mark.slow
def test_a_server_that_starts_as_users_start_it_says_the_same(start, prompts, reference) -> None:
    """The reference comes of a fork of a process that has SGLang imported."""
    with start("--max-total-tokens", "4000", launcher=COLD) as served:
        assert [served.outputs([prompt])[0] for prompt in prompts] == reference


@pytest.mark.slow
def test_tensor_parallel_ranks_decide_alike(start, prompts, reference) -> None:
    with start(*flags("overlap", 1, "hicache"), "--tp-size", "2") as served:
        assert served.outputs(prompts) == reference
        assert served.outputs(prompts, stream=True) == reference
        assert served.total("tokenflow:preemptions_total") >= 4 * len(prompts)
        # Arrivals are the leader's time now, not that of the last request, or none at all.
        served.wait_for("ttft_seconds_count", len(prompts))  # it is handed on once a second
        waited = served.total("tokenflow:ttft_seconds_sum")
        assert 0.0 < waited < 60.0 * served.total("tokenflow:ttft_seconds_count")
        served.assert_clean()


IN_CHUNKS = (
    *("--tokenflow-policy", "forced:PreemptInChunks"),
    # So little that memory for all of a stream is often missing.
    *("--max-total-tokens", "448", "--hicache-ratio", "6"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "ranks"),
    [(1, 1), (16, 1), (1, 2)],
)
def test_streams_that_are_loaded_in_parts_have_their_tokens(
    start, prompts, reference, page, ranks
) -> None:
    """A copy lands late, the next one has no room, and what is loaded is given up half-way."""
    two = ("--tp-size", "2", CHECK_RANKS) if ranks > 1 else ()
    with start(*flags("overlap", page, "hicache"), *IN_CHUNKS, *two, env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == reference
        chunks = served.total("tokenflow:loaded_ahead_chunks_total")
        tokens = served.total("tokenflow:loaded_ahead_tokens_total")
        print(f"page {page}, {ranks} ranks: {tokens:.0f} tokens prefetched, {chunks:.0f} chunks")
        assert chunks > 0, "the test must load in parts"
        served.assert_clean()


AT_ONCE = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptAndResume")


ROUNDS = 5
"""Of a control: on a busy machine few of the prompts meet, so that little is disturbed."""
PACED = ("--scheduler", "tokenflow", *tuned(pace=True), "--tokenflow-default-rate", "5")
"""Readers so slow that even a busy machine gets well before them."""


@pytest.fixture(scope="module")
def hasty_and_paced(start):
    """A server that takes its victims back at once, and one that paces, started at once."""
    servers = (
        start(*AT_ONCE, "--max-total-tokens", "4000"),
        start(*PACED, "--max-total-tokens", "8000"),
    )
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield list(pool.map(stack.enter_context, servers))


def test_victims_that_are_wanted_back_at_once(hasty_and_paced, prompts, reference) -> None:
    served, _ = hasty_and_paced
    assert served.outputs(prompts) == reference
    assert served.total("tokenflow:preemptions_total") >= 4 * len(prompts)
    served.assert_clean()


def test_paced_streams_rest_without_a_trace_in_their_text(
    hasty_and_paced, prompts, reference
) -> None:
    _, served = hasty_and_paced
    assert served.outputs(prompts, stream=True) == reference
    rests = served.total("tokenflow:preemptions_total")
    assert rests >= len(prompts), "the test must disturb"
    assert served.total("tokenflow:resumes_total") == rests
    served.assert_clean()


def test_controls_are_noticed(start, prompts, reference) -> None:
    """Broken on purpose: what the tests above compare does change."""

    def released_before_the_drain() -> None:
        """With a result in flight, and taken back at once: tokens go wrong, or it crashes."""
        env = {
            "TOKENFLOW_TEST_BREAK": "no-drain",
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "0",
        }
        broken = start(*AT_ONCE, "--max-total-tokens", "4000", program=BROKEN, env=env)
        with broken as served:
            for _ in range(ROUNDS):
                try:
                    answers = served.together([lambda p=p: served.generate(p) for p in prompts])
                except (OSError, http.client.HTTPException):
                    return
                if [a.status == 200 and a.body["output_ids"] for a in answers] != reference:
                    return
            raise AssertionError("tokens that were still being computed count as there")

    def kv_thrown_away() -> None:
        env = {"TOKENFLOW_TEST_BREAK": "no-keep"}
        with start(*flags("overlap", 1, "no-hicache"), program=BROKEN, env=env) as served:
            assert served.outputs(prompts) == reference, "recomputed, so still the same text"
            samples = served.metrics()
            within = samples[("tokenflow:resume_recomputed_tokens_bucket", (("le", "2.0"),))]
            assert within < served.total("tokenflow:resumes_total"), "the cells' bound breaks"

    def nothing_copied_to_the_host() -> None:
        env = {"TOKENFLOW_TEST_BREAK": "no-copy"}
        with start(*flags("overlap", 1, "hicache"), program=BROKEN, env=env) as served:
            got = (served.outputs(prompts) for _ in range(ROUNDS))
            assert any(each != reference for each in got), "what was proactively written is loaded"

    def resumed_before_the_last_chunk_has_landed() -> None:
        env = {**LATE, "TOKENFLOW_TEST_BREAK": "no-landing"}
        chunked = (*flags("overlap", 1, "hicache"), *IN_CHUNKS)
        with start(*chunked, program=BROKEN, env=env) as served:
            got = (served.outputs(prompts) for _ in range(ROUNDS))
            assert any(each != reference for each in got), "what has not landed is read"

    controls = (
        released_before_the_drain,
        kv_thrown_away,
        nothing_copied_to_the_host,
        resumed_before_the_last_chunk_has_landed,
    )
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for noticed in [pool.submit(control) for control in controls]:
            noticed.result()
