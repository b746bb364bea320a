"""With speculation, every token is the one that stock SGLang gives, and drafts stay as good.

Under forced preemption every few steps. What a stream says does not depend on its drafts; how many
of them are accepted does depend on the draft model's KV, which is paused, kept on the host and
loaded with the stream's own.

Models are a Llama, a Qwen3, and "in windows" a Qwen3 with a sliding window on every other layer.
There, the layers for drafts of EAGLE and EAGLE3 attend to all tokens, as those of gpt-oss do; those
of NEXTN and STANDALONE have windows, too.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.tuned import CHECK_RANKS

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
COMMON = ("--chunked-prefill-size", "32", "--max-running-requests", "16")
AMPLE = ("--max-total-tokens", "4000")
# Twelve streams need about 1,350 tokens, and 8 more each for drafts.
SMALL = ("--max-total-tokens", "960", "--hicache-ratio", "4")
CHAIN = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)
TREE = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "8"),
)
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4", "SGLANG_SWA_EVICTION_INTERVAL": "8"}
"""Copies land as late as SGLang and we let them; what has left a window is freed soon."""


@pytest.fixture(scope="module")
def of_llama(start, drafting, prompts) -> list[list[int]]:
    """What stock SGLang answers without speculation."""
    with start(*AMPLE, model=drafting / "llama") as served:
        return served.outputs(prompts)


@pytest.fixture(scope="module")
def of_windows(start, drafting, prompts) -> list[list[int]]:
    """What stock SGLang answers without speculation where layers have windows."""
    with start(*AMPLE, model=drafting / "windows") as served:
        return served.outputs(prompts)


@pytest.fixture
def speculation(request, drafting, models, reference) -> tuple[Path, tuple[str, ...], Any]:
    """Of an algorithm: the model, SGLang's options, and what it says without speculation."""
    name, _, shape = request.param.partition(", ")
    drafts = TREE if shape == "trees" else CHAIN
    name, windows, _ = name.partition(" in windows")
    if name == "ngram":
        options = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
        if windows:
            return drafting / "windows", options, request.getfixturevalue("of_windows")
        return models / "qwen3", options, reference
    if windows:
        target, said = drafting / "windows", request.getfixturevalue("of_windows")
        kind = "eagle-window" if name == "mtp" else name
        draft = target if name == "standalone" else drafting / f"windows-{kind}"
    elif name == "standalone":
        draft, target, said = models / "qwen3", models / "qwen3", reference
    else:
        said = request.getfixturevalue("of_llama")
        draft, target = drafting / name, drafting / ("mtp" if name == "mtp" else "llama")
    algorithm = "NEXTN" if name == "mtp" else name.upper()
    options = ("--speculative-algorithm", algorithm, *drafts)
    return target, (*options, "--speculative-draft-model-path", str(draft)), said


def served_answers(served, prompts, *, stream: bool) -> tuple[list[list[int]], float]:
    """The tokens of all prompts, served at once, and how many of them a step gave on average.

    A step of drafts, that is: the first token after a start or a resume comes from a prefill.
    """
    calls = [lambda p=prompt: served.generate(p, stream=stream) for prompt in prompts]
    answers = served.together(calls)
    assert [answer.status for answer in answers] == [200] * len(prompts), answers
    told = [answer.body["meta_info"] for answer in answers]
    steps = sum(each["spec_verify_ct"] for each in told)
    accepted = sum(each["spec_num_correct_drafts"] for each in told)
    return [answer.body["output_ids"] for answer in answers], 1.0 + accepted / steps


def run(start, speculation, prompts, *flags: str, **how: Any) -> list[float]:
    """Tokens per step when all prompts are asked, and when they are asked again.

    All tokens of the forced run are right.
    """
    model, options, said = speculation
    accepted = []
    with start(*FORCED, *COMMON, *options, *flags, model=model, **how) as served:
        for stream in (False, True):
            tokens, per_step = served_answers(served, prompts, stream=stream)
            assert tokens == said
            accepted.append(per_step)
        preempted = served.total("tokenflow:preemptions_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        loaded = served.total("tokenflow:loaded_ahead_tokens_total")
        print(
            f"{' '.join(options[1:2])} {' '.join(flags)}: {accepted} tokens per step, "
            f"{preempted:.0f} preemptions, {recomputed:.0f} tokens recomputed, {loaded:.0f} loaded"
        )
        assert preempted >= 2 * len(prompts), "the test must disturb"
        served.assert_clean()
    return accepted


IN_TREES = ("standalone, trees", "eagle, trees", "mtp, trees")
IN_WINDOWS = (
    *("ngram in windows", "standalone in windows", "eagle3 in windows", "mtp in windows"),
    *("eagle in windows, trees", "mtp in windows, trees"),
)
OFTEN, AT_TIMES = ("ngram",), ("standalone", "eagle", "eagle3", "mtp", *IN_TREES, *IN_WINDOWS)
ALGORITHMS = (*OFTEN, *(pytest.param(each, marks=pytest.mark.slow) for each in AT_TIMES))


@pytest.mark.parametrize("speculation", ALGORITHMS, indirect=True)
def test_tokens_are_those_of_the_undisturbed_run(start, prompts, speculation) -> None:
    """And drafts are accepted as often as under stock SGLang with the same speculation."""
    model, options, said = speculation

    def undisturbed() -> float:
        with start(*COMMON, *options, *AMPLE, model=model) as served:
            tokens, per_step = served_answers(served, prompts, stream=False)
            assert tokens == said
            return per_step

    cells: Sequence[Any] = (
        undisturbed,
        lambda: run(start, speculation, prompts, *SMALL, env=LATE)[0],
        lambda: run(start, speculation, prompts, *AMPLE, "--tokenflow-hicache", "off")[0],
    )
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        stock, small, ample = (each.result() for each in [pool.submit(cell) for cell in cells])
    print(f"tokens per step: stock {stock:.2f}, HiCache {small:.2f}, without {ample:.2f}")
    # The step after a resume drafts from a token or two that were computed anew.
    assert min(small, ample) >= 0.9 * stock


@pytest.mark.slow
@pytest.mark.parametrize("speculation", ["eagle"], indirect=True)
@pytest.mark.parametrize(
    "flags",
    [
        ("--page-size", "16"),
        ("--disable-overlap-schedule",),
        ("--tp-size", "2", CHECK_RANKS),
        (*TREE, "--tp-size", "2", CHECK_RANKS),
        (*TREE, "--disable-overlap-schedule"),
    ],
    ids=["pages", "no-overlap", "ranks", "trees, ranks", "trees, no-overlap"],
)
def test_tokens_are_the_same_in_other_settings(start, prompts, speculation, flags) -> None:
    small = ("--max-total-tokens", "1280", "--hicache-ratio", "4")
    run(start, speculation, prompts, *small, *flags, env=LATE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speculation", "flags"),
    [
        ("eagle3 in windows", ("--page-size", "16")),
        ("eagle3 in windows", ("--disable-overlap-schedule",)),
        ("eagle3 in windows", ("--tp-size", "2", CHECK_RANKS)),
        ("mtp in windows", ("--page-size", "16", "--disable-overlap-schedule")),
    ],
    ids=["pages", "no-overlap", "ranks", "windowed drafts, pages, no-overlap"],
    indirect=["speculation"],
)
def test_tokens_in_windows_are_the_same_in_other_settings(
    start, prompts, speculation, flags
) -> None:
    small = ("--max-total-tokens", "1280", "--hicache-ratio", "4")
    run(start, speculation, prompts, *small, *flags, env=LATE)


@pytest.mark.slow
@pytest.mark.parametrize("speculation", ["standalone", "standalone in windows"], indirect=True)
def test_lost_drafts_are_noticed(start, prompts, speculation) -> None:
    """The control: the draft model's KV is not loaded with the stream's, so fewer are accepted.

    Of prompts that are asked again: what is on the host of them is loaded, too.
    """
    env = {**LATE, "TOKENFLOW_TEST_BREAK": "no-draft-load"}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        whole = pool.submit(run, start, speculation, prompts, *SMALL, env=LATE)
        broken = pool.submit(run, start, speculation, prompts, *SMALL, env=env, program=BROKEN)
        assert broken.result()[1] < 0.9 * whole.result()[1]
