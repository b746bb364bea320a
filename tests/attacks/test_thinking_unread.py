"""A model that thinks: what no reader sees is no buffer, and is not given away like one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from servers.fixtures import THINK_START
from servers.tuned import tuned

pytestmark = pytest.mark.engine

PARSER = ("--reasoning-parser", "deepseek-r1")
COUNTED = (
    *("reasoning_tokens_total", "output_tokens_total"),
    *("ttft_seconds_count", "ttfvt_seconds_count"),
)
GIVES_WAY = {"memory", "newcomer", "exchange"}
"""Causes for which a stream that thinks may be paused."""
TURNS = 6
"""On a busy machine clients come one after the other: so many until one is preempted, at most."""
STRESS = (
    *("--scheduler", "tokenflow", "--max-total-tokens", "704", "--hicache-ratio", "4"),
    *tuned(min_run=0.1, safety=0.2, band_seconds=0.2, hysteresis=0.2, calm=1),
    *("--tokenflow-eta", "10"),
)


def counted(served) -> dict[str, float]:
    """What the server has counted so far."""
    return {name: served.total(f"tokenflow:{name}") for name in COUNTED}


def thought(answer: list[int], end: int) -> int:
    """Leading tokens of an answer that are reasoning."""
    return answer.index(end) + 1 if end in answer else len(answer)


def pauses(log: Path) -> list[tuple[str, str, int]]:
    """Who was paused, for what cause, and how many tokens it had: from a log of decisions."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [
        (pause["rid"], pause["cause"], seen["generated"])
        for line in map(json.loads, lines)
        for pause in line["preempt"]
        for seen in line["candidates"]
        if seen["rid"] == pause["rid"]
    ]


def test_thinking_gives_way_to_other_streams_only(
    start, thinker, think_end, prompts, reference, tmp_path: Path
) -> None:
    end, log = think_end, tmp_path / "decisions"
    hidden: dict[str, int] = {}
    expected = dict.fromkeys(COUNTED, 0)
    with start(*STRESS, *PARSER, "--tokenflow-decision-log", str(log), model=thinker) as served:
        before = counted(served)  # SGLang's own warm-up
        for turn in range(TURNS):
            asked = [
                (f"{kind}-{turn}-{number}", prompt, kind == "thinks")
                for number, prompt in enumerate(prompts)
                for kind in ("thinks", "reads")
            ]
            answers = served.together(
                [
                    lambda rid=rid, p=p, thinks=thinks: served.generate(
                        p, stream=True, rid=rid, require_reasoning=thinks
                    )
                    for rid, p, thinks in asked
                ]
            )
            outputs = [answer.body["output_ids"] for answer in answers]
            assert outputs == [each for each in reference for _ in range(2)]
            thoughts = [
                thought(output, end) if thinks else 0
                for (_, _, thinks), output in zip(asked, outputs, strict=True)
            ]
            hidden |= {rid: each for (rid, _, _), each in zip(asked, thoughts, strict=True)}
            # The server's word for it, and what its readers got.
            told = [answer.body["meta_info"]["reasoning_tokens"] for answer in answers]
            assert told == thoughts
            read = [len(output) - count for output, count in zip(outputs, thoughts, strict=True)]
            expected["reasoning_tokens_total"] += sum(thoughts)
            expected["output_tokens_total"] += sum(read)
            expected["ttft_seconds_count"] += len(asked)
            expected["ttfvt_seconds_count"] += np.count_nonzero(read)
            for name, number in expected.items():
                served.wait_until(name, before[name] + number)
            if any(rid.startswith("reads") for rid, *_ in pauses(log)):
                break
        else:
            raise AssertionError("the test must disturb")
        served.assert_clean()
    causes = {cause for rid, cause, generated in pauses(log) if generated <= hidden[rid]}
    assert causes <= GIVES_WAY, "it is ahead of no reader"


@pytest.mark.slow
@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "shown"])
def test_without_a_parser_the_models_think_tokens_tell(
    start, thinker, think_end, prompts, reference, shown
) -> None:
    end = think_end
    opened = [[*prompt, THINK_START] for prompt in prompts]
    flags = ("--tokenflow-thinking", "shown") if shown else ()
    with start(*STRESS, *flags, model=thinker) as served:
        before = counted(served)
        answers = served.together(
            [lambda p=p: served.generate(p, stream=True) for p in (*opened, *prompts)]
        )
        outputs = [answer.body["output_ids"] for answer in answers]
        assert outputs[len(prompts) :] == reference
        assert not any(answer[0] == THINK_START for answer in reference), "they do not think"
        hidden = 0 if shown else sum(thought(each, end) for each in outputs[: len(prompts)])
        read = sum(map(len, outputs)) - hidden
        served.wait_until("reasoning_tokens_total", before["reasoning_tokens_total"] + hidden)
        served.wait_until("output_tokens_total", before["output_tokens_total"] + read)
        served.assert_clean()
