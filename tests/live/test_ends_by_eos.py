"""Answers end by EOS where their clients say, however the scheduler treats them meanwhile."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

EOS = 1
LIMIT = 4096
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
TIGHT = ("--max-total-tokens", "704", "--hicache-ratio", "4", "--chunked-prefill-size", "32")
WANTED = (1, 2, 3, 7, 8, 9, 20, 33, 40, 50, 63, 64)
"""Tokens of each answer, EOS included; the reference has 64 without an EOS."""


def ask(served, prompts, *, stream=False):
    """What each prompt's answer is where it is to end at its place in `WANTED`."""
    return served.together(
        [
            lambda ids=ids, wanted=wanted: served.generate(
                ids,
                stream=stream,
                max_new_tokens=LIMIT,
                custom_params={"emulated_output_tokens": wanted},
            )
            for ids, wanted in zip(prompts, WANTED, strict=True)
        ]
    )


def check(answers, reference) -> None:
    """Each ended by EOS at its own length, with the tokens of an answer that goes on."""
    assert [answer.status for answer in answers] == [200] * len(answers), answers
    got = [answer.body["output_ids"] for answer in answers]
    assert got == [[*ids[: n - 1], EOS] for ids, n in zip(reference, WANTED, strict=True)]
    for answer, wanted in zip(answers, WANTED, strict=True):
        meta = answer.body["meta_info"]
        assert meta["completion_tokens"] == wanted
        assert meta["finish_reason"] == {"type": "stop", "matched": EOS}


@pytest.mark.parametrize(
    "way",
    [
        "overlap",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("no-overlap", "two-ranks")),
    ],
)
def test_preempted_answers_end_at_their_token(start, prompts, reference, way) -> None:
    flags = {
        "overlap": [],
        "no-overlap": ["--disable-overlap-schedule"],
        "two-ranks": ["--tp-size", "2"],
    }[way]
    with start(*FORCED, *TIGHT, *flags) as served:
        check(ask(served, prompts), reference)
        check(ask(served, prompts, stream=True), reference)
        assert served.total("tokenflow:preemptions_total") >= len(prompts), "it must disturb"
        served.assert_clean()


@pytest.mark.slow
def test_stock_sglang_ends_them_too_and_the_control_does_not(start, prompts, reference) -> None:
    with start("--max-total-tokens", "4000", "--chunked-prefill-size", "32") as served:
        check(ask(served, prompts), reference)
        # Without the key nothing but its limit ends an answer of this model.
        whole = served.generate(prompts[0], max_new_tokens=64).body
        assert whole["output_ids"] == reference[0]
        assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 64}
        # A limit below the wanted length ends it as always.
        cut = served.generate(
            prompts[0], max_new_tokens=5, custom_params={"emulated_output_tokens": 9}
        ).body
        assert cut["output_ids"] == reference[0][:5]
        assert cut["meta_info"]["finish_reason"]["type"] == "length"
        refused = served.generate(prompts[0], custom_params={"emulated_output_tokens": 0})
        assert refused.status == 400
        assert "emulated_output_tokens is 0; allowed is a whole number" in str(refused.body)
        served.assert_clean()
