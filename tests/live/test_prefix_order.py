"""What of a waiting prompt is cached, as a live server's policy sees it."""

from __future__ import annotations

import functools
import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from servers.tuned import CHECK_RANKS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BEGINNING = 400
"""Tokens that an earlier prompt has computed."""
CROWD = {"max_new_tokens": 250, "custom_params": {"tokenflow_rate": 10}, "stream": True}
"""Twelve of these need more than twice the memory."""
TURNS = 6
"""On a busy machine the crowd may come one by one: so many turns until some wait, at most."""


def uncached(log: Path) -> dict[str, list[tuple[int, int]]]:
    """By request: (prompt, uncached tokens) in the lines in which it waits."""
    found = defaultdict(list)
    for line in log.read_text().splitlines() if log.exists() else ():
        for stream in json.loads(line)["candidates"]:
            if stream["phase"] == "waiting":
                found[stream["rid"]].append((stream["prompt"], stream["uncached"]))
    return found


@pytest.mark.parametrize(
    ("page", "more"),
    [
        (16, ()),
        (1, ()),
        (1, ("--tp-size", "2", CHECK_RANKS)),
    ],
)
def test_the_policy_sees_what_is_cached(start, prompts, tmp_path, page, more) -> None:
    rng = random.Random(9)

    def drawn(tokens: int) -> list[int]:
        return [rng.randrange(10, 200) for _ in range(tokens)]

    log = tmp_path / "decisions.jsonl"
    flags = ("--scheduler", "tokenflow", "--tokenflow-decision-log", str(log))
    memory = ("--max-total-tokens", "1504", "--hicache-ratio", "4", "--page-size", str(page))
    with start(*flags, *memory, *more) as served:

        def late(ids: list[int], rid: str) -> Any:
            time.sleep(0.5)
            return served.generate(ids, rid=rid, stream=True)

        for turn in range(TURNS):
            beginning = drawn(BEGINNING)
            asked = {
                f"again-{turn}": [*beginning, *drawn(50)],
                f"fresh-{turn}": drawn(BEGINNING + 50),
            }
            served.generate(beginning, max_new_tokens=4)
            crowd = [functools.partial(served.generate, prompt, **CROWD) for prompt in prompts]
            late_ones = [functools.partial(late, ids, rid) for rid, ids in asked.items()]
            answers = served.together([*crowd, *late_ones])
            for ids, answer in zip(asked.values(), answers[-2:], strict=True):
                assert answer.status == 200
                assert served.outputs([ids])[0] == answer.body["output_ids"]
            seen = uncached(log)
            if seen.keys() >= asked.keys():
                break
        else:
            raise AssertionError("they never had to wait")
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()
    whole = BEGINNING + 50
    again, fresh = (seen[rid] for rid in asked)
    assert min(again) == (whole, whole - BEGINNING // page * page)
    assert set(fresh) == {(whole, whole)}
